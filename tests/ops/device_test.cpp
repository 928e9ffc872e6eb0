// The op table on the device that launches kernels, cuda or simt: the same samples and references as on the CPU.
#include <doctest/doctest.h>

#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

#include "levin/stream.h"
#include "tests/device.h"
#include "tests/ops/harness.h"
#include "tests/skip.h"
#if defined(LEVIN_SIMT)
#include "kernels/simt/run.h"
#endif

namespace levin::testing {
namespace {

Tensors moved(const Tensors& inputs, Device device) {
  Tensors there;
  for (const Tensor& t : inputs) there.push_back(t.detach().to(device));
  return there;
}

// LEVIN_OPS=REGEX in the environment selects cases by name (levin_tests --list-ops), so that a memory checker that
// takes minutes gets a few at a time. It selects tests and changes no result.
std::vector<NamedCase> chosen_cases() {
  const char* const wanted = std::getenv("LEVIN_OPS");
  if (!wanted) return op_cases();
  const std::regex pattern(wanted);
  std::vector<NamedCase> chosen;
  for (const NamedCase& c : op_cases()) {
    if (std::regex_search(c.name, pattern)) chosen.push_back(c);
  }
  INFO("LEVIN_OPS=" << std::string(wanted) << " names no case of the op table; levin_tests --list-ops prints them");
  REQUIRE(!chosen.empty());
  return chosen;
}

template <class F>
void for_each_device_case(F&& f) {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  for (const NamedCase& named : chosen_cases()) {
    const OpCase c = named.make();
    for (std::size_t i = 0; i < c.samples.size(); ++i) {
      INFO("case " << std::string(named.name) << ", sample " << i);
      if (c.on_cpu_alone) {
        CHECK_THROWS_AS((void)c.samples[i].call(moved(make_inputs(c.samples[i], c.dtypes.front(), 1), *device)),
                        UnsupportedError);
        continue;
      }
      // One failing case does not hide the others.
      try {
        f(c, c.samples[i], *device);
      } catch (const Error& e) { FAIL_CHECK(std::string(e.what())); }
    }
  }
}

}  // namespace

TEST_CASE("ops on a device: values match the f64 reference, gradients those of the cpu, in every dtype") {
  for_each_device_case([](const OpCase& c, const OpSample& s, Device device) {
    for (const DType dtype : c.dtypes) {
      CAPTURE(text(dtype));
      const Tensors inputs = make_inputs(s, dtype, 1);
      const Run here = run(s, inputs), there = run(s, moved(inputs, device));
      for (const Tensor& t : there.outputs) CHECK((t.device() == device || c.needs_device));
      const Tensors reference = s.reference(widened(s, inputs));
      if (s.slopes)
        check_each(c.ulps, s.floor, NanMeans::nan, dtype, there.outputs[0], reference[0]);
      else
        check_close(c, dtype, there.outputs, reference);
      check_gradients(c, s, dtype, there, here);
    }
  });
}

TEST_CASE("ops on a device: strided, transposed and unaligned inputs give the same result") {
  for_each_device_case([](const OpCase& c, const OpSample& s, Device device) {
    for (const DType dtype : c.dtypes) {
      if (dtype != DType::bf16 && dtype != c.dtypes.front()) continue;
      CAPTURE(text(dtype));
      const Tensors dense = moved(make_inputs(s, dtype, 2), device);
      const Run want = run(s, dense);
      for (const Layout layout : kLayouts) {
        CAPTURE(int(layout));
        Tensors other;
        for (const Tensor& t : dense) other.push_back(laid_out(t, layout));
        const Run got = run(s, other);
        if (c.layout_changes_sums) {
          check_close(c, dtype, got.outputs, want.outputs);
        } else {
          for (std::size_t k = 0; k < want.outputs.size(); ++k) REQUIRE(same_bits(got.outputs[k], want.outputs[k]));
        }
        if (layout == Layout::channels_last) check_gradients(c, s, dtype, got, want);
      }
    }
  });
}

#if defined(LEVIN_SIMT)
TEST_CASE("ops on simt: no order in which threads run changes a bit") {
  for_each_device_case([](const OpCase& c, const OpSample& s, Device device) {
    for (const DType dtype : c.dtypes) {
      // 16-bit kernels differ where they multiply in tensor cores: attention, products.
      if (dtype != DType::bf16 && dtype != c.dtypes.front()) continue;
      CAPTURE(text(dtype));
      const Tensors inputs = moved(make_inputs(s, dtype, 3), device);
      const Run want = run(s, inputs);
      for (const simt::Schedule schedule : simt::kSchedules) {
        CAPTURE(simt::name(schedule));
        simt::set_schedule(schedule, 17);
        const Run got = run(s, inputs);
        simt::set_schedule(simt::Schedule::ascending);
        for (std::size_t k = 0; k < want.outputs.size(); ++k) REQUIRE(same_bits(got.outputs[k], want.outputs[k]));
        for (std::size_t k = 0; k < want.gradients.size(); ++k) REQUIRE(same_bits(got.gradients[k], want.gradients[k]));
      }
    }
  });
}
#endif

TEST_CASE("ops on a device: a recorded and replayed run has the bits of an eager one") {
  for_each_device_case([](const OpCase& c, const OpSample& s, Device device) {
    if (c.needs_device || c.values_on_meta) return;  // an op that needs values on the host cannot be recorded
    for (const DType dtype : c.dtypes) {
      if (dtype != DType::bf16 && dtype != c.dtypes.front()) continue;
      CAPTURE(text(dtype));
      const Tensors inputs = moved(make_inputs(s, dtype, 4), device);
      const Tensors want = s.call(inputs);
      Tensors got;
      Graph graph(Stream::current(device), [&] { got = s.call(inputs); });
      graph.replay();
      REQUIRE(got.size() == want.size());
      for (std::size_t k = 0; k < want.size(); ++k) REQUIRE(same_bits(got[k], want[k]));
    }
  });
}

}  // namespace levin::testing
