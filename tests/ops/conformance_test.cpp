// One suite over the op table; see samples.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <unordered_set>

#include "autograd/op_table.h"
#include "tests/ops/samples.h"

namespace levin::testing {

std::vector<NamedCase>& op_cases() {
  static std::vector<NamedCase> cases;
  return cases;
}

namespace {

const Device cpu = Device::cpu();

std::vector<double> doubles(const Tensor& t) { return t.detach().to(DType::f64).to_vector<double>(); }

// Random values by the standard library's engine, not Levin's: what is under test does not feed itself.
Tensor make(const Input& in, DType dtype, std::mt19937_64& rng) {
  if (in.kind == Input::Kind::fixed) return in.value;
  if (in.kind == Input::Kind::index) dtype = DType::i64;
  if (in.kind == Input::Kind::mask) dtype = DType::b8;
  std::vector<double> values(static_cast<std::size_t>(in.shape.numel()));
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
  const Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  const std::size_t bytes = static_cast<std::size_t>(x.numel()) * itemsize(x.dtype());
  const auto* p = x.get().storage->data + static_cast<std::size_t>(x.offset()) * itemsize(x.dtype());
  const auto* q = y.get().storage->data + static_cast<std::size_t>(y.offset()) * itemsize(y.dtype());
  return bytes == 0 || std::memcmp(p, q, bytes) == 0;
}

// Largest difference allowed: ulps * eps * sqrt(sums) of the largest reference value.
void check_close(const OpCase& c, DType dtype, const Tensors& got, const Tensors& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    REQUIRE(got[k].shape() == want[k].shape());
    const std::vector<double> a = doubles(got[k]), b = doubles(want[k]);
    double scale = 0;
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

// The same values in another layout: dimensions reversed in memory, every second element, off by one element, broadcast.
enum class Layout { transposed, stepped, unaligned };
Tensor laid_out(const Tensor& t, Layout layout) {
  const Tensor x = t.detach();
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

struct Run {
  Tensors outputs, gradients;  // of the real inputs, undefined where nothing flows
};

// Forward and, for floats, backward with fixed cotangents; `only` restricts requires_grad to one input.
Run run(const OpSample& s, const Tensors& given, int only = -1) {
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
    Tensor seed = empty_like(t, DType::f64);
    double* p = seed.mutable_data<double>();
    for (std::int64_t i = 0; i < seed.numel(); ++i) p[i] = 0.5 + 0.25 * double(i % 5);
    seeds.push_back(seed.to(t.dtype()));
  }
  r.gradients.resize(wanted.size());
  if (!roots.empty() && !wanted.empty()) r.gradients = grad(roots, wanted, seeds, {.allow_unused = true});
  return r;
}

bool small(const OpSample& s) {
  std::int64_t n = 0;
  for (const Input& in : s.inputs) n += in.shape.numel();
  return n <= 64;
}

void check_values(const OpCase& c, const OpSample& s) {
  for (const DType dtype : c.dtypes) {
    CAPTURE(text(dtype));
    const Tensors inputs = make_inputs(s, dtype, 1);
    check_close(c, dtype, s.call(inputs), s.reference(widened(s, inputs)));
  }
}

void check_layouts(const OpCase& c, const OpSample& s) {
  for (const DType dtype : c.dtypes) {
    if (dtype != DType::f32 && dtype != DType::bf16 && dtype != c.dtypes.front()) continue;
    CAPTURE(text(dtype));
    const Tensors dense = make_inputs(s, dtype, 2);
    const Run want = run(s, dense);
    for (const Layout layout : {Layout::transposed, Layout::stepped, Layout::unaligned}) {
      CAPTURE(int(layout));
      Tensors other;
      for (const Tensor& t : dense) other.push_back(laid_out(t, layout));
      const Run got = run(s, other);
      for (std::size_t k = 0; k < want.outputs.size(); ++k) {
        if (!c.layout_changes_sums) REQUIRE(same_bits(got.outputs[k], want.outputs[k]));
      }
      if (c.layout_changes_sums) check_close(c, dtype, got.outputs, want.outputs);
    }
    // Expanded: along the first dimension every row is the first one.
    Tensors rows, expanded;
    bool any_expanded = false;
    for (std::size_t i = 0; i < dense.size(); ++i) {
      const Tensor& t = dense[i];
      if (takes_dtype(s.inputs[i]) && t.rank() > 0 && t.size(0) > 1) {
        expanded.push_back(expand(narrow(t.detach(), 0, 0, 1), t.shape()));
        any_expanded = true;
      } else {
        expanded.push_back(t.detach());
      }
      rows.push_back(expanded.back().clone());
    }
    if (!any_expanded) continue;
    const Run a = run(s, rows), b = run(s, expanded);
    for (std::size_t k = 0; k < a.outputs.size(); ++k) {
      if (!c.layout_changes_sums) REQUIRE(same_bits(a.outputs[k], b.outputs[k]));
    }
    if (c.layout_changes_sums) check_close(c, dtype, b.outputs, a.outputs);
  }
}

void check_threads(const OpCase& c, const OpSample& s) {
  const int before = num_threads();
  const Tensors inputs = make_inputs(s, c.dtypes.front(), 3);
  set_num_threads(1);
  const Run one = run(s, inputs);
  set_num_threads(3);
  const Run three = run(s, inputs);
  set_num_threads(before);
  for (std::size_t k = 0; k < one.outputs.size(); ++k) REQUIRE(same_bits(one.outputs[k], three.outputs[k]));
  for (std::size_t k = 0; k < one.gradients.size(); ++k) REQUIRE(same_bits(one.gradients[k], three.gradients[k]));
}

void check_meta(const OpCase& c, const OpSample& s) {
  const Tensors inputs = make_inputs(s, c.dtypes.front(), 4);
  Tensors meta;
  for (const Tensor& t : inputs) meta.push_back(t.to(Device::meta()));
  if (c.values_on_meta) {
    REQUIRE_THROWS_AS((void)s.call(meta), UnsupportedError);
    return;
  }
  const Tensors want = s.call(inputs), got = s.call(meta);
  REQUIRE(got.size() == want.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    REQUIRE(got[k].device() == Device::meta());
    REQUIRE(got[k].shape() == want[k].shape());
    REQUIRE(got[k].dtype() == want[k].dtype());
  }
}

void collect_names(const Tensors& roots, std::set<std::string>& names) {
  std::vector<Node*> stack;
  std::unordered_set<Node*> seen;
  for (const Tensor& t : roots) {
    if (t.defined() && t.requires_grad()) stack.push_back(edge_of(t).node.get());
  }
  while (!stack.empty()) {
    Node* n = stack.back();
    stack.pop_back();
    if (!seen.insert(n).second) continue;
    names.insert(n->info().name);
    for (const Edge& e : n->edges()) {
      if (e.node) stack.push_back(e.node.get());
    }
  }
}

// Names of the ops on the tape of the forward, of the backward, and of the backward's backward.
void trace(const OpSample& s, std::set<std::string>& names) {
  Tensors in = make_inputs(s, DType::f64, 5), wanted;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (s.inputs[i].kind != Input::Kind::real) continue;
    in[i] = in[i].detach();
    in[i].requires_grad_();
    wanted.push_back(in[i]);
  }
  const Tensors out = s.call(in);
  collect_names(out, names);
  Tensors roots, seeds;
  for (const Tensor& t : out) {
    if (!t.requires_grad()) continue;
    roots.push_back(t);
    seeds.push_back(ones_like(t.detach()));
    seeds.back().requires_grad_();
  }
  if (roots.empty()) return;
  Tensors first;
  for (Tensor& g : grad(roots, wanted, seeds, {.create_graph = true, .allow_unused = true})) {
    if (g.defined() && g.requires_grad()) first.push_back(std::move(g));
  }
  collect_names(first, names);
  // A linear op's derivative appears only when its gradient is differentiated by the cotangent.
  if (!first.empty()) {
    Tensors again;
    for (const Tensor& g : first) {
      again.push_back(ones_like(g.detach()));
      again.back().requires_grad_();
    }
    collect_names(grad(first, seeds, again, {.create_graph = true, .allow_unused = true}), names);
  }
}

void check_gradients(const OpSample& s) {
  Tensors in = make_inputs(s, DType::f64, 6);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (s.inputs[i].kind != Input::Kind::real) continue;
    in[i] = in[i].detach();
    in[i].requires_grad_();
  }
  const GradcheckFn fn = [&](std::span<const Tensor> x) { return s.call(Tensors(x.begin(), x.end())); };
  const GradcheckResult first = gradcheck(fn, in);
  CHECK_MESSAGE(first.ok, "gradcheck: " << first.message);
  Generator generator(7);
  const GradcheckResult second = gradgradcheck(fn, in, generator);
  CHECK_MESSAGE(second.ok, "gradgradcheck: " << second.message);
}

void check_need_masks(const OpCase& c, const OpSample& s) {
  const DType dtype = std::count(c.dtypes.begin(), c.dtypes.end(), DType::f32) ? DType::f32 : c.dtypes.front();
  const Tensors inputs = make_inputs(s, dtype, 8);
  const Run all = run(s, inputs);
  std::size_t k = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (s.inputs[i].kind != Input::Kind::real || !is_float(dtype)) continue;
    CAPTURE(i);
    const Run one = run(s, inputs, static_cast<int>(i));
    REQUIRE(one.gradients.size() == 1);
    REQUIRE(same_bits(one.gradients[0], all.gradients[k++]));
  }
}

