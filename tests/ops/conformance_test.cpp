// One suite over the op table; see samples.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <unordered_set>
#include <vector>

#include "autograd/op_table.h"
#include "tests/device.h"
#include "tests/ops/harness.h"

namespace levin::testing {

namespace {

bool small(const OpSample& s) {
  std::int64_t n = 0;
  for (const Input& in : s.inputs) n += in.shape.numel();
  return n <= 64;
}

void check_values(const OpCase& c, const OpSample& s) {
  for (const DType dtype : c.dtypes) {
    CAPTURE(text(dtype));
    const Tensors inputs = make_inputs(s, dtype, 1);
    const Tensors got = s.call(inputs), want = s.reference(widened(s, inputs));
    if (s.slopes)
      check_each(c.ulps, s.floor, NanMeans::nan, dtype, got[0], want[0]);
    else
      check_close(c, dtype, got, want);
  }
}

void check_layouts(const OpCase& c, const OpSample& s) {
  for (const DType dtype : c.dtypes) {
    if (dtype != DType::f32 && dtype != DType::bf16 && dtype != c.dtypes.front()) continue;
    CAPTURE(text(dtype));
    const Tensors dense = make_inputs(s, dtype, 2);
    const Run want = run(s, dense);
    for (const Layout layout : kLayouts) {
      CAPTURE(int(layout));
      Tensors other;
      for (const Tensor& t : dense) other.push_back(laid_out(t, layout));
      const Run got = run(s, other);
      for (std::size_t k = 0; k < want.outputs.size(); ++k) {
        if (!c.layout_changes_sums) REQUIRE(same_bits(got.outputs[k], want.outputs[k]));
      }
      if (c.layout_changes_sums) check_close(c, dtype, got.outputs, want.outputs);
      if (layout == Layout::channels_last) check_gradients(c, s, dtype, got, want);
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
  const Tensors inputs = make_inputs(s, s.one.value_or(c.dtypes.front()), 3);
  set_num_threads(1);
  const Run one = run(s, inputs);
  set_num_threads(3);
  const Run three = run(s, inputs);
  set_num_threads(before);
  for (std::size_t k = 0; k < one.outputs.size(); ++k) REQUIRE(same_bits(one.outputs[k], three.outputs[k]));
  for (std::size_t k = 0; k < one.gradients.size(); ++k) REQUIRE(same_bits(one.gradients[k], three.gradients[k]));
}

void check_meta(const OpCase& c, const OpSample& s) {
  const Tensors inputs = make_inputs(s, s.one.value_or(c.dtypes.front()), 4);
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
  const DType dtype =
      s.one.value_or(std::count(c.dtypes.begin(), c.dtypes.end(), DType::f32) ? DType::f32 : c.dtypes.front());
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

// A graph that nothing runs, of the call or of its gradients, ends with its results: an op that kept one of them with
// its history would keep itself.
void check_freed(const OpCase& c, const OpSample& s) {
  const DType dtype =
      s.one.value_or(std::count(c.dtypes.begin(), c.dtypes.end(), DType::f32) ? DType::f32 : c.dtypes.front());
  Tensors in, wanted;
  const Tensors given = make_inputs(s, dtype, 9);
  for (std::size_t i = 0; i < given.size(); ++i) {
    in.push_back(given[i].detach());
    if (s.inputs[i].kind != Input::Kind::real || !is_float(dtype)) continue;
    in.back().requires_grad_();
    wanted.push_back(in.back());
  }
  const auto edges = [&] {  // what holds the leaves' nodes
    std::vector<std::uint32_t> counts;
    for (const Tensor& leaf : wanted) counts.push_back(leaf.get().meta.get()->use_count());
    return counts;
  };
  const std::vector<std::uint32_t> before = edges();
  for (const bool with_gradients : {false, true}) {
    CAPTURE(with_gradients);
    {
      Tensors roots, seeds;
      for (const Tensor& t : s.call(in)) {
        if (!t.requires_grad()) continue;
        roots.push_back(t);
        seeds.push_back(ones_like(t.detach()));
      }
      if (with_gradients && !roots.empty())
        (void)grad(roots, wanted, seeds, {.create_graph = true, .allow_unused = true});
    }
    CHECK(edges() == before);
  }
}

// A write to an input between forward and backward either changes no gradient or is an AutogradError.
void check_versions(const OpCase& c, const OpSample& s) {
  const DType dtype =
      s.one.value_or(std::count(c.dtypes.begin(), c.dtypes.end(), DType::f32) ? DType::f32 : c.dtypes.front());
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

// An undefined operand gives the right error, or is optional where the op documents that.
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

// Operands that must agree: one has another dtype, and one lies on another device.
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
      if (differentiable.count(op) && !(c.needs_device && !test::launching_device())) {
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
TEST_CASE("ops: derivatives of pointwise ops match their f64 reference in every dtype") {
  int checked = 0;
  for_each_case([&](const OpCase& c, const OpSample& s) {
    if (!c.differentiable || !s.slopes) return;
    check_slopes(c, s);
    ++checked;
  });
  CHECK(checked > 60);
}
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
TEST_CASE("ops: a graph that nothing runs is freed with its results") {
  for_each_case([](const OpCase& c, const OpSample& s) {
    if (c.differentiable) check_freed(c, s);
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
