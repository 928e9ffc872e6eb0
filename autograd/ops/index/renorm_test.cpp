// embedding_renorm_, and the tables that call it, against the formula made of other ops, on the CPU and on a device.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/error.h"
#include "levin/index_ops.h"
#include "levin/nn/embedding_bag.h"
#include "levin/nn/layers.h"
#include "levin/ops.h"
#include "levin/stream.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

Tensor ints(const std::vector<std::int64_t>& values) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, cpu);
}

// The formula of every row in f64, where `named` rows alone are changed.
Tensor shortened(const Tensor& weight, const std::vector<std::int64_t>& named, double most, double p) {
  const std::int64_t rows = weight.size(0), cols = weight.size(1);
  std::vector<double> w = weight.to(DType::f64).to_vector<double>();
  for (std::int64_t r = 0; r < rows; ++r) {
    if (std::ranges::find(named, r) == named.end()) continue;
    double* const row = w.data() + r * cols;
    double norm = 0;
    for (std::int64_t j = 0; j < cols; ++j) {
      const double x = std::abs(row[j]);
      norm = p == kInf ? (x > norm || std::isnan(x) ? x : norm) : norm + std::pow(x, p);
    }
    if (p != kInf) norm = std::pow(norm, 1 / p);
    if (!(norm > most)) continue;
    for (std::int64_t j = 0; j < cols; ++j) row[j] *= most / (norm + 1e-7);
  }
  return from_data(w, {rows, cols}, cpu);
}

// `smallest`: the distance of subnormal numbers.
void check_same(const Tensor& got, const Tensor& want, double tolerance, double smallest = 0) {
  const auto a = got.to(cpu).to(DType::f64).to_vector<double>(), b = want.to_vector<double>();
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    if (std::isnan(b[i]))
      CHECK(std::isnan(a[i]));
    else
      CHECK(std::abs(a[i] - b[i]) <= tolerance * std::abs(b[i]) + smallest);
  }
}

// Rows that are named once, often and never, of lengths around a warp's; what is not named keeps its bits.
void check_on(Device device) {
  const std::vector<std::int64_t> named{5, 2, 5, 5, 0, 8, 2};
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const double tolerance = dtype == DType::f64 ? 1e-14 : dtype == DType::f32 ? 1e-6 : 1e-2;
    for (const std::int64_t cols : {1, 3, 31, 32, 33, 100}) {
      Generator gen(7);
      const Tensor weight = (randn({9, cols}, gen, cpu) * 0.4).to(dtype);
      for (const double p : {2.0, 1.0, kInf, 3.0, 0.5}) {
        CAPTURE(dtype);
        CAPTURE(cols);
        CAPTURE(p);
        Tensor w = weight.to(device).clone();
        embedding_renorm_(w, reshape(ints(named), {7, 1}).to(device), 0.7, p);
        check_same(w, shortened(weight, named, 0.7, p), tolerance, dtype == DType::f16 ? 0x1p-24 : 0);
        const Tensor rest = w.to(cpu);
        for (const std::int64_t r : {1, 3, 4, 6, 7}) CHECK(equal(select(rest, 0, r), select(weight, 0, r)));
      }
    }
  }
}

TEST_CASE("embedding_renorm_ shortens the rows that are named, once however often, and no others") { check_on(cpu); }
TEST_CASE("embedding_renorm_ shortens the same rows on a device") {
  DEVICE_OR_SKIP();
  check_on(device);
}

TEST_CASE("embedding_renorm_ leaves rows with NaN and makes 0 and NaN of infinite ones, on a device, too") {
  const Tensor weight = reshape(tensor<double>({kNaN, 9, kInf, 9, 0, 0, -9, 0}, cpu), {4, 2});
  const std::vector<Device> devices = test::all_devices();
  for (const Device device : devices)
    for (const double p : {1.0, 2.0, kInf}) {
      Tensor w = weight.to(device).clone();
      embedding_renorm_(w, ints({0, 1, 2, 3}).to(device), 3, p);
      check_same(w, shortened(weight, {0, 1, 2, 3}, 3, p), 1e-14);
    }
}

