#include "kernels/lib/tensor_map.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "levin/error.h"

using namespace levin;
using namespace levin::kernels;

TEST_CASE("a tensor map has the limits of cuTensorMapEncodeTiled, each with its own message") {
  const TiledMatrix good{.data = reinterpret_cast<const void*>(std::uintptr_t{4096}),
                         .dtype = DType::bf16,
                         .columns = 72,
                         .rows = 5,
                         .row_bytes = 144,
                         .box_columns = 64,
                         .box_rows = 256};
  CHECK(!tensor_map_refusal(good).has_value());
  const auto refused = [&](auto change, const std::string& why) {
    TiledMatrix m = good;
    change(m);
    const auto said = tensor_map_refusal(m);
    REQUIRE(said.has_value());
    INFO(*said);
    CHECK(said->find(why) != std::string::npos);
    CHECK_THROWS_AS((void)tensor_map(m), UnsupportedError);
  };
  refused([](TiledMatrix& m) { m.data = reinterpret_cast<const void*>(std::uintptr_t{4104}); }, "multiple of 16");
  refused([](TiledMatrix& m) { m.row_bytes = 24; }, "rows 24 bytes apart");
  refused([](TiledMatrix& m) { m.row_bytes = std::int64_t{1} << 40; }, "below 2^40");
  refused([](TiledMatrix& m) { m.row_bytes = 0; }, "rows 0 bytes apart");
  refused([](TiledMatrix& m) { m.columns = 0; }, "5 rows of 0 elements");
  refused([](TiledMatrix& m) { m.rows = (std::int64_t{1} << 32) + 1; }, "expected 1 to 2^32");
  refused([](TiledMatrix& m) { m.box_rows = 257; }, "a box of 257 rows");
  refused([](TiledMatrix& m) { m.box_columns = 68; }, "rows of a box of 136 bytes");
  refused([](TiledMatrix& m) { m.box_columns = 72; }, "rows of a box of 144 bytes");
  refused([](TiledMatrix& m) { m.dtype = DType::f32; }, "dtype f32");
  TiledMatrix many = good;
  many.heads = {3, 720}, many.batches = {2, 2160};
  CHECK(!tensor_map_refusal(many).has_value());
  refused([](TiledMatrix& m) { m.heads = {3, 720}; }, "0 batches, expected 1 to 2^32");
  refused([](TiledMatrix& m) { m.batches = {2, 2160}; }, "0 heads, expected 1 to 2^32");
  refused([](TiledMatrix& m) { m.heads = {3, 8}, m.batches = {2, 2160}; }, "heads 8 bytes apart");
  refused([](TiledMatrix& m) { m.heads = {3, 720}, m.batches = {2, std::int64_t{1} << 40}; }, "batches 1099511627776");
  // Without a swizzle a row of the box may be longer, with a narrow one it is shorter.
  TiledMatrix wide = good;
  wide.box_columns = 256;
  wide.swizzle = Swizzle::none;
  CHECK(!tensor_map_refusal(wide).has_value());
  refused([](TiledMatrix& m) { m.swizzle = Swizzle::bytes64; }, "multiple of 16 up to 64");
  refused([](TiledMatrix& m) { m.swizzle = Swizzle::bytes32; }, "multiple of 16 up to 32");
}
