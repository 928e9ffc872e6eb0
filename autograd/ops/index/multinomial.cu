// Categories drawn by their weights.
#include <array>
#include <atomic>
#include <cmath>

#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/pointwise/pointwise.h"
#include "levin/ops.h"

namespace levin {
namespace {

// weight / total; 0 where that is no probability.
struct Share {
  const char* op = "multinomial";              // on the host: slots hold its pointers
  levin::detail::FaultSlot* faults = nullptr;  // where a kernel reports such a weight; the CPU looks before
  template <class T>
  LEVIN_HD T operator()(T weight, T total) const {
    const T share = weight / total;
    if (share >= T(0) && share <= T(1)) return share;
#if defined(__CUDA_ARCH__) || defined(LEVIN_SIMT)
    if (faults) kernels::report_value(faults, levin::detail::Fault::not_a_probability, op, static_cast<double>(share));
#endif
    return T(0);
  }
};

struct Shares {
  static constexpr OpInfo info{.name = "multinomial"};
  Tensor forward(const Tensor& weights, const Tensor& totals) {
    Tensor y = empty(weights.shape(), weights.device(), weights.dtype());
    dispatch(info, weights, Types<double>{}, [&]<class T>(const auto& on, T) {
      pointwise::run(on, Share{}, pointwise::Signature<T, T, T>{}, y, weights, totals);
    });
    return y;
  }
};
LEVIN_OP_TABLE(Shares)

// Whether n weights are numbers from which `at_once` can be drawn. Four sums do not wait for each other.
bool may_draw(const double* w, std::int64_t n, std::int64_t at_once) {
  constexpr std::int64_t kSums = 4;
  std::array<double, kSums> total{};
  std::array<std::int64_t, kSums> positive{}, bad{};
  for (std::int64_t k = 0; k < n; ++k) {
    const auto lane = static_cast<std::size_t>(k % kSums);
    total[lane] += w[k];
    positive[lane] += w[k] > 0;
    bad[lane] += !(w[k] >= 0);
  }
  return bad[0] + bad[1] + bad[2] + bad[3] == 0 && positive[0] + positive[1] + positive[2] + positive[3] >= at_once &&
         std::isfinite(total[0] + total[1] + total[2] + total[3]);
}

// The CPU looks at the values before a number is drawn.
void check_weights(const Tensor& weights, std::int64_t at_once) {
  constexpr const char* op = "multinomial";
  const std::int64_t m = weights.size(-1), rows = weights.numel() / m;
  const Tensor dense = weights.contiguous();
  const double* w = dense.data<double>();
  std::atomic<bool> all_may{true};
  constexpr std::int64_t kTask = 16 * 1024;
  Cpu{}.parallel_for(rows, std::max<std::int64_t>(1, kTask / m), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (!may_draw(w + row * m, m, at_once)) all_may.store(false, std::memory_order_relaxed);
    }
  });
  if (all_may) return;
  for (std::int64_t row = 0; row < weights.numel() / m; ++row) {
    std::int64_t positive = 0;
    double total = 0;
    for (std::int64_t k = 0; k < m; ++k) {
      const double v = w[row * m + k];
      if (!(v >= 0 && std::isfinite(v)))
        fail<ConfigError>(op, ": weight ", k, " of row ", row, " is ", v, ", expected a finite number of at least 0");
      positive += v > 0;
      total += v;
    }
    if (positive < at_once || !std::isfinite(total))
      fail<ConfigError>(op, ": row ", row, " has ", positive, " weights above 0 with sum ", total, ", expected ",
                        at_once, " or more and a finite sum");
  }
}

}  // namespace

Tensor multinomial(const Tensor& weights, std::int64_t n, Generator& generator, Replacement replacement) {
  constexpr const char* op = "multinomial";
  check_float(op, weights);
  if (weights.rank() < 1 || weights.rank() > 2 || weights.size(-1) == 0)
    fail<ShapeError>(op, ": weights have shape ", weights.shape(), ", expected [m] or [rows, m] with m of 1 or more");
  const std::int64_t m = weights.size(-1);
  const bool returns = replacement == Replacement::yes;
  if (n < 1 || (!returns && n > m))
    fail<ShapeError>(op, ": n is ", n, ", expected at least 1", returns ? "" : " and at most ", returns ? "" : text(m),
                     returns ? "" : ", the number of categories");
  const NoGrad off;
  const Device device = weights.device();
  const Tensor wide = reshape(weights.detach().to(DType::f64), {-1, m});
  const std::int64_t rows = wide.size(0);
  if (device.is_cpu()) check_weights(wide, returns ? 1 : n);
  const Tensor shares = apply(Shares{}, wide, sum(wide, 1, KeepDim::yes));
  Tensor drawn;
  if (returns) {
    // The first category up to which the shares add up to more than a uniform number. What rounding puts past the end
    // is the last category that can be drawn.
    const Tensor up_to = cumsum(shares, 1);
    const Tensor u = rand({rows, n}, generator, device, DType::f64) * narrow(up_to, 1, m - 1, 1);
    const Tensor last = m - 1 - argmax(gt(flip(shares, 1), 0), 1, KeepDim::yes);
    drawn = minimum(searchsorted(up_to, u, SearchSide::right), expand(last, {rows, n}));
  } else {
    // Exponential clocks of these rates: the first n to ring are a draw without replacement, in its order.
    const Tensor u = rand({rows, m}, generator, device, DType::f64);
    constexpr double kLeast = 1e-300;  // no clock rings at 0
    drawn = topk(shares / clamp(neg(log1p(neg(u))), kLeast, {}), n, 1).indices;
  }
  return weights.rank() == 1 ? squeeze(drawn, {0}) : drawn;
}

}  // namespace levin
