#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

#include "levin/tensor.h"

using namespace levin;

namespace {

template <class T>
Tensor of(std::vector<T> values, const Shape& shape) {
  Tensor x = empty(shape, Device::cpu(), dtype_of<T>);
  if (!values.empty()) std::copy(values.begin(), values.end(), x.mutable_data<T>());
  return x;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

}  // namespace

TEST_CASE("a float matrix prints in aligned columns with its kind below") {
  const Tensor x = of<float>({1, -2.5f, 3.25f, 100, 0, 7}, {2, 3});
  CHECK(to_string(x) ==
        "[[  1.0000,  -2.5000,   3.2500],\n"
        " [100.0000,   0.0000,   7.0000]]\n"
        "f32 [2, 3] on cpu");
}

TEST_CASE("whole floats print without decimals but with a point") {
  CHECK(to_string(of<float>({1, 20, -3}, {3})) == "[ 1., 20., -3.]\nf32 [3] on cpu");
  CHECK(to_string(of<double>({0, 0}, {2})) == "[0., 0.]\nf64 [2] on cpu");
}

TEST_CASE("very small, very large and far spread floats print with exponents") {
  CHECK(to_string(of<float>({1e-5f, 0.5f}, {2})) == "[1.0000e-05, 5.0000e-01]\nf32 [2] on cpu");
  CHECK(to_string(of<double>({3e9, 1}, {2})) == "[3.0000e+09, 1.0000e+00]\nf64 [2] on cpu");
  CHECK(to_string(of<double>({0.25, 1000}, {2})) == "[2.5000e-01, 1.0000e+03]\nf64 [2] on cpu");
}

TEST_CASE("nan and infinities print beside numbers without spoiling their format") {
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(to_string(of<float>({std::nanf(""), inf, -inf, 1.5f}, {4})) ==
        "[   nan,    inf,   -inf, 1.5000]\nf32 [4] on cpu");
  CHECK(to_string(of<float>({inf, 2}, {2})) == "[inf,  2.]\nf32 [2] on cpu");
}

TEST_CASE("integers, bools and 16-bit floats print their values") {
  CHECK(to_string(of<std::int64_t>({std::numeric_limits<std::int64_t>::min(), 7}, {2})) ==
        "[-9223372036854775808,                    7]\ni64 [2] on cpu");
  CHECK(to_string(of<std::uint8_t>({0, 255}, {2})) == "[  0, 255]\nu8 [2] on cpu");
  CHECK(to_string(of<std::int8_t>({-128, 127}, {2})) == "[-128,  127]\ni8 [2] on cpu");
  CHECK(to_string(of<std::int16_t>({-32768, 7}, {2})) == "[-32768,      7]\ni16 [2] on cpu");
  CHECK(to_string(of<std::int32_t>({-1, 10}, {2})) == "[-1, 10]\ni32 [2] on cpu");
  CHECK(to_string(of<bool>({true, false}, {2})) == "[ true, false]\nbool [2] on cpu");
  CHECK(to_string(of<f16>({f16(0.5f), f16(-2.f)}, {2})) == "[ 0.5000, -2.0000]\nf16 [2] on cpu");
  CHECK(to_string(of<bf16>({bf16(0.5f), bf16(-2.f)}, {2})) == "[ 0.5000, -2.0000]\nbf16 [2] on cpu");
}

TEST_CASE("a scalar has no brackets and an empty tensor has nothing between them") {
  CHECK(to_string(of<float>({2.5f}, {})) == "2.5000\nf32 [] on cpu");
  CHECK(to_string(of<float>({}, {0})) == "[]\nf32 [0] on cpu");
  CHECK(to_string(of<float>({}, {3, 0, 2})) == "[]\nf32 [3, 0, 2] on cpu");
}

TEST_CASE("matrices of a stack are set apart by an empty line") {
  std::vector<std::int32_t> v(8);
  std::iota(v.begin(), v.end(), 0);
  CHECK(to_string(of(v, {2, 2, 2})) == "[[[0, 1],\n  [2, 3]],\n\n [[4, 5],\n  [6, 7]]]\ni32 [2, 2, 2] on cpu");
}

TEST_CASE("views print what they show, not what lies in memory") {
  std::vector<std::int32_t> v(6);
  std::iota(v.begin(), v.end(), 0);
  const Tensor x = of(v, {2, 3});
  CHECK(to_string(as_strided(x, {3, 2}, Strides{{1, 3}}, 0)) == "[[0, 3],\n [1, 4],\n [2, 5]]\ni32 [3, 2] on cpu");
  CHECK(to_string(as_strided(x, {2}, Strides{{0}}, 4)) == "[4, 4]\ni32 [2] on cpu");
}

TEST_CASE("more than 1000 elements are shortened to three at each edge, 1000 are not") {
  std::vector<std::int32_t> v(1001);
  std::iota(v.begin(), v.end(), 0);
  CHECK(to_string(of(v, {1001})) == "[   0,    1,    2, ...,  998,  999, 1000]\ni32 [1001] on cpu");
  v.resize(1000);
  const std::string whole = to_string(of(v, {1000}));
  CHECK(whole.find("...") == std::string::npos);
  CHECK(count(whole, ",") == 999);
  // A short dimension beside a long one stays whole.
  std::vector<std::int32_t> w(2002);
  std::iota(w.begin(), w.end(), 0);
  CHECK(to_string(of(w, {1001, 2})) ==
        "[[   0,    1],\n [   2,    3],\n [   4,    5],\n ...,\n [1996, 1997],\n [1998, 1999],\n [2000, 2001]]\n"
        "i32 [1001, 2] on cpu");
}

TEST_CASE("long rows are broken into lines of at most 80 characters") {
  const std::string text = to_string(of<float>(std::vector<float>(100, 0.25f), {100}));
  std::istringstream lines(text);
  std::string line;
  std::size_t longest = 0;
  while (std::getline(lines, line)) longest = std::max(longest, line.size());
  CHECK(longest <= 80);
  CHECK(longest > 70);
  CHECK(count(text, "0.2500") == 100);
}

TEST_CASE("meta and undefined tensors print without values") {
  CHECK(to_string(empty({2, 3}, Device::meta())) == "f32 [2, 3] on meta");
  CHECK(to_string(Tensor()) == "undefined");
  CHECK(text(Tensor()) == "undefined");
  CHECK(text(of<double>({1}, {1})) == "f64 [1] on cpu");
}

TEST_CASE("a tensor prints to a stream as to_string says") {
  const Tensor x = of<float>({1.5f}, {1});
  std::ostringstream out;
  out << x;
  CHECK(out.str() == to_string(x));
}
