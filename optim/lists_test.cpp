// Running averages and flat buffers of lists of tensors.
#include "levin/optim/lists.h"

#include <doctest/doctest.h>

#include <cmath>

#include "levin/stream.h"
#include "optim/kinds_test.h"

namespace levin::optim {
namespace {

const Device cpu = Device::cpu();

Tensor values(std::int64_t n, int t, Device device, DType dtype) {
  if (is_float(dtype)) return gradient({n}, t, device, dtype);
  std::vector<std::int64_t> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back((i * 7 + t) % 5);
  return from_data(v, {n}, cpu).to(dtype).to(device);
}
Tensor decay_of(double x, Device device) { return tensor({x}, device); }

}  // namespace

TEST_CASE("averages follow their definition in every dtype, whole numbers are copied") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    Tensors averages, now, start;
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64, DType::b8}) {
      for (const std::int64_t n : {0, 3, 5001}) {
        averages.push_back(values(n, 0, device, dtype));
        start.push_back(averages.back().clone());
        now.push_back(values(n, 1, device, dtype));
      }
    }
    averages.push_back(values(17, 0, device, DType::f32));  // wider than what it averages
    start.push_back(averages.back().clone());
    now.push_back(values(17, 1, device, DType::bf16));
    // Not contiguous, and not aligned.
    Tensor base = values(34, 2, device, DType::f32);
    averages.push_back(values(17, 0, device, DType::f32));
    start.push_back(averages.back().clone());
    now.push_back(as_strided(base, {17}, {2}, 0));
    averages.push_back(as_strided(values(20, 0, device, DType::f32), {17}, {1}, 1));
    start.push_back(averages.back().clone());
    now.push_back(as_strided(base, {17}, {1}, 3));
    ema_update_(averages, now, decay_of(0.9, device));
    for (std::size_t k = 0; k < now.size(); ++k) {
      CAPTURE(k);
      const DType dtype = averages[k].dtype();
      const auto got = averages[k].to(DType::f64).to_vector<double>(),
                 old = start[k].to(DType::f64).to_vector<double>(),
                 add = now[k].contiguous().to(DType::f64).to_vector<double>();
      for (std::size_t i = 0; i < got.size(); ++i) {
        // Three roundings of arithmetic, one of them to the dtype, and those of the two factors.
        if (is_float(dtype))
          REQUIRE(std::abs(got[i] - (0.9 * old[i] + (1 - 0.9) * add[i])) <=
                  3 * epsilon(dtype) * (std::abs(old[i]) + std::abs(add[i])) + (dtype == DType::f16 ? 0x1p-24 : 0));
        else
          REQUIRE(got[i] == add[i]);
      }
    }
  }
}

TEST_CASE("on a device a recorded average reads its decay at each replay") {
  DEVICE_OR_SKIP();
  const Tensors average{tensor({1.0f}, device)}, value{tensor({1.0f}, device)};
  Tensor decay = decay_of(0.5, device), now = value[0];
  Graph graph(Stream::current(device), [&] { ema_update_(average, value, decay); });
  CHECK(graph.memory_bytes() == 0);
  for (const double x : {2.0, 6.0}) {
    copy_(now, tensor({x}, device));
    graph.replay();
  }
  CHECK(average[0].item() == 3.75);
  copy_(decay, decay_of(0, device));
  graph.replay();
  CHECK(average[0].item() == 6);
}

TEST_CASE("a flat buffer holds the tensors at multiples of 16 bytes with zeros between, and gives them back") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::u8, DType::i64}) {
      CAPTURE(text(dtype));
      const std::int64_t per16 = 16 / static_cast<std::int64_t>(itemsize(dtype));
      Tensors list, back;
      for (const std::int64_t n : {5, 0, 16, 70'001, 1}) {
        list.push_back(values(n, 3, device, dtype));
        back.push_back(zeros_like(list.back()));
      }
      // A view that is not contiguous, and one whose memory does not begin at a multiple of 16.
      const Tensor base = values(64, 4, device, dtype);
      list.push_back(as_strided(base, {9}, {3}, 1));
      list.push_back(as_strided(base, {33}, {1}, 3));
      back.push_back(zeros({9}, device, dtype));
      back.push_back(as_strided(zeros({40}, device, dtype), {33}, {1}, 5));
      const Tensor flat = flatten(list);
      std::vector<double> want;
      for (const Tensor& t : list) {
        for (const double v : t.contiguous().to(DType::f64).to_vector<double>()) want.push_back(v);
        while (static_cast<std::int64_t>(want.size()) % per16 != 0) want.push_back(0);
      }
      CHECK(flat_numel(list) == static_cast<std::int64_t>(want.size()));
      CHECK(flat.to(DType::f64).to_vector<double>() == want);
      unflatten_into_(back, flat);
      for (std::size_t k = 0; k < list.size(); ++k)
        CHECK(same_bits(back[k].contiguous().to(DType::f64), list[k].contiguous().to(DType::f64)));
    }
  }
}

