// What a model consists of, as a table.
#pragma once

#include <cstdint>
#include <string>

#include "levin/nn/module.h"
#include "levin/train/hooks.h"

namespace levin {

// A count in at most four characters and a unit: "123", "1.2 K", "123 K", "2.0 M"; K, M, B and T are powers of 1000, what
// does not fit is cut off, not rounded.
[[nodiscard]] LEVIN_API std::string readable_count(std::int64_t n);

struct SummaryOptions {
  int max_depth = 1;  // of the modules that have a line: 1 are the root's own, -1 all, 0 none (the totals alone)
};
// One line a module, parents before children: index, name, type, elements of its parameters and those below it, train or
// eval. Parameters of the root itself are a line "(own)". Then elements that are trained and that are not, all, and
// their bytes. Throws ConfigError for max_depth below -1.
//
//     | Name | Type    | Params | Mode
//   ------------------------------------
//   0 | fc1  | Linear  | 48     | train
//   1 | drop | Dropout | 0      | train
//   2 | fc2  | Linear  | 17     | train
//   ------------------------------------
//   65 trainable parameters
//   0 non-trainable parameters
//   65 parameters in all, 260 bytes
//   4 modules in train mode, 0 in eval mode
[[nodiscard]] LEVIN_API std::string summarize(const nn::Module& module, const SummaryOptions& options = {});

// Prints that on stderr when a fit starts; nothing for bare tensors.
class LEVIN_API ModelSummary : public Callback {
 public:
  explicit ModelSummary(SummaryOptions options = {});  // throws ConfigError
  void on_fit_start() override;
  // What was printed last.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  SummaryOptions options_;
  std::string text_;
};

}  // namespace levin
