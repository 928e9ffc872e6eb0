// A run before a search of the tuner, and what the searches share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/run/run.h"

namespace levin::train {

// Keeps a run from its construction on and gives it to trials: without callbacks, schedules, capture and records. What is in
// memory comes back when this is destroyed, tensors by restore(), before which the next trial finds what the last one left.
class SavedRun {
 public:
  // `tree` is the module's that is tried. Writes <root>/<prefix><uuid>.safetensors. Throws FileError and has changed nothing then.
  SavedRun(Trainer::Run& run, nn::Module* tree, const char* prefix);
  ~SavedRun();
  SavedRun(const SavedRun&) = delete;
  SavedRun& operator=(const SavedRun&) = delete;

  // All as it was. Throws where the file can not be read any more.
  void restore();
  // The same for a search that is ending by an exception: an error of its own is a warning.
  void restore_quietly() noexcept;

  // Trains `steps` optimizer steps from the beginning of an epoch, with `watch` as the only callback (may be null).
  void train(std::int64_t steps, std::shared_ptr<Callback> watch);
  void evaluate(Trainer::Run::Loop loop, data::DataLoader& loader, std::vector<Tensors>* predictions);

 private:
  struct Before;
  Trainer::Run& run_;
  nn::Module* tree_;
  std::string path_;
  bool restored_ = false;
  std::unique_ptr<Before> before_;
};

// Which of `allowed` the text is, without regard to case. Throws ConfigError that lists them.
[[nodiscard]] std::size_t choose(const char* op, const char* option, std::string_view text,
                                 std::initializer_list<const char*> allowed);

}  // namespace levin::train
