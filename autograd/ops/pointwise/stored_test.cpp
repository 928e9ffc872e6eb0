// i8 and i16, which are stored, moved, compared and converted.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "levin/serialize.h"
#include "tests/device.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
const std::vector<DType> kStored{DType::i8, DType::i16};

std::int64_t low_of(DType t) { return t == DType::i8 ? -128 : -32768; }
std::int64_t high_of(DType t) { return -low_of(t) - 1; }

std::vector<std::int64_t> whole(const Tensor& x) { return x.to(cpu).to(DType::i64).to_vector<std::int64_t>(); }
// The values of both ends, of 0 and between, in a shape.
Tensor ends(DType t, const Shape& shape = {3, 5}) {
  std::vector<std::int64_t> v;
  for (std::int64_t i = 0; i < shape.numel(); ++i) {
    const std::int64_t all[] = {low_of(t), high_of(t), -1, 0, 1, low_of(t) + i + 1, high_of(t) - i - 1};
    v.push_back(all[i % 7]);
  }
  return from_data(std::span<const std::int64_t>(v), shape, cpu).to(t);
}
// The same numbers in every layout: dense, turned, in steps, from the middle of a storage, backward in memory.
std::vector<Tensor> layouts(const Tensor& x) {
  const Tensor wide = cat({x, x}, 1), shifted = cat({x, x}, 0);
  return {x, transpose(transpose(x, 0, 1).contiguous(), 0, 1),
          slice(repeat_interleave(x, 2, 1), 1, 0, 2 * x.size(1), 2), narrow(wide, 1, x.size(1), x.size(1)),
          narrow(shifted, 0, x.size(0), x.size(0))};
}
std::vector<Device> devices() {
  const auto found = test::launching_device();
  return found ? std::vector{cpu, *found} : std::vector{cpu};
}

}  // namespace

TEST_CASE("a float becomes the nearest i8 or i16 toward zero, and NaN 0, on the CPU and on simt") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = tensor({-3.9, 3.9, -0.5, 126.9, 127.5, 128.0, -128.9, -129.0, 32767.5, 32768.0, -32769.0, 1e30,
                           -1e30, 5e9, inf, -inf, nan},
                          cpu);
  for (const Device device : devices()) {
    CHECK(whole(x.to(device).to(DType::i8)) ==
          std::vector<std::int64_t>{-3, 3, 0, 126, 127, 127, -128, -128, 127, 127, -128, 127, -128, 127, 127, -128, 0});
    CHECK(whole(x.to(device).to(DType::i16)) == std::vector<std::int64_t>{-3, 3, 0, 126, 127, 128, -128, -129, 32767,
                                                                          32767, -32768, 32767, -32768, 32767, 32767,
                                                                          -32768, 0});
    for (const DType half : {DType::f16, DType::bf16, DType::f32}) {
      CAPTURE(text(half));
      const Tensor y = tensor({-2.5, 100.0, 200.0, -200.0, inf, -inf, nan}, cpu).to(half).to(device);
      CHECK(whole(y.to(DType::i8)) == std::vector<std::int64_t>{-2, 100, 127, -128, 127, -128, 0});
      CHECK(whole(y.to(DType::i16)) == std::vector<std::int64_t>{-2, 100, 200, -200, 32767, -32768, 0});
    }
  }
}

TEST_CASE("an integer wraps into i8 and i16 as in PyTorch, on the CPU and on simt") {
  const Tensor x =
      tensor({std::int64_t{300}, std::int64_t{-129}, std::int64_t{127}, std::int64_t{128}, std::int64_t{-32769},
              std::int64_t{65535}, (std::int64_t{1} << 40) + 5, std::numeric_limits<std::int64_t>::min()},
             cpu);
  for (const Device device : devices()) {
    CHECK(whole(x.to(device).to(DType::i8)) == std::vector<std::int64_t>{44, 127, 127, -128, -1, -1, 5, 0});
    CHECK(whole(x.to(device).to(DType::i16)) == std::vector<std::int64_t>{300, -129, 127, 128, 32767, -1, 5, 0});
    const Tensor shorts = ends(DType::i16, {7}).to(device);
    CHECK(whole(shorts.to(DType::i8)) == std::vector<std::int64_t>{0, -1, -1, 0, 1, 6, -8});
    CHECK(whole(shorts.to(DType::u8)) == std::vector<std::int64_t>{0, 255, 255, 0, 1, 6, 248});
    const Tensor bytes = ends(DType::i8, {7}).to(device);
    CHECK(whole(bytes.to(DType::i16)) == std::vector<std::int64_t>{-128, 127, -1, 0, 1, -122, 120});
    CHECK(whole(bytes.to(DType::u8)) == std::vector<std::int64_t>{128, 127, 255, 0, 1, 134, 120});
    CHECK(whole(tensor({std::uint8_t{255}, std::uint8_t{1}}, device).to(DType::i8)) ==
          std::vector<std::int64_t>{-1, 1});
    CHECK(whole(tensor({std::uint8_t{255}, std::uint8_t{1}}, device).to(DType::i16)) ==
          std::vector<std::int64_t>{255, 1});
    CHECK(whole(tensor({true, false}, device).to(DType::i16)) == std::vector<std::int64_t>{1, 0});
    CHECK(shorts.to(DType::b8).to(cpu).to_vector<bool>() ==
          std::vector<bool>{true, true, true, false, true, true, true});
    CHECK(tensor({std::int16_t{256}}, device).to(DType::b8).item<bool>());  // its low byte is 0
  }
}

