#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Ints = std::vector<std::int64_t>;

TEST_CASE("sorting is stable, puts NaN last and takes -0 for 0, short lines and long ones alike") {
  const std::vector<double> start{kNan, 0.0, -kInf, -0.0, kInf, -kNan, 0.0, -1.0};
  const Ints rising{2, 7, 1, 3, 6, 4, 0, 5}, falling{0, 5, 4, 1, 3, 6, 7, 2};
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    CHECK(argsort(from_data(start, {8}, cpu).to(dtype)).to_vector<std::int64_t>() == rising);
    CHECK(argsort(from_data(start, {8}, cpu).to(dtype), 0, Order::descending).to_vector<std::int64_t>() == falling);
    CHECK(topk(from_data(start, {8}, cpu).to(dtype), 3).indices.to_vector<std::int64_t>() == Ints{0, 5, 4});
    // The same in front of 5000 larger numbers, where digits are counted instead of compared.
    std::vector<double> many = start;
    many[0] = many[4] = many[5] = -2;
    for (int i = 0; i < 5000; ++i) many.push_back(1);
    const Ints order = argsort(from_data(many, {5008}, cpu).to(dtype)).to_vector<std::int64_t>();
    const Ints first(order.begin(), order.begin() + 8);
    CHECK(first == Ints{2, 0, 4, 5, 7, 1, 3, 6});
    for (std::size_t i = 8; i < order.size(); ++i) REQUIRE(order[i] == static_cast<std::int64_t>(i));
  }
}

TEST_CASE("of equal extremes the first is chosen, and a NaN before all numbers") {
  CHECK(argmax(tensor({1.0, 3.0, 3.0}, cpu)).item<std::int64_t>() == 1);
  CHECK(argmin(tensor({1.0, kNan, -3.0, kNan}, cpu)).item<std::int64_t>() == 1);
  const Tensor columns = reshape(tensor({1.0, kNan, 5.0, 7.0, 5.0, kNan}, cpu), {3, 2});
  CHECK(max(columns, 0).indices.to_vector<std::int64_t>() == Ints{1, 0});
}

TEST_CASE("the last of repeated writes wins, and it alone gets the gradient") {
  Tensor src = tensor({1.0, 2.0, 3.0}, cpu);
  src.requires_grad_();
  const Tensor y = scatter(zeros({2}, cpu, DType::f64), 0, tensor<std::int64_t>({1, 0, 1}, cpu), src);
  CHECK(y.to_vector<double>() == std::vector<double>{2, 3});
  CHECK(grad(sum(y), std::span(&src, 1))[0].to_vector<double>() == std::vector<double>{0, 1, 1});
}

TEST_CASE("16-bit sums by index are rounded once") {
  const Tensor index = zeros({5000}, cpu, DType::i64), src = ones({5000}, cpu, DType::f16);
  CHECK(scatter_add(zeros({1}, cpu, DType::f16), 0, index, src).item() == 5000);
  CHECK(index_add(zeros({1}, cpu, DType::f16), 0, index, src).item() == 5000);
}

TEST_CASE("the padding row of an embedding is read but gets no gradient") {
  Tensor weight = ones({3, 2}, cpu, DType::f64);
  weight.requires_grad_();
  const Tensor y = embedding(weight, tensor<std::int64_t>({2, 0, 2, 1}, cpu), -1);
  CHECK(sum(y).item() == 8);
  CHECK(grad(sum(y), std::span(&weight, 1))[0].to_vector<double>() == std::vector<double>{1, 1, 1, 1, 0, 0});
}

TEST_CASE("an op that refuses an index leaves its inputs as they were") {
  Tensor x = zeros({3}, cpu);
  const std::uint32_t before = x.version();
  CHECK_THROWS_AS((void)scatter(x, 0, tensor<std::int64_t>({0, 9}, cpu), ones({2}, cpu)), IndexError);
  CHECK(x.version() == before);
  CHECK(x.to_vector<float>() == std::vector<float>(3));
}

}  // namespace
}  // namespace levin
