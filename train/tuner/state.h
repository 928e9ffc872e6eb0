// Keeps and restores a run around the trials of a search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/run/evaluation.h"

namespace levin::train {

// Keeps the state of a run while trials use it, without callbacks, schedules, capture and records. restore() restores
// the tensors, the destructor everything else. Until then a trial begins with what the last one left.
class SavedRun {
 public:
  // `tree`: of the module that is tried. Writes <root>/<prefix><uuid>.safetensors. Throws FileError, which changes
  // nothing.
  SavedRun(Trainer::Run& run, nn::Module* tree, const char* prefix);
  ~SavedRun();
  SavedRun(const SavedRun&) = delete;
  SavedRun& operator=(const SavedRun&) = delete;

  // Throws if the file cannot be read.
  void restore();
  // The same for a search that ends by an exception: its own error becomes a warning.
  void restore_quietly() noexcept;

  // Trains `steps` optimizer steps from the beginning of an epoch. `watch` is the only callback and may be null.
  void train(std::int64_t steps, std::shared_ptr<Callback> watch);
  void evaluate(Loop loop, data::DataLoader& loader, std::vector<Tensors>* predictions);

 private:
  struct Before;
  Trainer::Run& run_;
  nn::Module* tree_;
  std::string path_;
  bool restored_ = false;
  std::unique_ptr<Before> before_;
};

// The index of the text among `allowed`, without regard to case. Throws ConfigError, which lists them.
[[nodiscard]] std::size_t choose(const char* op, const char* option, std::string_view text,
                                 std::initializer_list<const char*> allowed);

}  // namespace levin::train
