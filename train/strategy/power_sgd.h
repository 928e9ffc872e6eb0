// CommHook::powersgd: gradients travel as products of two thin matrices.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "levin/comm.h"
#include "levin/serialize.h"
#include "levin/train/ddp_strategy.h"

namespace levin::train {

// Note [PowerSGD]
//
// A gradient of two or more dimensions is a matrix M_r [n, m] of rank r of R: its first dimension, and all others. With
// a Q [m, k] that is equal on all ranks, one step of a power iteration approximates the average of all M_r:
//   P = mean_r M_r Q;   P = orthonormal(P);   Q = mean_r M_r' P;   mean_r M_r is about P Q'.
// P and Q travel instead of M. An average of rank k or less comes out exact. What is left out, M_r - P Q', is added to
// the rank's next M_r (error feedback), and the next iteration starts from the last Q (warm start).
// Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", 2019.
//
// A bucket makes two reductions: of the Ps and of all gradients that are not compressed, then of the Qs. The second of
// a bucket is issued after the first of the next bucket, so all ranks issue in one order, and communication still
// overlaps with the backward pass.
class PowerSgd {
 public:
  PowerSgd(std::shared_ptr<dist::ProcessGroup> group, const PowerSgdOptions& options);

  // A gradient in its home, which becomes the average. `parameter` names its state, of the same shape each time.
  struct Gradient {
    std::size_t parameter;
    Tensor home;
    bool compresses = true;  // false: it travels as it is, whatever its shape
  };
  // A bucket under way.
  struct Round;
  [[nodiscard]] std::shared_ptr<Round> begin(std::vector<Gradient> gradients);  // issues the first reduction
  void turn(Round& round);  // waits for it and issues the second; nothing for a round that has turned
  // Waits for that and writes the averages. `used`, by parameter: 0 where no rank has a gradient. Such a parameter gets
  // no average, and what was left out of its last gradient stays for its next one. Empty: all are used.
  void finish(Round& round, std::span<const std::uint8_t> used = {});

  // What the next round of a parameter depends on, by name: error (of this rank alone), q, draws. load() takes it for a
  // parameter of the same shape; a q of another rank of the approximation is left out.
  [[nodiscard]] NamedTensors state(std::size_t parameter) const;
  void load(std::size_t parameter, const Tensor& like, const NamedTensors& state);

  // Bytes that a round sends.
  [[nodiscard]] static std::int64_t bytes(const Round& round);

 private:
  struct State {
    Tensor error;     // [n, m]: what was left out; with error feedback
    Tensor q, drawn;  // [m, k]: of the last round; of the generator
    std::int64_t draws = 0;
  };
  [[nodiscard]] std::int64_t rank_of(const Gradient& g) const;  // k; 0: not compressed
  [[nodiscard]] Tensor start_of(const Gradient& g, std::int64_t k);
  [[nodiscard]] State& state_of(std::size_t parameter);

  std::shared_ptr<dist::ProcessGroup> group_;
  const PowerSgdOptions options_;
  std::vector<State> states_;  // by parameter
};

// The columns of x [n, k], k <= n, made orthonormal from left to right. A column of zeros stays one.
[[nodiscard]] Tensor orthonormal_columns(const Tensor& x);

}  // namespace levin::train
