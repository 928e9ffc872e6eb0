// Random tensors and dropout. Each op reserves its counters through reserve_random, so checkpoint() can repeat them. On
// meta no op draws.
#include <cmath>
#include <limits>

#include "autograd/ops/pointwise/pointwise.h"
#include "autograd/random_tape.h"
#include "kernels/random/random.cuh"

namespace levin {
namespace {

constexpr OpInfo kRand{.name = "rand"}, kRandn{.name = "randn"}, kRandint{.name = "randint"},
    kRandperm{.name = "randperm"};

// For both executors.
using kernels::cpu::dropout;
using kernels::cpu::normal;
using kernels::cpu::permutation;
using kernels::cpu::randint;
using kernels::cpu::uniform;
using kernels::gpu::dropout;
using kernels::gpu::normal;
using kernels::gpu::permutation;
using kernels::gpu::randint;
using kernels::gpu::uniform;

[[nodiscard]] bool draws(const Tensor& x) { return !x.device().is_meta(); }

// Runs before a generator advances: a factory that throws changes nothing.
void check_float(const OpInfo& info, Device device, DType dtype) {
  if (!is_float(dtype)) fail<UnsupportedError>(info.name, ": ", dtype, " on ", device, "; has f32, f64, f16, bf16");
}

void check_probability(const char* op, double p) {
  if (!(p >= 0 && p <= 1)) fail<ConfigError>(op, ": p is ", p, ", expected a probability in [0, 1]");
}

// 1 where u < p.
struct Below {
  levin::detail::FaultSlot* faults =
      nullptr;                   // where a kernel reports a p that is no probability; the CPU looks before
  const char* op = "bernoulli";  // on the host: slots hold its pointers
  template <class U, class P>
  LEVIN_HD P operator()(U u, P p) const {
#if defined(__CUDA_ARCH__) || defined(LEVIN_SIMT)
    if (faults && !(p >= P(0) && p <= P(1))) {  // the negation also finds NaN
      kernels::report_value(faults, levin::detail::Fault::not_a_probability, op, static_cast<double>(p));
      return P(0);
    }
#endif
    return u < U(p) ? P(1) : P(0);
  }
};

struct Bernoulli {
  static constexpr OpInfo info{.name = "bernoulli"};
  Generator* generator;

  Tensor forward(const Tensor& p) {
    Tensor out = empty(p.shape(), p.device(), p.dtype());
    dispatch(info, p, kFloats, [&]<class T>(const auto& on, T) {
      using A = kernels::Accum<T>;
      check_values(on, T{}, p, out);
      const RandomRange range = detail::reserve_random(*generator, p.numel(), p.device());
      const Tensor u = empty(p.shape(), p.device(), dtype_of<A>);
      uniform(on, ptr<A>(u), u.numel(), range, 0.0, 1.0);
      pointwise::run(on, Below{}, pointwise::Signature<T, A, T>{}, out, u, p);
    });
    return out;
  }

 private:
  struct Outside {
    template <class T>
    LEVIN_HD T operator()(T p) const {
      return p >= T(0) && p <= T(1) ? T(0) : T(1);
    }
  };
  // `out` is scratch. On a device the host does not wait for the values: Below reports a bad one.
  template <class T>
  static void check_values(const Cpu& on, T, const Tensor& p, const Tensor& out) {
    // The negation also catches NaN.
    pointwise::run(on, Outside{}, pointwise::Signature<T, T>{}, out, p);
    const T* bad = ptr<T>(out);
    for (std::int64_t i = 0; i < p.numel(); ++i) {
      if (kernels::Accum<T>(bad[i]) != 0) fail_value(p, i);
    }
  }
  template <class T>
  static void check_values(const Gpu&, T, const Tensor&, const Tensor&) {}
  [[noreturn, gnu::noinline, gnu::cold]] static void fail_value(const Tensor& p, std::int64_t i) {
    fail<ConfigError>("bernoulli: p is ",
                      p.contiguous().to(DType::f64).to_vector<double>()[static_cast<std::size_t>(i)], " at position ",
                      i, ", expected probabilities in [0, 1]");
  }
};

// y = x / (1 - p), or 0 with probability p. The mask is a function of the range: backward draws the same numbers again
// and keeps no mask. The op is linear in x, hence its own derivative.
// Numbers are drawn in the order of memory, so the gradient is brought to the format of x.
struct Dropout {
  static constexpr OpInfo info{.name = "dropout"};
  double p;
  RandomRange range;
  MemoryFormat format;

