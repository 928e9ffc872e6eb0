// What a look at a loader tells before it is used, and how long the first batches were waited for.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "levin/data.h"

namespace levin::train {

extern std::atomic<int> suggested_workers_instead;  // 0: data::suggested_workers(); tests set it

// The text of W-DATA-WORKERS; empty where there is nothing to say: two workers or more, or no CPU for a second one.
[[nodiscard]] std::string workers_advice(const std::string& loader, int num_workers, int suggested);

enum class Shuffling : bool { is_unusual, is_usual };
// Warns of a loader that will be slow, that shuffles where nobody needs it, or that is empty; of combined ones each part.
void inspect_loader(const data::DataLoader& loader, const std::string& name, Shuffling shuffling,
                    std::int64_t reload_every);

// How much of the time of the first kBatches batches the loop waited for them. Times are nanoseconds. `apart` is what the run has
// spent since its start on what is no part of steps: validations, saves.
class DataWait {
 public:
  static constexpr std::int64_t kBatches = 100;
  static constexpr double kMuch = 0.2;
  [[nodiscard]] bool measures() const { return batches_ < kBatches; }
  void begins(std::int64_t now, std::int64_t apart) { begun_ = now, apart_ = apart; }
  void arrived(std::int64_t now) { waited_ += now - begun_; }
  // The batch is trained. Gives the share of waiting once, behind the last batch.
  [[nodiscard]] std::optional<double> trained(std::int64_t now, std::int64_t apart) {
    total_ += now - begun_ - (apart - apart_);
    return ++batches_ == kBatches && total_ > 0
               ? std::optional(static_cast<double>(waited_) / static_cast<double>(total_))
               : std::nullopt;
  }

 private:
  std::int64_t begun_ = 0, waited_ = 0, total_ = 0, apart_ = 0, batches_ = 0;
};

}  // namespace levin::train
