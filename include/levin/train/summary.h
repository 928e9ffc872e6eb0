// The modules of a model as a table: types, parameters, sizes, FLOPs.
#pragma once

#include <cstdint>
#include <string>

#include "levin/function.h"
#include "levin/nn/module.h"
#include "levin/train/hooks.h"

namespace levin {

class TrainModule;

// A count in at most four characters and a unit: "123", "1.2 K", "123 K", "2.0 M". K, M, B and T are powers of 1000.
// Further digits are cut off, not rounded.
[[nodiscard]] LEVIN_API std::string readable_count(std::int64_t n);

struct SummaryOptions {
  int max_depth = 1;  // levels of modules with a line: 1 the root's children, -1 all, 0 none (only the totals)
};
// One line for each module, parents before children: index, name, type, elements of all parameters in it, train or
// eval. Parameters of the root itself have the line "(own)". The totals follow. Throws ConfigError for max_depth below
// -1.
//
//     | Name | Type    | Params | Mode
//   ------------------------------------
//   0 | fc1  | Linear  | 48     | train
//   1 | drop | Dropout | 0      | train
//   2 | fc2  | Linear  | 17     | train
//   ------------------------------------
//   65 trainable parameters
//   0 non-trainable parameters
//   65 parameters in all, 260 bytes              and "  192 bytes of them on cuda:0" where they are on several devices
//   4 modules in train mode, 0 in eval mode
[[nodiscard]] LEVIN_API std::string summarize(const nn::Module& module, const SummaryOptions& options = {});

// The same table with sizes and FLOPs of the forward pass of an example:
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
// Sizes are those of a module's first call; several tensors are in brackets: [[4, 8], [4, 2]]. They come from nn::Call
// (levin/nn/call.h), which all layers of levin/nn use, and nn::Sequential for its children. "?" is a module that was
// not called or does not use it. FLOPs are those of all calls, of the module and its children, counted by FlopCounter
// (levin/flops.h): matrix products and convolutions, two for each multiply-add, without a backward pass. Products of a
// module without nn::Call count for the module around it, at last for the root: "(own)".
//
// `forward` is called once, in eval mode and without recording, with parameters and buffers on meta: on shapes alone,
// so it computes nothing. Its inputs are on meta too: [&] { net(empty({4, 2}, Device::meta())); }. Then values,
// gradients, the tree's generators and modes are as before, also after an exception, which is rethrown. Throws
// UnsupportedError if `forward` reads values.
[[nodiscard]] LEVIN_API std::string summarize(nn::Module& module, const SummaryOptions& options,
                                              const Function<void()>& forward);
// The same with the module's example_input and example_forward; without fields in example_input the first table.
[[nodiscard]] LEVIN_API std::string summarize(TrainModule& module, const SummaryOptions& options = {});

// Prints the table on stderr when a fit starts; nothing for bare tensors. The example passes the transfer hooks and
// runs under the run's precision, as batches do. If it throws, the table has no sizes, with a warning
// (W-TRAIN-SUMMARY). Added by default (enable_model_summary).
class LEVIN_API ModelSummary : public Callback {
 public:
  explicit ModelSummary(SummaryOptions options = {});  // throws ConfigError
  void on_fit_start() override;
  [[nodiscard]] Kind kind() const override { return Kind::summary; }
  // The table that was printed last.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  SummaryOptions options_;
  std::string text_;
};

}  // namespace levin