  Tensor forward(const Tensor& x) {
    const Tensor dense = x.contiguous(format);
    Tensor y = empty_like(dense);
    dispatch(info, x, kFloats,
             [&]<class T>(const auto& on, T) { dropout(on, ptr<const T>(dense), ptr<T>(y), y.numel(), range, p); });
    return y;
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {apply(Dropout{p, range, format}, gy)}; }
};

LEVIN_OP_TABLE(Bernoulli)
LEVIN_OP_TABLE(Dropout)

}  // namespace

Tensor rand(const Shape& shape, Generator& generator, Device device, DType dtype) {
  check_float(kRand, device, dtype);
  Tensor out = empty(shape, device, dtype);
  dispatch(kRand, out, kFloats, [&]<class T>(const auto& on, T) {
    uniform(on, ptr<T>(out), out.numel(), detail::reserve_random(generator, out.numel(), device), 0.0, 1.0);
  });
  return out;
}

Tensor randn(const Shape& shape, Generator& generator, Device device, DType dtype) {
  check_float(kRandn, device, dtype);
  Tensor out = empty(shape, device, dtype);
  dispatch(kRandn, out, kFloats, [&]<class T>(const auto& on, T) {
    normal(on, ptr<T>(out), out.numel(), detail::reserve_random(generator, out.numel(), device), 0.0, 1.0);
  });
  return out;
}

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, Generator& generator, Device device,
               DType dtype) {
  if (low >= high) fail<ConfigError>("randint: low is ", low, " and high ", high, ", expected low < high");
  // The dtype must hold every integer of the range.
  std::int64_t least = 0, most = 0;
  switch (dtype) {
    case DType::f32: most = std::int64_t{1} << 24, least = -most; break;
    case DType::f64: most = std::int64_t{1} << 53, least = -most; break;
    case DType::f16: most = 1 << 11, least = -most; break;
    case DType::bf16: most = 1 << 8, least = -most; break;
    case DType::i32:
      least = std::numeric_limits<std::int32_t>::min(), most = std::numeric_limits<std::int32_t>::max();
      break;
    case DType::i64:
      least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
      break;
    case DType::u8: most = 255; break;
    case DType::b8: most = 1; break;
    case DType::i8: least = -128, most = 127; break;
    case DType::i16: least = -32768, most = 32767; break;
  }
  if (low < least || high - 1 > most) {
    fail<ConfigError>("randint: integers from ", low, " to ", high - 1, " do not fit ", dtype, ", which holds ", least,
                      " to ", most);
  }
  if (is_storage(dtype)) return randint(low, high, shape, generator, device, DType::i32).to(dtype);
  Tensor out = empty(shape, device, dtype);
  dispatch(kRandint, out, kAll, [&]<class T>(const auto& on, T) {
    randint(on, ptr<T>(out), out.numel(), detail::reserve_random(generator, out.numel(), device), low, high);
  });
  return out;
}

Tensor randperm(std::int64_t n, Generator& generator, Device device) {
  if (n < 0) fail<ShapeError>("randperm: n is ", n, ", expected 0 or more");
  Tensor out = empty({n}, device, DType::i64);
  dispatch(kRandperm, out, kIndex, [&]<class T>(const auto& on, T) {
    permutation(on, ptr<T>(out), n, detail::reserve_random(generator, n, device));
  });
  return out;
}

Tensor bernoulli(const Tensor& p, Generator& generator) { return apply(Bernoulli{&generator}, p); }

Tensor dropout(const Tensor& x, double p, Generator& generator) {
  check_probability("dropout", p);
  check_float(Dropout::info, x.device(), x.dtype());
  if (p == 0) return x;
  const RandomRange range = draws(x) ? detail::reserve_random(generator, x.numel(), x.device()) : RandomRange{};
  return apply(Dropout{p, range, x.suggest_memory_format()}, x);
}

Tensor feature_dropout(const Tensor& x, double p, Generator& generator) {
  constexpr const char* op = "feature_dropout";
  check_probability(op, p);
  check_float({.name = op}, x.device(), x.dtype());
  if (x.rank() < 2) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [N, C, ...]");
  if (p == 0) return x;
  Shape channels = x.shape();
  for (int d = 2; d < x.rank(); ++d) channels = channels.with(d, 1);
  return x * dropout(ones(channels, x.device(), x.dtype()), p, generator);
}

Tensor alpha_dropout(const Tensor& x, double p, Generator& generator) {
  constexpr const char* op = "alpha_dropout";
  check_probability(op, p);
  check_float({.name = op}, x.device(), x.dtype());
  if (p == 0) return x;
  if (p == 1) return x * 0;
  const double limit = -1.7580993408473766;  // of SELU: -scale * alpha
  // Dropped elements are `limit`: the mean is p * limit, the variance (1 - p) (1 + p * limit^2).
  const double scale = 1 / std::sqrt((1 - p) * (1 + p * limit * limit));
  const Tensor dropped = eq(bernoulli(full(x.shape(), 1 - p, x.device()), generator), 0);
  return masked_fill(x, dropped, limit) * scale - p * limit * scale;
}

}  // namespace levin