TEST_CASE("on a device a list is copied bit for bit in every dtype, aligned tensors by one launch") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    Tensors to, from;
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64, DType::b8}) {
      for (const std::int64_t n : {0, 3, 5001}) {
        from.push_back(values(n, 1, device, dtype));
        to.push_back(values(n, 0, device, dtype));
      }
    }
    from.push_back(as_strided(values(34, 2, device, DType::f32), {17}, {2}, 0));
    to.push_back(as_strided(zeros({20}, device), {17}, {1}, 1));
    from.push_back(full({3}, std::nan(""), device));
    to.push_back(zeros({3}, device));
    const std::uint32_t version = to[1].version();
    copy_all_(to, from);
    CHECK(to[1].version() > version);
    for (std::size_t k = 0; k + 1 < to.size(); ++k)
      CHECK(same_bits(to[k].contiguous().to(DType::f64), from[k].contiguous().to(DType::f64)));
    CHECK(std::isnan(to.back().to_vector<float>()[2]));
  }
  copy_all_({}, {});
  DEVICE_OR_SKIP();
  Tensors to, from;
  for (const std::int64_t n : {5, 4096, 70'001}) {
    from.push_back(values(n, 1, device, DType::f32));
    to.push_back(values(n, 0, device, DType::f32));
  }
  Graph graph(Stream::current(device), [&] { copy_all_(to, from); });
  CHECK(graph.nodes() == 1);
}

TEST_CASE("on a device a list of aligned tensors is flattened by one launch") {
  DEVICE_OR_SKIP();
  Tensors list;
  for (const std::int64_t n : {5, 4096, 70'001}) list.push_back(values(n, 3, device, DType::f32));
  Tensor flat = flatten(list);
  Graph graph(Stream::current(device), [&] {
    flatten_into_(flat, list);
    unflatten_into_(list, flat);
  });
  CHECK(graph.nodes() == 2);
  CHECK(graph.memory_bytes() == 0);
}

TEST_CASE("lists on a device that do not fit are refused") {
  const Tensors one{zeros({2}, cpu)}, other{zeros({3}, cpu)}, wide{zeros({2}, cpu, DType::f64)};
  CHECK_THROWS_AS(ema_update_(one, {}, decay_of(0.5, cpu)), ShapeError);
  CHECK_THROWS_AS(ema_update_(one, other, decay_of(0.5, cpu)), ShapeError);
  CHECK_THROWS_AS(ema_update_(one, wide, decay_of(0.5, cpu)), DTypeError);
  CHECK_THROWS_AS(ema_update_(one, one, zeros({}, cpu)), ShapeError);
  CHECK_THROWS_AS(copy_all_(one, {}), ShapeError);
  CHECK_THROWS_AS(copy_all_(one, other), ShapeError);
  CHECK_THROWS_AS(copy_all_(one, wide), DTypeError);
  CHECK_THROWS_AS((void)flatten({}), ShapeError);
  CHECK_THROWS_AS((void)flatten({one[0], wide[0]}), DTypeError);
  Tensor flat = zeros({3}, cpu);
  CHECK_THROWS_WITH_AS(flatten_into_(flat, one), doctest::Contains("expected contiguous [4]"), ShapeError);
  CHECK_THROWS_AS(unflatten_into_(one, flat), ShapeError);
  DEVICE_OR_SKIP();
  const Tensors there{zeros({2}, device)};
  CHECK_THROWS_AS(ema_update_(there, there, decay_of(0.5, cpu)), DeviceError);
  CHECK_THROWS_AS(copy_all_(there, one), DeviceError);
  CHECK_THROWS_AS((void)flatten({one[0], there[0]}), DeviceError);
}

}  // namespace levin::optim
