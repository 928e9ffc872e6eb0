// The place where a resumed run continues: what is still to be done of a trained batch or of an ended epoch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "train/logs/metric_log.h"

namespace levin::train {

// The hooks that end a batch, a validation of the loop's own, and an epoch. Callbacks that write checkpoints run last
// in them.
enum class EndOf : std::uint8_t { batch, validation, epoch };

// The next thing to do. A hook that runs before it may write a checkpoint. The file keeps the Due of that moment, and
// the resumed run begins there.
enum class Due : std::uint8_t { nothing, record, validation, plateaus, epoch_end };

// A row for each Due. Files have the names; files of version 3 have the index of the row, so a new row goes to the end.
struct DueRow {
  Due due;
  const char* name;
  std::optional<EndOf> written_in;  // the hook in which files with this Due are written
  Due next;                         // the Due after this one is done
};
inline constexpr std::array kDue = {
    DueRow{Due::nothing, "nothing", {}, Due::nothing},  // then the next batch or epoch
    DueRow{Due::record, "record", EndOf::batch, Due::validation},
    DueRow{Due::validation, "validation", {}, Due::plateaus},
    DueRow{Due::plateaus, "plateaus", EndOf::validation, Due::nothing},
    DueRow{Due::epoch_end, "epoch_end", EndOf::epoch, Due::nothing},
};
[[nodiscard]] constexpr const DueRow& row_of(Due due) { return kDue[static_cast<std::size_t>(due)]; }
static_assert([] {
  for (std::size_t i = 0; i < kDue.size(); ++i) {
    if (kDue[i].due != static_cast<Due>(i)) return false;
  }
  return true;
}());

// The state before on_train_epoch_end ran in the middle of an epoch that max_steps cut. A resumed run starts from this
// state, and calls the hook again at the end of the epoch.
struct EpochCut {
  std::vector<MetricLog::Saved> log;
  bool stop_kept;
  std::vector<MetricLog::Saved> log_of_ranks{};  // of several, together
};

}  // namespace levin::train
