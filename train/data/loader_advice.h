// Advice on loaders: warnings before a loader is used, and how long the loop waited for its first batches.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "levin/data.h"

namespace levin::train {

extern std::atomic<int> suggested_workers_instead;  // 0: data::suggested_workers(); tests set it

// The text of W-DATA-WORKERS; empty for two workers or more, or without a CPU for a second one.
[[nodiscard]] std::string workers_advice(const std::string& loader, int num_workers, int suggested);

enum class Shuffling : bool { is_unusual, is_usual };
// Warns of a loader that is slow, empty, or shuffles although `shuffling` is_unusual; of a combined loader, for each
// part. `name` is for the messages.
void inspect_loader(const data::DataLoader& loader, const std::string& name, Shuffling shuffling,
                    std::int64_t reload_every);

// The share of the first kBatches batches' time that the loop waited for them. Times are nanoseconds. `apart` is the
// time since the start of the run that belongs to no step: validations and saves.
class DataWait {
 public:
  static constexpr std::int64_t kBatches = 100;
  static constexpr double kMuch = 0.2;  // a share above this is a warning
  [[nodiscard]] bool measures() const { return batches_ < kBatches; }
  void begins(std::int64_t now, std::int64_t apart) { begun_ = now, apart_ = apart; }  // the wait for a batch
  void arrived(std::int64_t now) { waited_ += now - begun_; }                          // the batch is there
  // After the batch was trained. Returns the share once, after the last batch, else nullopt.
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