// Writing to an input between forward and backward either changes no gradient or is an AutogradError.
void check_versions(const OpCase& c, const OpSample& s) {
  const DType dtype = std::count(c.dtypes.begin(), c.dtypes.end(), DType::f32) ? DType::f32 : c.dtypes.front();
  for (std::size_t written = 0; written < s.inputs.size(); ++written) {
    CAPTURE(written);
    Tensors in, wanted;
    const Tensors given = make_inputs(s, dtype, 9);
    for (std::size_t i = 0; i < given.size(); ++i) {
      in.push_back(given[i].detach().clone());
      if (s.inputs[i].kind == Input::Kind::real && is_float(dtype)) {
        in.back().requires_grad_();
        wanted.push_back(in.back());
      }
    }
    if (wanted.empty()) return;
    const Tensors out = s.call(in);
    Tensors roots, seeds;
    for (const Tensor& t : out) {
      if (t.requires_grad()) {
        roots.push_back(t);
        seeds.push_back(ones_like(t.detach()));
      }
    }
    if (roots.empty()) return;
    const GradOptions keep{.retain_graph = true, .allow_unused = true};
    const Tensors before = grad(roots, wanted, seeds, keep);
    {
      const NoGrad off;
      fill_(in[written], 1);
    }
    try {
      const Tensors after = grad(roots, wanted, seeds, keep);
      for (std::size_t k = 0; k < before.size(); ++k) REQUIRE(same_bits(before[k], after[k]));
    } catch (const AutogradError& e) { CHECK(std::string(e.what()).find("fill_") != std::string::npos); }
  }
}

