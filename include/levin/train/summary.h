// What a model consists of, as a table.
#pragma once

#include <cstdint>
#include <string>

#include "levin/function.h"
#include "levin/nn/module.h"
#include "levin/train/hooks.h"

namespace levin {

class TrainModule;

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

// The same with what `forward` makes of an example:
//
//     | Name | Type    | Params | Mode  | In sizes | Out sizes | FLOPs
//   --------------------------------------------------------------------
//   0 | fc1  | Linear  | 48     | train | [4, 2]   | [4, 16]   | 256
//   1 | drop | Dropout | 0      | train | [4, 16]  | [4, 16]   | 0
//   2 | fc2  | Linear  | 17     | train | [4, 16]  | [4, 1]    | 128
//   --------------------------------------------------------------------
//   ...
//   384 FLOPs in a forward pass of the example
//
// Sizes are those of a module's first call; several tensors stand in brackets: [[4, 8], [4, 2]]. A module tells them by nn::Call
// (levin/nn/call.h), as all of levin/nn do and nn::Sequential does for what is in it; "?" is one that was not called or does not
// tell. FLOPs are those of all calls, of the module and those below it, counted as FlopCounter (levin/flops.h) does: products
// alone, two for each multiply-add, no backward pass. What a module that does not tell multiplies itself stands with the
// one around it, at last with the root: "(own)".
//
// `forward` is called once, with parameters and buffers on meta, so on shapes alone: nothing is computed. Its inputs lie
// there, too: [&] { net(empty({4, 2}, Device::meta())); }. It runs in eval mode without recording. Then values, gradients,
// generators of the tree, and modes are as they were, also after an exception, which is passed on; UnsupportedError where
// it reads values.
[[nodiscard]] LEVIN_API std::string summarize(nn::Module& module, const SummaryOptions& options,
                                              const Function<void()>& forward);
// With the module's own example_input and example_forward; without fields in it, the first table.
[[nodiscard]] LEVIN_API std::string summarize(TrainModule& module, const SummaryOptions& options = {});

// Prints that on stderr when a fit starts; nothing for bare tensors. An example goes the way of the run's batches: through the
// transfer hooks, and under the run's precision. One that throws is a warning, W-TRAIN-SUMMARY, and the table comes without sizes.
class LEVIN_API ModelSummary : public Callback {
 public:
  explicit ModelSummary(SummaryOptions options = {});  // throws ConfigError
  void on_fit_start() override;
  [[nodiscard]] Kind kind() const override { return Kind::summary; }
  // What was printed last.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  SummaryOptions options_;
  std::string text_;
};

}  // namespace levin
