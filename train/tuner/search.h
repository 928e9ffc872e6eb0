// What the doors of the tuner and its searches share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/train/tuner.h"
#include "train/run/run.h"

namespace levin::train {

[[nodiscard]] LrFindResult find_lr(Trainer::Run& run, const LrFindOptions& options);

// `loop` none: of a fit.
[[nodiscard]] std::int64_t find_batch_size(Trainer::Run& run, const BatchSizeOptions& options,
                                           std::optional<Trainer::Run::Loop> loop);

// Throws StateError where the trainer is running already.
void check_free(const Trainer::Run& run, const char* call);
// With fast_dev_run nothing is searched: true, and a warning.
[[nodiscard]] bool skipped_by_dev_run(const Trainer::Run& run, const char* call);
// What may be set by name in a run: in the data module, which is asked first, and in the module.
class Fields {
 public:
  Fields(TrainModule& module, DataModule* data_module);
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] double get(std::string_view name) const;  // throws ConfigError where nobody has it
  void set(std::string_view name, double value) const;    // all that hold it
  [[nodiscard]] std::string names() const;                // for messages
  // Where a member and an hparam have the name: the hparam is read.
  void warn_of_both(const std::string& name) const;

 private:
  std::vector<HasHParams*> holders_;
};
[[nodiscard]] Fields fields_of(const Trainer::Run& run);  // of its stage

}  // namespace levin::train