// An undefined operand is refused by the error that says so, or left out where the op documents it.
void check_undefined(const OpCase& c, const OpSample& s) {
  const Tensors inputs = make_inputs(s, c.dtypes.front(), 12);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    CAPTURE(i);
    Tensors broken = inputs;
    broken[i] = Tensor();
    if (s.inputs[i].optional) {
      const Tensors whole = s.call(inputs), without = s.call(broken);
      REQUIRE(without.size() == whole.size());
      for (std::size_t k = 0; k < whole.size(); ++k) {
        CHECK(without[k].shape() == whole[k].shape());
        CHECK(without[k].dtype() == whole[k].dtype());
      }
    } else {
      CHECK_THROWS_WITH_AS((void)s.call(broken), doctest::Contains("undefined"), StateError);
    }
  }
}

void check_refused_dtypes(const OpCase& c, const OpSample& s) {
  const bool has_real = std::any_of(s.inputs.begin(), s.inputs.end(), takes_dtype);
  if (!has_real) return;
  for (const DType dtype : kAllDTypes) {
    if (std::count(c.dtypes.begin(), c.dtypes.end(), dtype)) continue;
    CAPTURE(text(dtype));
    const Tensors inputs = make_inputs(s, dtype, 10);
    bool refused = false;
    try {
      (void)s.call(inputs);
    } catch (const UnsupportedError&) { refused = true; } catch (const DTypeError&) {
      refused = true;
    }
    REQUIRE(refused);
  }
}

// Operands that must agree: one of another dtype, and one on another device.
void check_mixed(const OpCase& c, const OpSample& s) {
  std::vector<std::size_t> takes;
  for (std::size_t i = 0; i < s.inputs.size(); ++i) {
    if (s.inputs[i].kind == Input::Kind::real) takes.push_back(i);
  }
  if (takes.size() < 2) return;
  const Tensors inputs = make_inputs(s, c.dtypes.front(), 11);
  Tensors devices = inputs;
  devices[takes[1]] = devices[takes[1]].to(Device::meta());
  CHECK_THROWS_AS((void)s.call(devices), DeviceError);
}

