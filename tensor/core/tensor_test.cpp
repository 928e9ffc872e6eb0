#include "levin/tensor.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>

using namespace levin;

namespace {

std::string message(const auto& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "";
}

}  // namespace

TEST_CASE("an undefined tensor refuses every question with a typed error") {
  const Tensor none;
  CHECK(!none.defined());
  CHECK_THROWS_AS((void)none.shape(), StateError);
  CHECK_THROWS_AS((void)none.dtype(), StateError);
  CHECK_THROWS_AS((void)none.device(), StateError);
  CHECK_THROWS_AS((void)none.data<float>(), StateError);
  CHECK_THROWS_AS((void)none.item(), StateError);
  CHECK_THROWS_AS((void)none.detach(), StateError);
  Tensor moved = empty({2}, Device::cpu());
  const Tensor taken = std::move(moved);
  CHECK(!moved.defined());
  CHECK(taken.defined());
}

TEST_CASE("a new tensor is dense, knows its kind and starts at version 0") {
  const Tensor x = empty({2, 3, 4}, Device::cpu(), DType::i64);
  CHECK(x.rank() == 3);
  CHECK(x.numel() == 24);
  CHECK(x.size(-1) == 4);
  CHECK(x.stride(0) == 12);
  CHECK(x.stride(-2) == 4);
  CHECK(x.is_contiguous());
  CHECK(x.version() == 0);
  CHECK(x.offset() == 0);
  CHECK(x.dtype() == DType::i64);
  CHECK_THROWS_AS((void)x.size(3), IndexError);
  CHECK_THROWS_AS((void)x.stride(-4), IndexError);
}

TEST_CASE("copying a handle shares data, and a write through one is seen by the other") {
  Tensor a = empty({2}, Device::cpu());
  const Tensor b = a;
  a.mutable_data<float>()[1] = 5;
  CHECK(b.data<float>()[1] == 5);
  CHECK(b.version() == 1);
  CHECK(a.shares_storage(b));
  CHECK(!a.shares_storage(empty({2}, Device::cpu())));
}

TEST_CASE("a view shares its base's version counter") {
  Tensor base = empty({4, 4}, Device::cpu());
  Tensor view = as_strided(base, {4}, Strides{{5}}, 0);
  const Tensor detached = base.detach();
  view.mutable_data<float>()[0] = 1;
  CHECK(base.version() == 1);
  CHECK(detached.version() == 1);
  CHECK(detached.shares_storage(view));
  CHECK(detached.data<float>()[0] == 1);
}

TEST_CASE("host access is refused for another dtype and for a device without host memory") {
  Tensor x = empty({2}, Device::cpu());
  CHECK_THROWS_AS((void)x.data<double>(), DTypeError);
  CHECK_THROWS_AS((void)x.mutable_data<std::int32_t>(), DTypeError);
  CHECK(x.version() == 0);
  const Tensor meta = empty({2}, Device::meta());
  CHECK_THROWS_AS((void)meta.data<float>(), DeviceError);
  CHECK(message([&] { (void)x.data<double>(); }) == "data: the tensor is f32, asked for f64");
}

TEST_CASE("contiguous means dense row-major; dimensions of size one and single elements do not matter") {
  const Tensor x = empty({6}, Device::cpu());
  CHECK(as_strided(x, {2, 3}, Strides{{3, 1}}, 0).is_contiguous());
  CHECK(!as_strided(x, {3, 2}, Strides{{1, 3}}, 0).is_contiguous());
  CHECK(!as_strided(x, {3}, Strides{{2}}, 0).is_contiguous());
  CHECK(!as_strided(x, {3}, Strides{{0}}, 0).is_contiguous());
  CHECK(as_strided(x, {2, 1, 3}, Strides{{3, 99, 1}}, 0).is_contiguous());
  CHECK(as_strided(x, {1, 1}, Strides{{7, 9}}, 5).is_contiguous());
  CHECK(as_strided(x, {0, 5}, Strides{{1, 9}}, 0).is_contiguous());
  CHECK(as_strided(x, {4}, Strides{{1}}, 2).is_contiguous());
}

TEST_CASE("a view that would leave its storage is refused, also by strides that overflow") {
  const Tensor x = empty({6}, Device::cpu());
  CHECK_NOTHROW((void)as_strided(x, {3}, Strides{{2}}, 1));
  CHECK_NOTHROW((void)as_strided(x, {6}, Strides{{-1}}, 5));
  CHECK_THROWS_AS((void)as_strided(x, {3}, Strides{{2}}, 2), ShapeError);
  CHECK_THROWS_AS((void)as_strided(x, {7}, Strides{{1}}, 0), ShapeError);
  CHECK_THROWS_AS((void)as_strided(x, {2}, Strides{{1}}, -1), ShapeError);
  CHECK_THROWS_AS((void)as_strided(x, {6}, Strides{{-1}}, 4), ShapeError);
  CHECK_THROWS_AS((void)as_strided(x, {3}, Strides{{std::int64_t{1} << 62}}, 0), ShapeError);
  CHECK_THROWS_AS((void)as_strided(x, {2, 2}, Strides{{std::int64_t{1} << 62, std::int64_t{1} << 62}}, 0), ShapeError);
  CHECK_NOTHROW((void)as_strided(x, {0}, Strides{{1}}, 3));
}

TEST_CASE("host memory becomes a tensor without a copy and its owner is kept until the last view is gone") {
  auto owner = std::make_shared<std::vector<float>>(6, 1.5f);
  const std::weak_ptr<std::vector<float>> watch = owner;
  Tensor view;
  {
    const Tensor x = from_blob(owner->data(), {2, 3}, DType::f32, owner, "a test");
    CHECK(x.data<float>() == owner->data());
    CHECK(x.is_contiguous());
    view = as_strided(x, {2}, Strides{{1}}, 4);
  }
  owner.reset();
  CHECK(!watch.expired());
  CHECK(view.data<float>()[1] == 1.5f);
  view = {};
  CHECK(watch.expired());
}

TEST_CASE("null and misaligned host memory is refused by the name of its source") {
  alignas(8) static char bytes[64];
  CHECK_THROWS_AS((void)from_blob(nullptr, {1}, DType::f32, nullptr, "a test"), ShapeError);
  CHECK_NOTHROW((void)from_blob(nullptr, {0}, DType::f32, nullptr, "a test"));
  CHECK(message([] { (void)from_blob(bytes + 1, {1}, DType::f32, nullptr, "my array"); }).find("my array") !=
        std::string::npos);
}

TEST_CASE("meta tensors have a shape of any allowed size and no values") {
  const Tensor x = empty({std::int64_t{1} << 24, std::int64_t{1} << 24}, Device::meta(), DType::f64);
  CHECK(x.numel() == std::int64_t{1} << 48);
  CHECK_THROWS_AS((void)x.to_vector<double>(), UnsupportedError);
  CHECK_THROWS_AS((void)empty({}, Device::meta()).item(), UnsupportedError);
}

TEST_CASE("empty_like is dense whatever the strides of its model") {
  const Tensor x = empty({2, 3}, Device::cpu());
  const Tensor t = as_strided(x, {3, 2}, Strides{{1, 3}}, 0);
  const Tensor y = empty_like(t, DType::u8);
  CHECK(y.shape() == Shape{3, 2});
  CHECK(y.is_contiguous());
  CHECK(y.dtype() == DType::u8);
  CHECK(empty_like(empty({2}, Device::meta())).device() == Device::meta());
}
