#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "levin/tensor.h"

using namespace levin;
using detail::Ref;
using detail::Storage;

TEST_CASE("storage of every size is aligned to 64 bytes and knows its size") {
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 512, 513, 4096, 100000, 1 << 22, (1 << 22) + 1}) {
    const Ref<Storage> s = Storage::allocate(bytes, Device::cpu());
    CHECK(s->bytes == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(s->data) % 64 == 0);
    CHECK(s->use_count() == 1);
    for (std::size_t i = 0; i < bytes; ++i) s->data[i] = std::byte{1};  // all of it is ours: ASan would object
  }
}

TEST_CASE("every write moves the version and leaves the writer's name") {
  const Ref<Storage> s = Storage::allocate(64, Device::cpu());
  CHECK(s->version == 0);
  s->wrote("add_");
  s->wrote("mul_");
  CHECK(s->version == 2);
  CHECK(std::string(s->writer.load()) == "mul_");
}

TEST_CASE("a carved storage has a version of its own, shares memory and keeps its parent alive") {
  Ref<Storage> child;
  std::byte* memory = nullptr;
  {
    const Ref<Storage> parent = Storage::allocate(4096, Device::cpu());
    memory = parent->data;
    child = Storage::carve(parent, 128, 256);
    CHECK(parent->use_count() == 2);
    parent->wrote("step");
    CHECK(child->version == 0);
    child->wrote("grad");
    child->wrote("grad");
    CHECK(parent->version == 1);
    CHECK(child->version == 2);
  }
  CHECK(child->data == memory + 128);
  CHECK(child->bytes == 256);
  child->data[255] = std::byte{7};  // the parent's memory is still there
  CHECK(child->data[255] == std::byte{7});
}

TEST_CASE("carving outside of the parent is refused, also where offset and size would overflow") {
  const Ref<Storage> parent = Storage::allocate(1024, Device::cpu());
  CHECK_NOTHROW((void)Storage::carve(parent, 1024, 0));
  CHECK_NOTHROW((void)Storage::carve(parent, 0, 1024));
  CHECK_THROWS_AS((void)Storage::carve(parent, 0, 1025), ShapeError);
  CHECK_THROWS_AS((void)Storage::carve(parent, 1025, 0), ShapeError);
  CHECK_THROWS_AS((void)Storage::carve(parent, 8, ~std::size_t{0} - 4), ShapeError);
  CHECK(parent->use_count() == 1);
}

TEST_CASE("wrapped memory is not copied and its owner lives exactly as long as the storage") {
  auto owner = std::make_shared<int>(42);
  const std::weak_ptr<int> watch = owner;
  {
    Ref<Storage> s = Storage::wrap(owner.get(), sizeof(int), Device::cpu(), owner, "a test");
    CHECK(reinterpret_cast<int*>(s->data) == owner.get());
    owner.reset();
    CHECK(!watch.expired());
    const Ref<Storage> child = Storage::carve(s, 0, 4);
    s = {};
    CHECK(!watch.expired());
  }
  CHECK(watch.expired());
}

TEST_CASE("meta storage has a size and no memory") {
  const Ref<Storage> s = Storage::allocate(std::size_t{1} << 45, Device::meta());
  CHECK(s->data == nullptr);
  CHECK(s->bytes == std::size_t{1} << 45);
  CHECK(Storage::carve(s, 100, 100)->data == nullptr);
}