void check_errors(const OpCase& c) {
  for (const OpError& e : c.errors) {
    CAPTURE(e.what);
    bool thrown = false;
    try {
      e.call();
    } catch (const Error& error) {
      thrown = true;
      CHECK_MESSAGE(e.is(error), "another type: " << std::string(error.what()));
      const std::string message = error.what();  // doctest would show a char* as an address
      CHECK_MESSAGE(message.find(e.contains) != std::string::npos, "expected \"" << e.contains << "\" in: " << message);
    }
    CHECK_MESSAGE(thrown, "nothing was thrown");
  }
}

}  // namespace

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

TEST_CASE("every op of the table has samples, and every case runs the ops it claims") {
  std::set<std::string> covered, table, differentiable;
  for (const OpEntry& e : op_table()) {
    table.insert(e.info->name);
    if (e.differentiable) differentiable.insert(e.info->name);
  }
  CHECK(table.size() > 20);
  for (const NamedCase& named : op_cases()) {
    CAPTURE(std::string(named.name));
    const OpCase c = named.make();
    CHECK_FALSE(c.samples.empty());
    std::set<std::string> run_ops;
    bool has_empty = !c.no_empty.empty(), has_single = !c.no_single.empty();
    for (const OpSample& s : c.samples) {
      bool all_single = true, any_empty = false;
      for (const Input& in : s.inputs) {
        any_empty |= in.shape.numel() == 0;
        all_single &= in.shape.numel() == 1;
      }
      has_empty |= any_empty;
      has_single |= all_single;
      if (c.differentiable && small(s)) trace(s, run_ops);
    }
    CHECK_MESSAGE(has_empty, named.name << " has no sample with an empty tensor");
    CHECK_MESSAGE(has_single, named.name << " has no sample with one element");
    CHECK_MESSAGE(!c.errors.empty(), named.name << " has no error sample");
    for (const std::string& op : c.ops) {
      CHECK_MESSAGE(table.count(op), named.name << " claims " << op << ", which is not in the op table");
      if (differentiable.count(op)) {
        CHECK_MESSAGE(c.differentiable,
                      named.name << " claims the differentiable op " << op << " but checks no gradients");
        CHECK_MESSAGE(run_ops.count(op), named.name << " claims " << op << " but does not run it");
      }
      covered.insert(op);
    }
  }
  for (const std::string& op : table) CHECK_MESSAGE(covered.count(op), "no samples for op " << op);
}

namespace {
template <class F>
void for_each_case(F&& f) {
  for (const NamedCase& named : op_cases()) {
    const OpCase c = named.make();
    for (std::size_t i = 0; i < c.samples.size(); ++i) {
      INFO("case " << std::string(named.name) << ", sample " << i);
      f(c, c.samples[i]);
    }
  }
}
}  // namespace

TEST_CASE("ops: values match the f64 reference in every dtype") { for_each_case(check_values); }
TEST_CASE("ops: strided, transposed, unaligned and expanded inputs give the same result") {
  for_each_case(check_layouts);
}
TEST_CASE("ops: the number of threads changes no bit") { for_each_case(check_threads); }
TEST_CASE("ops: the meta device gives the same shapes and dtypes") { for_each_case(check_meta); }
TEST_CASE("ops: gradcheck and gradgradcheck in f64") {
  for_each_case([](const OpCase& c, const OpSample& s) {
    if (c.differentiable && s.gradcheck && small(s)) check_gradients(s);
  });
}
TEST_CASE("ops: each need mask gives the gradients of all needs") {
  for_each_case([](const OpCase& c, const OpSample& s) {
    if (c.differentiable) check_need_masks(c, s);
  });
}
TEST_CASE("ops: a write to an input before backward changes nothing or is an error") {
  for_each_case([](const OpCase& c, const OpSample& s) {
    if (c.differentiable) check_versions(c, s);
  });
}
TEST_CASE("ops: an undefined operand is a StateError, or left out where the op lets it be") {
  for_each_case(check_undefined);
}
TEST_CASE("ops: dtypes without a kernel are refused by a typed error") { for_each_case(check_refused_dtypes); }
TEST_CASE("ops: operands on two devices are a DeviceError") { for_each_case(check_mixed); }
TEST_CASE("ops: error samples throw their type and name the op") {
  for (const NamedCase& named : op_cases()) {
    INFO("case " << std::string(named.name));
    check_errors(named.make());
  }
}

}  // namespace levin::testing