TEST_CASE("embedding_renorm_ writes through a view, and tells autograd") {
  const Tensor table = full({4, 6}, 2.0, cpu);
  Tensor part = transpose(narrow(table, 1, 1, 3), 0, 1);  // [3, 4], not contiguous
  embedding_renorm_(part, ints({1}), 2);
  CHECK(table.to_vector<float>()[2] == doctest::Approx(1));
  CHECK(table.to_vector<float>()[1] == 2);
  CHECK(table.to_vector<float>()[3] == 2);

  Tensor x = full({2, 2}, 5.0, cpu);
  x.requires_grad_(true);
  const Tensor y = sum(x * x);
  CHECK_THROWS_AS(embedding_renorm_(x, ints({0}), 1), AutogradError);
  {
    const NoGrad off;
    embedding_renorm_(x, ints({0}), 1);
  }
  CHECK_THROWS_AS(backward(y), AutogradError);  // x was saved before it was written
}

TEST_CASE("embedding_renorm_ refuses what it cannot take, and changes nothing then") {
  Tensor w = full({3, 2}, 4.0, cpu), line = full({3}, 4.0, cpu);
  CHECK_THROWS_WITH_AS(
      embedding_renorm_(w, ints({0, 3}), 1),
      "embedding_renorm_: index 3 at position [1] is out of range, expected 0 to 2; dimension 0 of weight "
      "[3, 2] has size 3",
      IndexError);
  CHECK_THROWS_AS(embedding_renorm_(line, ints({0}), 1), ShapeError);
  CHECK_THROWS_AS(embedding_renorm_(w, ints({0}).to(DType::i32), 1), DTypeError);
  CHECK_THROWS_AS(embedding_renorm_(w, ints({0}), 0), ConfigError);
  CHECK_THROWS_AS(embedding_renorm_(w, ints({0}), kNaN), ConfigError);
  CHECK_THROWS_AS(embedding_renorm_(w, ints({0}), 1, 0), ConfigError);
  CHECK(w.to_vector<float>() == std::vector<float>(6, 4));
  embedding_renorm_(w, empty({0}, cpu, DType::i64), 1);
  CHECK(w.to_vector<float>() == std::vector<float>(6, 4));
}

TEST_CASE("an index outside is an IndexError of the device's next wait, and its row is not written") {
  DEVICE_OR_SKIP();
  Tensor w = full({3, 2}, 4.0, cpu).to(device);
  embedding_renorm_(w, ints({1, 3}).to(device), 1);
  CHECK_THROWS_AS(synchronize(device), IndexError);
  const auto got = w.to(cpu).to_vector<float>();
  CHECK(got[0] == 4);
  CHECK(got[2] == doctest::Approx(std::sqrt(0.5)));
}

struct Root : nn::Module {
  Root() : Module(nn::Options{.gen = Generator(3), .device = cpu}) {}
};

TEST_CASE("tables with a max_norm shorten the rows of a call before they are looked up, on a device, too") {
  const std::vector<Device> devices = test::all_devices();
  for (const Device device : devices) {
    Root root;
    nn::Embedding one(root, "one", {.count = 5, .dim = 3, .max_norm = 0.25, .norm_type = 1});
    nn::EmbeddingBag bag(root, "bag", {.count = 5, .dim = 3, .mode = Reduce::sum, .max_norm = 0.25});
    root.to(device);
    const Tensor one_before = one.weight.to(cpu).clone(), bag_before = bag.weight.to(cpu).clone();
    const Tensor index = ints({3, 1, 3}).to(device);
    const Tensor y = one(index), z = bag(reshape(index, {1, 3}));
    check_same(one.weight.detach(), shortened(one_before, {1, 3}, 0.25, 1), 1e-6);
    check_same(bag.weight.detach(), shortened(bag_before, {1, 3}, 0.25, 2), 1e-6);
    CHECK(equal(y.detach().to(cpu), index_select(one.weight.detach().to(cpu), 0, index.to(cpu))));
    backward(sum(y) + sum(z));
    CHECK(select(one.weight.grad().to(cpu), 0, 3).to_vector<float>() == std::vector<float>(3, 2));
    CHECK(select(bag.weight.grad().to(cpu), 0, 1).to_vector<float>() == std::vector<float>(3, 1));
  }
  Root root;
  CHECK_THROWS_AS(nn::Embedding(root, "e", {.count = 5, .dim = 3, .max_norm = 0}), ConfigError);
  CHECK_THROWS_AS(nn::EmbeddingBag(root, "b", {.count = 5, .dim = 3, .max_norm = 1, .norm_type = -1}), ConfigError);
}

}  // namespace
}  // namespace levin
