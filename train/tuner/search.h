// The searches of the tuner, which Tuner and the finder callbacks call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/train/tuner.h"
#include "train/run/evaluation.h"

namespace levin::train {

[[nodiscard]] LrFindResult find_lr(Trainer::Run& run, const LrFindOptions& options);

// `loop`: unset is a fit.
[[nodiscard]] std::int64_t find_batch_size(Trainer::Run& run, const BatchSizeOptions& options,
                                           std::optional<Loop> loop);

// Throws StateError while the trainer runs.
void check_free(const Trainer::Run& run, const char* call);
// With fast_dev_run no search runs: returns true, with a warning.
[[nodiscard]] bool skipped_by_dev_run(const Trainer::Run& run, const char* call);
// The fields that may be set by name: those of the data module, which is asked first, and of the module.
class Fields {
 public:
  Fields(TrainModule& module, DataModule* data_module);
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] double get(std::string_view name) const;  // throws ConfigError if neither has it
  void set(std::string_view name, double value) const;    // in both
  [[nodiscard]] std::string names() const;                // for messages
  // Warns if a member and an hparam have the name: the hparam is read.
  void warn_of_both(const std::string& name) const;

 private:
  std::vector<HasHParams*> holders_;
};
[[nodiscard]] Fields fields_of(const Trainer::Run& run);  // of its stage

}  // namespace levin::train
