#include "levin/nn/embedding_bag.h"

#include "nn/golden_test.h"

namespace levin {
namespace {

Tensor ints(const std::vector<std::int64_t>& v, const Shape& shape) { return from_data(v, shape, Device::cpu()); }

TEST_CASE("an embedding bag gives PyTorch's values for each reduction, without its padding row") {
  // fill(nn.EmbeddingBag(5, 3, mode=mode, padding_idx=1))(
  //     torch.tensor([0, 4, 1, 2, 1, 3, 3]), torch.tensor([0, 3, 3, 4, 5]))
  Root root;
  const Tensor index = ints({0, 4, 1, 2, 1, 3, 3}, {7}), offsets = ints({0, 3, 3, 4, 5}, {5});
  const auto bag = [&](const char* name, Reduce mode, std::int64_t padding, const std::vector<double>& expected) {
    nn::EmbeddingBag m(root, name, {.count = 5, .dim = 3, .mode = mode, .padding_idx = padding});
    CHECK(state_names(m) == std::vector<std::string>{"weight"});
    CHECK(equal(select(m.weight.detach(), 0, 1), zeros({3}, Device::cpu(), DType::f64)));
    fill_waves(m);
    check_close(m(index, offsets), expected);
    backward(sum(m(index, offsets)));
    CHECK(equal(select(m.weight.grad(), 0, 1), zeros({3}, Device::cpu(), DType::f64)));
  };
  bag("sum", Reduce::sum, 1,
      {0.433123205130628, 0.183297080779793, -0.15273652475767, 0, 0, 0, -0.441727327860077, -0.186938332415118,
       0.155770681756689, 0, 0, 0, 0.850436620628564, 0.989358246623382, 0.662969230082183});
  bag("mean", Reduce::mean, -4,
      {0.216561602565314, 0.0916485403898966, -0.0763682623788351, 0, 0, 0, -0.441727327860077, -0.186938332415118,
       0.155770681756689, 0, 0, 0, 0.425218310314282, 0.494679123311691, 0.331484615041092});
  bag("max", Reduce::max, 1,
      {0.420735492403948, 0.495832405226234, 0.337731590275575, 0, 0, 0, -0.441727327860077, -0.186938332415118,
       0.155770681756689, 0, 0, 0, 0.425218310314282, 0.494679123311691, 0.331484615041092});
}

TEST_CASE("a bag of factors, or of rows of an index, gives PyTorch's values") {
  // fill(nn.EmbeddingBag(5, 3, mode="sum"))(torch.tensor([[0, 4, 1], [2, 2, 3]]),
  //                                         per_sample_weights=wave((2, 3), 1.5))
  Root root;
  nn::EmbeddingBag m(root, "m", {.count = 5, .dim = 3, .mode = Reduce::sum});
  fill_waves(m);
  const Tensor rows = ints({0, 4, 1, 2, 2, 3}, {2, 3}), w = wave({2, 3}, 1.5);
  check_close(m(rows, {}, w), {0.217335519174058, 0.0843566787681493, -0.0882964257718854, 0.0962083721326221,
                               -0.110184626676022, -0.264756073876649});
  nn::EmbeddingBag ends(root, "ends", {.count = 5, .dim = 3, .mode = Reduce::sum, .include_last_offset = true});
  ends.load_state_dict(m.state_dict());
  CHECK(equal(ends(flatten(rows), ints({0, 3, 6}, {3}), flatten(w)), m(rows, {}, w)));
}

TEST_CASE("an embedding bag refuses options outside their range") {
  Root root;
  CHECK_THROWS_AS(nn::EmbeddingBag(root, "a", {.count = 0, .dim = 2}), ConfigError);
  CHECK_THROWS_WITH_AS(nn::EmbeddingBag(root, "b", {.count = 2, .dim = 2, .padding_idx = 2}),
                       doctest::Contains("EmbeddingBag: padding_idx is 2"), ConfigError);
}

}  // namespace
}  // namespace levin
