#include "tests/ops/harness.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace levin::testing {

std::vector<NamedCase>& op_cases() {
  static std::vector<NamedCase> cases;
  return cases;
}

namespace {
const Device cpu = Device::cpu();
std::vector<double> doubles(const Tensor& t) { return t.detach().to(cpu).to(DType::f64).to_vector<double>(); }
}  // namespace

namespace {
struct Ends {
  double largest, normal, subnormal;
};
template <class T>
Ends ends_of() {
  using L = std::numeric_limits<T>;
  return {L::max(), L::min(), L::denorm_min()};
}
Ends ends(DType t) {
  if (t == DType::f64) return ends_of<double>();
  if (t == DType::f16) return {65504, 0x1p-14, 0x1p-24};
  if (t == DType::bf16) return {0x1.fep127, 0x1p-126, 0x1p-133};
  return ends_of<float>();
}
constexpr std::int64_t kSpecials = 11;
}  // namespace

std::vector<double> special_values(DType dtype, const std::vector<double>& kinks) {
  if (!is_float(dtype)) return {1, 2, 3, 5};
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const Ends e = ends(dtype);
  std::vector<double> all{nan,        inf,      -inf,      0.0,         -0.0,        e.largest,
                          -e.largest, e.normal, -e.normal, e.subnormal, -e.subnormal};
  all.insert(all.end(), kinks.begin(), kinks.end());
  return all;
}
Input special_row(const std::vector<double>& kinks) {
  Input in = real({kSpecials + static_cast<std::int64_t>(kinks.size())});
  in.special = Input::Special::columns;
  in.kinks = kinks;
  return in;
}
std::array<Input, 2> special_pairs(const std::vector<double>& a, const std::vector<double>& b) {
  const Shape shape{kSpecials + static_cast<std::int64_t>(a.size()), kSpecials + static_cast<std::int64_t>(b.size())};
  std::array<Input, 2> both{real(shape), real(shape)};
  both[0].special = Input::Special::rows;
  both[0].kinks = a;
  both[1].special = Input::Special::columns;
  both[1].kinks = b;
  return both;
}

Tensor make(const Input& in, DType dtype, std::mt19937_64& rng) {
  if (in.kind == Input::Kind::fixed) return in.value;
  if (in.kind == Input::Kind::index) dtype = DType::i64;
  if (in.kind == Input::Kind::mask) dtype = DType::b8;
  std::vector<double> values(static_cast<std::size_t>(in.shape.numel()));
  if (in.special != Input::Special::no) {
    const std::vector<double> all = special_values(dtype, in.kinks);
    const auto row = static_cast<std::size_t>(in.shape.back());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = all[(in.special == Input::Special::rows ? i / row : i % row) % all.size()];
    if (!is_float(dtype) && in.special == Input::Special::rows)
      for (double& v : values) v += 8;  // above the other operand: bytes do not wrap around
    return from_data(std::span<const double>(values), in.shape, cpu).to(dtype);
  }
  std::uniform_real_distribution<double> u(in.low, in.high);
  for (double& v : values) {
    v = u(rng);
    if (!is_float(dtype)) v = std::floor(dtype == DType::u8 ? std::abs(v) : v);
    if (dtype == DType::b8) v = v > (in.low + in.high) / 2 - 0.5 ? 1 : 0;
  }
  return from_data(std::span<const double>(values), in.shape, cpu).to(dtype);
}

Tensors make_inputs(const OpSample& s, DType dtype, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  Tensors inputs;
  for (const Input& in : s.inputs) inputs.push_back(make(in, dtype, rng));
  return inputs;
}

bool takes_dtype(const Input& in) { return in.kind == Input::Kind::real || in.kind == Input::Kind::constant; }

Tensors widened(const OpSample& s, const Tensors& inputs) {
  Tensors wide;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    wide.push_back(takes_dtype(s.inputs[i]) ? inputs[i].detach().to(DType::f64) : inputs[i]);
  return wide;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor x = a.detach().to(cpu).contiguous(), y = b.detach().to(cpu).contiguous();
  const std::size_t bytes = static_cast<std::size_t>(x.numel()) * itemsize(x.dtype());
  const auto* p = x.get().storage->data + static_cast<std::size_t>(x.offset()) * itemsize(x.dtype());
  const auto* q = y.get().storage->data + static_cast<std::size_t>(y.offset()) * itemsize(y.dtype());
  return bytes == 0 || std::memcmp(p, q, bytes) == 0;
}

void check_close(const OpCase& c, DType dtype, const Tensors& got, const Tensors& want, double floor) {
  REQUIRE(got.size() == want.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    REQUIRE(got[k].shape() == want[k].shape());
    const std::vector<double> a = doubles(got[k]), b = doubles(want[k]);
    double scale = floor;
    for (const double v : b) {
      if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
    }
    const double eps =
        is_float(got[k].dtype()) && is_float(dtype) ? std::max(epsilon(dtype), epsilon(got[k].dtype())) : 0;
    const double tolerance = c.ulps * eps * std::sqrt(c.sums) * scale;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::isnan(b[i]) && std::isnan(a[i])) continue;
      if (a[i] == b[i]) continue;
      // A reference beyond the dtype's range is infinity there.
      if (dtype == DType::f16 && std::abs(b[i]) > 65504 && std::isinf(a[i]) && (a[i] > 0) == (b[i] > 0)) continue;
      CAPTURE(i);
      CAPTURE(a[i]);
      CAPTURE(b[i]);
      REQUIRE(std::abs(a[i] - b[i]) <= tolerance);
    }
  }
}

