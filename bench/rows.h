// The rows of bench_kernels: an op, one call of it, and its shapes. rows_*.cpp list them, one family per file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/main.h"
#include "levin/levin.h"

namespace levin::bench {

struct Work {
  std::function<void()> run;
  double bytes = 0;  // minimal reads and writes
};

// flat: vectors of 1 KB to 2 GB. rows: matrices of as many bytes with 1024 columns. columns: the same, and matrices of
// one size with 256 to 262,144 columns. own: the listed shapes.
enum class Sizes : std::uint8_t { flat, rows, columns, own };
struct Kernel {
  std::string op;
  Sizes sizes;
  std::vector<DType> dtypes;
  std::function<Work(const Shape&, DType)> make;
  std::vector<Shape> shapes{};                  // besides the sweep
  std::function<double(const Shape&)> flops{};  // of kernels that multiply matrices
};

void pointwise_rows(std::vector<Kernel>& k);
void norm_rows(std::vector<Kernel>& k);
void index_rows(std::vector<Kernel>& k);
void product_rows(std::vector<Kernel>& k);
void graph_rows(std::vector<Kernel>& k);
void image_rows(std::vector<Kernel>& k);
void linalg_rows(std::vector<Kernel>& k);
void sequence_rows(std::vector<Kernel>& k);
void list_rows(std::vector<Kernel>& k);

// ---- Parts of rows

inline Device device() { return settings().device; }
inline std::vector<DType> floats() { return {DType::f32, DType::bf16, DType::f16}; }

inline Tensor random(const Shape& shape, DType dtype = DType::f32) {
  Generator generator(7);
  return randn(shape, generator, device(), dtype);
}
inline Tensor integers(std::int64_t bound, const Shape& shape) {
  Generator generator(8);
  return randint(0, bound, shape, generator, device());
}
inline double bytes_of(const Tensor& t) {
  return static_cast<double>(t.numel()) * static_cast<double>(itemsize(t.dtype()));
}

// The gradient of f alone: f is recorded once, and its backward runs many times. `passes`: tensors of x's size moved.
inline Work backward_of(Tensors inputs, const std::function<Tensor(const Tensors&)>& f, double passes) {
  for (Tensor& t : inputs) t.requires_grad_();
  const Tensor y = f(inputs);
  const Tensor seed = ones_like(y.detach());
  const double bytes = passes * bytes_of(inputs[0]);
  return {[=] { (void)grad(std::span(&y, 1), inputs, std::span(&seed, 1), {.retain_graph = true}); }, bytes};
}
// f and its gradient, as a training step computes them.
inline Work both_of(Tensors inputs, const std::function<Tensor(const Tensors&)>& f, double bytes) {
  for (Tensor& t : inputs) t.requires_grad_();
  const Tensor seed = ones_like(f(inputs).detach());
  return {[=] {
            const Tensor y = f(inputs);
            (void)grad(std::span(&y, 1), inputs, std::span(&seed, 1));
          },
          bytes};
}
using Unary = Tensor (*)(const Tensor&);
inline Work unary(const Shape& s, DType d, Unary f, double passes = 2) {
  const Tensor x = random(s, d);
  return {[=] { (void)f(x); }, passes * bytes_of(x)};
}
inline Work unary_backward(const Shape& s, DType d, Unary f, double passes = 3) {
  return backward_of(
      {random(s, d)}, [=](const Tensors& in) { return f(in[0]); }, passes);
}

}  // namespace levin::bench
