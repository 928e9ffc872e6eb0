#include "data/graph/growing.h"

#include <doctest/doctest.h>

#include <vector>

#include "levin/ops.h"

namespace levin::gnn {
namespace {

std::int64_t first_after_writing(Tensor spare) {
  Growing<std::int64_t> list(std::move(spare));
  std::int64_t* const to = list.reserve(3);
  for (int i = 0; i < 3; ++i) to[i] = 7;
  return list.finish(3).to_vector<std::int64_t>()[0];
}

}  // namespace

TEST_CASE("a list of a batch is written into the memory of an earlier one where no other has it, and else into new") {
  const Shape shape{4};
  Tensor spare = full(shape, 1, Device::cpu(), DType::i64);
  const std::int64_t* const memory = spare.data<std::int64_t>();
  spare = resized(std::move(spare), {2, 2}, DType::i64);
  CHECK(spare.data<std::int64_t>() == memory);
  CHECK(spare.shape() == Shape{2, 2});
  CHECK(first_after_writing(std::move(spare)) == 7);

  const auto untouched = [&](const Tensor& other, auto&& spare_of) {
    const std::vector<std::int64_t> before = other.to_vector<std::int64_t>();
    CHECK(first_after_writing(spare_of()) == 7);
    Tensor written = resized(spare_of(), shape, DType::i64);
    for (int i = 0; i < 4; ++i) written.mutable_data<std::int64_t>()[i] = 7;
    CHECK(other.to_vector<std::int64_t>() == before);
  };
  const Tensor other = full(shape, 1, Device::cpu(), DType::i64);
  untouched(other, [&] { return other; });           // another handle
  untouched(other, [&] { return other.detach(); });  // another tensor with its memory
  std::vector<std::int64_t> foreign(4, 1);
  const auto wrapped = [&] { return from_blob(foreign.data(), shape, DType::i64, nullptr, "the test"); };
  untouched(wrapped(), wrapped);  // no tensor of Levin's has it
}

}  // namespace levin::gnn