void check_each(double ulps, double floor, NanMeans nan, DType dtype, const Tensor& got, const Tensor& want) {
  REQUIRE(got.shape() == want.shape());
  const std::vector<double> a = doubles(got), b = doubles(want);
  const bool exact = !is_float(dtype) || !is_float(got.dtype());
  const double eps = exact ? 0 : epsilon(dtype);
  const Ends e = ends(dtype);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(b[i]) && (nan == NanMeans::anything || std::isnan(a[i]))) continue;
    if (a[i] == b[i]) continue;
    // A reference beyond the dtype's range, or within an error of its end, is infinity there.
    const double tolerance = exact ? 0 : ulps * (eps * std::max(std::abs(b[i]), floor) + e.subnormal);
    if (std::isinf(a[i]) && (a[i] > 0) == (b[i] > 0) && std::abs(b[i]) + tolerance >= e.largest) continue;
    CAPTURE(i);
    CAPTURE(a[i]);
    CAPTURE(b[i]);
    REQUIRE(std::abs(a[i] - b[i]) <= tolerance);
  }
}

void check_slopes(const OpCase& c, const OpSample& s) {
  for (const DType dtype : c.dtypes) {
    if (!is_float(dtype)) continue;
    CAPTURE(text(dtype));
    Tensors in = make_inputs(s, dtype, 1);
    const Tensors want = s.slopes(widened(s, in));
    for (Tensor& t : in) {
      t = t.detach();
      t.requires_grad_();
    }
    const Tensors out = s.call(in), got = grad(out, in, std::array{ones_like(out[0].detach())}, {.allow_unused = true});
    for (std::size_t k = 0; k < got.size(); ++k) {
      CAPTURE(k);
      // Rules in public ops round after each of a few steps, whose terms may be 1.
      check_each(2 * c.ulps, std::max(s.floor, 1.0), NanMeans::anything, dtype, got[k], want[k]);
    }
  }
}

Tensor laid_out(const Tensor& t, Layout layout) {
  const Tensor x = t.detach();
  if (layout == Layout::channels_last) return x.rank() == 4 ? x.contiguous(MemoryFormat::channels_last) : x;
  if (x.rank() == 0) layout = Layout::unaligned;
  if (layout == Layout::transposed) {
    std::vector<std::int64_t> order;
    for (int d = x.rank() - 1; d >= 0; --d) order.push_back(d);
    return permute(permute(x, Dims(std::span<const std::int64_t>(order))).clone(),
                   Dims(std::span<const std::int64_t>(order)));
  }
  if (layout == Layout::stepped) {
    const int last = x.rank() - 1;
    Tensor room = empty(x.shape().with(last, x.shape()[last] * 2), x.device(), x.dtype());
    Tensor part = slice(room, last, 0, room.size(last), 2);
    copy_(part, x);
    return part;
  }
  Tensor room = empty({x.numel() + 1}, x.device(), x.dtype());
  Tensor part = as_strided(room, x.shape(), contiguous_strides(x.shape()), 1);
  copy_(part, x);
  return part;
}

Run run(const OpSample& s, const Tensors& given, int only) {
  Tensors in, wanted;
  for (std::size_t i = 0; i < given.size(); ++i) {
    in.push_back(given[i].detach());
    const bool takes = s.inputs[i].kind == Input::Kind::real && is_float(given[i].dtype());
    if (takes && (only < 0 || only == static_cast<int>(i))) {
      in.back().requires_grad_();
      wanted.push_back(in.back());
    }
  }
  Run r;
  r.outputs = s.call(in);
  Tensors roots, seeds;
  for (const Tensor& t : r.outputs) {
    if (!t.requires_grad()) continue;
    roots.push_back(t);
    Tensor seed = empty(t.shape(), cpu, DType::f64);
    double* p = seed.mutable_data<double>();
    for (std::int64_t i = 0; i < seed.numel(); ++i) p[i] = 0.5 + 0.25 * double(i % 5);
    seeds.push_back(seed.to(t.dtype()).to(t.device()));
  }
  r.gradients.resize(wanted.size());
  if (!roots.empty() && !wanted.empty()) r.gradients = grad(roots, wanted, seeds, {.allow_unused = true});
  return r;
}

void check_gradients(const OpCase& c, const OpSample& s, DType dtype, const Run& got, const Run& want) {
  Tensors a, b;
  for (std::size_t k = 0; k < want.gradients.size(); ++k) {
    REQUIRE(want.gradients[k].defined() == got.gradients[k].defined());
    if (!want.gradients[k].defined()) continue;
    a.push_back(got.gradients[k]);
    b.push_back(want.gradients[k]);
  }
  check_close(c, dtype, a, b, s.cancelled_terms);
}

Tensor map_reference(const Tensor& a, const std::function<double(double)>& f) {
  std::vector<double> x = doubles(a);
  for (double& v : x) v = f(v);
  return from_data(std::span<const double>(x), a.shape(), cpu);
}

Tensor map_reference(const Tensor& a, const Tensor& b, const std::function<double(double, double)>& f) {
  const Shape shape = broadcast_shapes("reference", a.shape(), b.shape());
  const std::vector<double> x = doubles(expand(a.detach(), shape)), y = doubles(expand(b.detach(), shape));
  std::vector<double> z(x.size());
  for (std::size_t i = 0; i < z.size(); ++i) z[i] = f(x[i], y[i]);
  return from_data(std::span<const double>(z), shape, cpu);
}

}  // namespace levin::testing