TEST_CASE("i8 and i16 of every layout convert to every dtype and back, also on simt") {
  for (const DType t : kStored) {
    const Tensor x = ends(t, {6, 7});
    const std::vector<std::int64_t> want = whole(x);
    for (const Device device : devices()) {
      for (const Tensor& y : layouts(x.to(device))) {
        CAPTURE(y.strides()[0]);
        REQUIRE(whole(y.contiguous()) == want);
        CHECK(whole(y.clone()) == want);
        for (const DType exact : {DType::f32, DType::f64, DType::i32, DType::i64}) {
          CAPTURE(text(exact));
          const Tensor there = y.to(exact);
          CHECK(there.to(cpu).to(DType::i64).to_vector<std::int64_t>() == want);
          CHECK(whole(transpose(transpose(there, 0, 1).to(t), 0, 1)) == want);
        }
        CHECK(equal(y.to(DType::bf16).to(cpu), x.to(DType::f64).to(DType::bf16)));
        CHECK(equal(y.to(DType::f16).to(cpu), x.to(DType::f64).to(DType::f16)));
      }
      for (const DType wide : {DType::i32, DType::i64, DType::f32}) {
        for (const Tensor& y : layouts(x.to(device).to(wide))) {
          CAPTURE(text(wide));
          CAPTURE(y.offset());
          CHECK(whole(y.to(t)) == want);
        }
      }
      CHECK(empty({0, 3}, device, t).to(DType::f32).to(t).shape() == Shape{0, 3});
      CHECK(whole(ends(t, {}).to(device).to(DType::i32).to(t)) == std::vector<std::int64_t>{low_of(t)});
    }
    CHECK(empty({2, 3}, Device::meta(), t).to(DType::f32).to(t).dtype() == t);
  }
}

TEST_CASE("copy_ and fill_ write i8 and i16 through views, broadcast and convert, also on simt") {
  for (const DType t : kStored) {
    for (const Device device : devices()) {
      Tensor x = zeros({3, 4}, device, t);
      Tensor column = select(x, 1, 1), last = select(x, 1, 3), turned = transpose(x, 0, 1);
      copy_(column, full({}, 1e9, device, DType::f32));
      fill_(last, low_of(t));
      const std::int64_t high = high_of(t), low = low_of(t);
      CHECK(whole(x) == std::vector<std::int64_t>{0, high, 0, low, 0, high, 0, low, 0, high, 0, low});
      copy_(turned, tensor({std::int64_t{1}, std::int64_t{-2}, std::int64_t{3}}, device));
      CHECK(whole(x) == std::vector<std::int64_t>{1, 1, 1, 1, -2, -2, -2, -2, 3, 3, 3, 3});
      copy_(x, ends(t, {4}));  // from the CPU
      CHECK(whole(select(x, 0, 2)) == std::vector<std::int64_t>{low, high, -1, 0});
      Tensor f = zeros({2}, device);
      copy_(f, narrow(select(x, 0, 0), 0, 0, 2));
      CHECK(f.to(cpu).to_vector<float>() == std::vector<float>{float(low), float(high)});
      CHECK(whole(full({2}, high, device, t)) == std::vector<std::int64_t>{high, high});
      CHECK(whole(eye(2, device, t)) == std::vector<std::int64_t>{1, 0, 0, 1});
      CHECK(whole(arange(low, low + 3, 1, device, t)) == std::vector<std::int64_t>{low, low + 1, low + 2});
    }
    Tensor x = zeros({2}, cpu, t);
    CHECK_THROWS_AS((void)full({2}, high_of(t) + 1, cpu, t), DTypeError);
    CHECK_THROWS_AS((void)arange(high_of(t), high_of(t) + 2, 1, cpu, t), DTypeError);
    CHECK_THROWS_AS((void)full({2}, 0.5, cpu, t), DTypeError);
    CHECK_THROWS_WITH_AS(fill_(x, low_of(t) - 1),
                         doctest::Contains((text(t) + ", expected " + text(low_of(t)) + " to ").c_str()), DTypeError);
    CHECK(whole(x) == std::vector<std::int64_t>{0, 0});
  }
}

TEST_CASE("copies of 16-bit tensors keep every bit, those of NaN, too, also on simt") {
  std::vector<std::int16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::int16_t>(i);
  const Tensor x = from_data(std::span<const std::int16_t>(bits), {256, 256}, cpu);
  for (const Device device : devices()) {
    const Tensor y = x.to(device);
    CHECK(transpose(transpose(y, 0, 1).contiguous(), 0, 1).contiguous().to(cpu).to_vector<std::int16_t>() == bits);
    CHECK(slice(repeat_interleave(y, 2, 1), 1, 0, 512, 2).contiguous().to(cpu).to_vector<std::int16_t>() == bits);
    CHECK(
        where(ones({256, 1}, device, DType::b8), y, zeros({}, device, DType::i16)).to(cpu).to_vector<std::int16_t>() ==
        bits);
  }
}

TEST_CASE("i8 and i16 compare, choose, and are asked for what is not 0, also on simt") {
  for (const DType t : kStored) {
    for (const Device device : devices()) {
      const Tensor x = ends(t, {5}).to(device), zero = zeros({}, device, t);
      const auto bools = [](const Tensor& y) { return y.to(cpu).to_vector<bool>(); };
      CHECK(bools(lt(x, zero)) == std::vector<bool>{true, false, true, false, false});
      CHECK(bools(ge(x, -1)) == std::vector<bool>{false, true, true, true, true});
      CHECK(bools(lt(x, 1 << 20)) == std::vector<bool>{true, true, true, true, true});
      CHECK(bools(eq(x, low_of(t) - 256)) == std::vector<bool>{false, false, false, false, false});
      CHECK(equal(x, x.clone()));
      CHECK(any(x).item<bool>());
      CHECK(!all(x).item<bool>());
      CHECK(!any(zero).item<bool>());
      CHECK(any(full({2}, t == DType::i16 ? 256 : -128, device, t)).item<bool>());
      CHECK(nonzero(x).to(cpu).to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 4});
      CHECK(whole(where(gt(x, 0), x, full({}, -7, device, t))) == std::vector<std::int64_t>{-7, high_of(t), -7, -7, 1});
      CHECK(whole(masked_fill(x, lt(x, 0), high_of(t))) ==
            std::vector<std::int64_t>{high_of(t), high_of(t), high_of(t), 0, 1});
      CHECK(whole(pad(x, {1, 0}, low_of(t))) == std::vector<std::int64_t>{low_of(t), low_of(t), high_of(t), -1, 0, 1});
      CHECK_THROWS_AS((void)masked_fill(x, lt(x, 0), high_of(t) + 1), DTypeError);
      CHECK_THROWS_AS((void)eq(x, x.to(DType::i32)), DTypeError);
    }
  }
}

TEST_CASE("what computes refuses i8 and i16 by the op's name and the way out, also on simt and meta") {
  for (const DType t : kStored) {
    std::vector<Device> all = devices();
    all.push_back(Device::meta());
    for (const Device device : all) {
      const Tensor x = ones({4}, device, t);
      const auto refused = [&](const char* op, const std::function<void()>& call) {
        CAPTURE(text(device));
        const std::string start = std::string(op) + ": " + text(t) + " on " + text(device);
        try {
          call();
          FAIL("nothing was thrown");
        } catch (const UnsupportedError& e) {
          const std::string message = e.what();
          CHECK_MESSAGE(message.find(start) != std::string::npos, message);
          CHECK_MESSAGE(message.find("to(DType::i32)") != std::string::npos, message);
        }
      };
      refused("add", [&] { (void)(x + x); });
      refused("mul", [&] { (void)(x * 2); });
      refused("neg", [&] { (void)-x; });
      refused("sum", [&] { (void)sum(x); });
      refused("amax", [&] { (void)amax(x); });
      refused("sort", [&] { (void)sort(x, 0); });
      refused("cumsum", [&] { (void)cumsum(x, 0); });
      refused("exp", [&] { (void)exp(x); });
      Tensor y = x;
      refused("add_", [&] { add_(y, x); });
      refused("mul_", [&] { mul_(y, 2); });
      CHECK_THROWS_AS(y.requires_grad_(), DTypeError);
      if (!device.is_meta()) CHECK(whole(y) == std::vector<std::int64_t>{1, 1, 1, 1});
    }
  }
}

TEST_CASE("i8 and i16 give their hash, which differs by dtype, and a number") {
  const Tensor a = tensor({std::int8_t{-1}, std::int8_t{2}}, cpu);
  CHECK(content_hash("a", a) == content_hash("a", a.clone()));
  CHECK(content_hash("a", a) != content_hash("a", a.to(DType::u8)));
  CHECK(tensor({std::int8_t{-128}}, cpu).item<int>() == -128);
  CHECK(tensor({std::int16_t{-32768}}, cpu).item<std::int64_t>() == -32768);
  CHECK(tensor({std::int16_t{-32768}}, cpu).item<std::int8_t>() == -128);
  CHECK_THROWS_AS((void)a.data<std::uint8_t>(), DTypeError);
}

}  // namespace levin::testing
