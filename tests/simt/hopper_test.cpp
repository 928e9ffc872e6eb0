// TMA, wgmma and their kin against plain loops: whole numbers, so that results are exact.
#include <doctest/doctest.h>

#include <cmath>

#include "kernels/device/hardware_math.cuh"
#include "tests/simt/hopper.h"
#include "tests/skip.h"

using namespace levin;
using namespace levin::kernels;
using namespace levin::kernels::gpu;
using levin::test::Aligned;
using levin::test::has;
using levin::test::in_every_order;
using levin::test::launch;
using levin::test::map_of;
using levin::test::message_of;

namespace {

// Where piece p of row r lies in a tile that begins at a multiple of 1024, in bytes. PTX ISA, "Swizzling Modes".
int piece_at(Swizzle swizzle, int row_bytes, int r, int p) {
  const int linear = r * row_bytes + p * 16, line = linear / 128, masks[] = {0, 1, 3, 7};
  return linear ^ ((line & masks[int(swizzle)]) * 16);
}

__device__ Barrier* barrier_at(unsigned char* p, unsigned arrivals = 1) {
  Barrier* const barrier = reinterpret_cast<Barrier*>(p);
  if (threadIdx.x == 0) {
    barrier->init(arrivals);
    fence_barrier_init();
  }
  __syncthreads();
  return barrier;
}

// The box at (x, y) as it lies in shared memory.
__global__ void load_box(const __grid_constant__ TensorMap map, int x, int y, int bytes, std::uint16_t* out) {
  LEVIN_SHARED_DYNAMIC(unsigned char, shared);
  unsigned char* const tile = atom_aligned(shared);
  Barrier* const full = barrier_at(tile + 8192);
  if (threadIdx.x < 32 && elect()) {
    full->arrive_expect(unsigned(bytes));
    tma_load(tile, map, x, y, *full);
  }
  full->wait(0);
  for (int i = int(threadIdx.x); i < bytes / 2; i += int(blockDim.x))
    out[i] = reinterpret_cast<const std::uint16_t*>(tile)[i];
}

// The box at (x, y) of one head to the same place of another.
__global__ void move_box(const __grid_constant__ TensorMap map, int x, int y, MapHead from, MapHead to) {
  LEVIN_SHARED_DYNAMIC(unsigned char, shared);
  unsigned char* const tile = atom_aligned(shared);
  Barrier* const full = barrier_at(tile + 8192);
  if (threadIdx.x != 0) return;
  full->arrive_expect(8192);
  tma_load(tile, map, x, y, from, *full);
  full->wait(0);
  tma_store(map, x, y, to, tile);
  bulk_commit();
  bulk_wait<0>();
}

// 64 x 64 numbers 0, 1, .. to (x, y), then their successors to the same place.
__global__ void store_twice(const __grid_constant__ TensorMap map, int x, int y) {
  LEVIN_SHARED_DYNAMIC(unsigned char, shared);
  unsigned char* const tile = atom_aligned(shared);
  for (int time = 0; time < 2; ++time) {
    for (int i = int(threadIdx.x); i < 64 * 32; i += int(blockDim.x)) {
      const int row = i / 32, pair = i % 32, number = row * 64 + pair * 2 + time;
      store_shared(reinterpret_cast<std::uint32_t*>(tile + row * 128 + ((pair / 4) ^ row % 8) * 16 + pair % 4 * 4),
                   rounded_pair<f16>(float(number % 2048), float((number + 1) % 2048)));
    }
    fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
      tma_store(map, x, y, tile);
      bulk_commit();
      bulk_wait<0>();
    }
    __syncthreads();
  }
}

// d [64, kN] = a b^T + a b^T with operands that threads write, each [lines][16] in the direction asked for.
template <class T, int kN, Major kMajorA, Major kMajorB, bool kRegisters>
__global__ void multiply_once(const T* a, const T* b, float* y) {
  LEVIN_SHARED_DYNAMIC(unsigned char, shared);
  unsigned char* const tile = atom_aligned(shared);
  unsigned char* const tile_b = tile + 8192;
  constexpr unsigned kLeading = 2048;  // 64 lines of 16 k, where a row is 64 lines
  const auto put = [&](unsigned char* to, const T* from, int lines, bool along_mn) {
    for (int i = int(threadIdx.x); i < lines * 16; i += 128) {
      const int line = i / 16, k = i % 16;
      const int row = along_mn ? k : line, byte = along_mn ? line % 64 * 2 : k * 2;
      unsigned char* const panel = to + (along_mn ? unsigned(line) / 64 * kLeading : 0);
      unsigned char* const at = panel + row * 128 + ((byte / 16) ^ row % 8) * 16 + byte % 16;
      *reinterpret_cast<std::uint16_t*>(at) = from[i].bits;
    }
  };
  put(tile, a, 64, kMajorA == Major::mn);
  put(tile_b, b, kN, kMajorB == Major::mn);
  __syncthreads();
  // The same bytes again, as the async proxy is to see them.
  for (unsigned i = threadIdx.x; i < (8192 + kN * 128) / 16; i += 128) {
    uint4* const at = reinterpret_cast<uint4*>(tile) + i;
    store_shared(at, *at);
  }
  fence_async_shared();
  __syncthreads();
  float d[kN / 2];
  const int g = int(threadIdx.x) % 32 / 4, q = int(threadIdx.x) % 4, w = int(threadIdx.x) / 32;
  std::uint32_t ra[4];
  for (int r = 0; r < 4; ++r) {
    const int row = 16 * w + g + 8 * (r % 2), k = 8 * (r / 2) + 2 * q;
    ra[r] = a[row * 16 + k].bits | std::uint32_t(a[row * 16 + k + 1].bits) << 16;
  }
  for (float& x : d) x = 1e30f;
  wgmma_fence();
  for (int time = 0; time < 2; ++time) {
    if constexpr (kRegisters)
      wgmma<T, kN, kMajorB>(d, ra, descriptor<kMajorB>(tile_b, kLeading), time == 1);
    else
      wgmma<T, kN, kMajorA, kMajorB>(d, descriptor<kMajorA>(tile, kLeading), descriptor<kMajorB>(tile_b, kLeading),
                                     time == 1);
  }
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < kN / 2; ++i) y[(16 * w + g + 8 * (i / 2 % 2)) * kN + 8 * (i / 4) + 2 * q + i % 2] = d[i];
}

template <class T, int kN, Major kMajorA, Major kMajorB, bool kRegisters = false>
void check_product() {
  Aligned<T> a(64 * 16), b(kN * 16);
  levin::test::fill_integers(a, 1);
  levin::test::fill_integers(b, 2);
  std::vector<float> y(64 * kN);
  launch(multiply_once<T, kN, kMajorA, kMajorB, kRegisters>, 1, 128, 1024 + 8192 + kN * 128,
         static_cast<const T*>(a.data()), static_cast<const T*>(b.data()), y.data());
  int wrong = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    for (std::size_t j = 0; j < kN; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < 16; ++k) sum += 2 * float(a[i * 16 + k]) * float(b[j * 16 + k]);
      wrong += y[i * kN + j] != sum;
    }
  }
  CAPTURE(kN);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("simt: tma_load brings a box in each swizzle, with zeros outside of the matrix on every side") {
  constexpr int kColumns = 40, kRows = 21;
  Aligned<f16> x(kRows * kColumns);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = f16(float(i + 1));
  struct Form {
    Swizzle swizzle;
    int box;
  };
  in_every_order([&] {
    for (const auto [swizzle, box] : {Form{Swizzle::none, 24}, Form{Swizzle::bytes32, 16}, Form{Swizzle::bytes64, 32},
                                      Form{Swizzle::bytes128, 64}}) {
      const int rows = 20, bytes = rows * box * 2;
      const TensorMap map = map_of(x.data(), kColumns, kRows, box, rows, swizzle);
      for (const int left : {-9, 0, 30, 200}) {
        for (const int top : {-7, 0, 13}) {
          std::vector<std::uint16_t> out(std::size_t(bytes / 2));
          launch(load_box, 1, 64, 1024 + 8192 + 64, map, left, top, bytes, out.data());
          int wrong = 0;
          for (int r = 0; r < rows; ++r) {
            for (int c = 0; c < box; ++c) {
              const int row = top + r, column = left + c;
              const bool inside = row >= 0 && row < kRows && column >= 0 && column < kColumns;
              const f16 want = inside ? x[std::size_t(row * kColumns + column)] : f16(0.0f);
              wrong += out[std::size_t(piece_at(swizzle, box * 2, r, c / 8) / 2 + c % 8)] != want.bits;
            }
          }
          CAPTURE(int(swizzle));
          CAPTURE(left);
          CAPTURE(top);
          CHECK(wrong == 0);
        }
      }
    }
  });
}

TEST_CASE("simt: tma_store writes what lies inside of the matrix, and later stores overwrite waited ones") {
  constexpr int kColumns = 104, kRows = 70;
  in_every_order([&] {
    Aligned<f16> y(kRows * kColumns, f16(-1.0f));
    const TensorMap map = map_of(y.data(), kColumns - 8, kRows, 64, 64, Swizzle::bytes128, kColumns);
    launch(store_twice, 1, 64, 1024 + 8192, map, 64, 16);
    int wrong = 0;
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) {
        const bool inside = i >= 16 && j >= 64 && j < kColumns - 8;
        const float want = inside ? float(((i - 16) * 64 + (j - 64) + 1) % 2048) : -1.0f;
        wrong += float(y[std::size_t(i * kColumns + j)]) != want;
      }
    }
    CHECK(wrong == 0);
  });
  Aligned<f16> y(64 * 64);
  const TensorMap map = map_of(y.data(), 64, 64, 64, 64);
  CHECK(has(message_of<InternalError>([&] { launch(store_twice, 1, 64, 1024 + 8192, map, 0, -1); }),
            "tma_store at element 0 of row -1"));
}

TEST_CASE("simt: tma_load and tma_store move a box of one head of a map, and there is nothing beyond its edges") {
  constexpr int kBatches = 2, kRows = 70, kHeads = 3, kColumns = 72;  // memory [batches, rows, heads, columns]
  constexpr std::int64_t kLine = kHeads * kColumns;
  const auto number = [](int i) { return f16(float(i % 2039)); };
  in_every_order([&] {
    Aligned<f16> a(kBatches * kRows * kLine);
    const auto fill = [&] {
      for (std::size_t i = 0; i < a.size(); ++i) a[i] = number(int(i));
    };
    const TensorMap map = tensor_map({.data = a.data(),
                                      .dtype = DType::f16,
                                      .columns = kColumns,
                                      .rows = kRows,
                                      .row_bytes = kLine * 2,
                                      .box_columns = 64,
                                      .box_rows = 64,
                                      .heads = {kHeads, kColumns * 2},
                                      .batches = {kBatches, kRows * kLine * 2}});
    const auto at = [&](int batch, int row, int head, int column) {
      return std::size_t(batch * kRows * kLine + row * kLine + head * kColumns + column);
    };
    for (const bool is_there : {true, false}) {
      fill();
      launch(move_box, 1, 32, 1024 + 8192 + 64, map, 16, 8, MapHead{is_there ? 2 : kHeads, 0}, MapHead{0, 1});
      int wrong = 0;
      for (int batch = 0; batch < kBatches; ++batch) {
        for (int row = 0; row < kRows; ++row) {
          for (int head = 0; head < kHeads; ++head) {
            for (int column = 0; column < kColumns; ++column) {
              const bool moved = batch == 1 && head == 0 && row >= 8 && column >= 16;
              const f16 want = !moved     ? number(int(at(batch, row, head, column)))
                               : is_there ? number(int(at(0, row, 2, column)))
                                          : f16(0.0f);
              wrong += a[at(batch, row, head, column)].bits != want.bits;
            }
          }
        }
      }
      CHECK(wrong == 0);
    }
    fill();
    launch(move_box, 1, 32, 1024 + 8192 + 64, map, 16, 8, MapHead{2, 0}, MapHead{0, kBatches});
    int changed = 0;
    for (std::size_t i = 0; i < a.size(); ++i) changed += a[i].bits != number(int(i)).bits;
    CHECK(changed == 0);
    CHECK(has(message_of<InternalError>([&] {
                launch(move_box, 1, 32, 1024 + 8192 + 64, map, 16, 8, MapHead{2, 0}, MapHead{0, -1});
              }),
              "of batch -1: expected none below 0"));
  });
}

TEST_CASE_TEMPLATE("simt: wgmma multiplies operands of both directions, of every width, and a from registers", T, f16,
                   bf16) {
  in_every_order([] {
    check_product<T, 8, Major::k, Major::k>();
    check_product<T, 64, Major::mn, Major::k>();
    check_product<T, 128, Major::k, Major::mn>();
    check_product<T, 64, Major::k, Major::k, true>();
  });
  check_product<T, 256, Major::mn, Major::mn>();
  check_product<T, 256, Major::k, Major::k>();
  check_product<T, 128, Major::k, Major::mn, true>();
}

TEST_CASE("simt: bytes of tma_load are NaN to threads until a wait for their phase") {
  if (levin::test::kAddressSanitizer) return levin::test::skip("AddressSanitizer ends the process at the read");
  Aligned<f16> x(64 * 64, f16(3.0f));
  const TensorMap map = map_of(x.data(), 64, 64, 64, 64);
  in_every_order([&] {
    float before = 0, after = 0;
    const auto body = [&] {
      LEVIN_SHARED_DYNAMIC(unsigned char, shared);
      unsigned char* const tile = atom_aligned(shared);
      Barrier* const full = barrier_at(tile + 8192);
      if (threadIdx.x != 0) return;
      full->arrive_expect(8192);
      tma_load(tile, map, 0, 0, *full);
      f16 seen;
      seen.bits = *reinterpret_cast<std::uint16_t*>(tile + 40);
      before = float(seen);
      full->wait(0);
      seen.bits = *reinterpret_cast<std::uint16_t*>(tile + 40);
      after = float(seen);
    };
    simt::run_grid(1, 32, 1024 + 8192 + 64, body, "look");
    CHECK(std::isnan(before));
    CHECK(after == 3.0f);
  });
}

TEST_CASE("simt: a barrier counts phases, wait(-1) returns at once, and two phases on is an error") {
  const auto phases = [](int asks) {
    const auto body = [asks] {
      LEVIN_SHARED_DYNAMIC(unsigned char, shared);
      Barrier* const barrier = barrier_at(shared, 2);
      if (threadIdx.x % 32 == 0) barrier->wait(-1);
      for (int phase = 0; phase < 3; ++phase) {
        if (threadIdx.x % 32 == 0) barrier->arrive();
        if (threadIdx.x >= 32 || phase == 2 || asks == 1) barrier->wait(phase);
        __syncthreads();
      }
      if (asks == 0 && threadIdx.x == 0) barrier->wait(0);
    };
    return message_of<InternalError>([&] { simt::run_grid(1, 64, 16, body, "phases"); });
  };
  in_every_order([&] {
    CHECK(phases(1) == "");
    CHECK(has(phases(0), "Barrier::wait(0) is for a phase long past"));
  });
}

TEST_CASE("simt: the tx-count of a barrier has 20 bits") {
  const auto expects = [](unsigned bytes) {
    const auto body = [bytes] {
      LEVIN_SHARED_DYNAMIC(unsigned char, shared);
      Barrier* const barrier = barrier_at(shared, 2);
      if (threadIdx.x == 0) barrier->arrive_expect(bytes);
    };
    return message_of<InternalError>([&] { simt::run_grid(1, 32, 16, body, "expects"); });
  };
  CHECK(expects((1 << 20) - 1) == "");
  CHECK(has(expects(1 << 20), "is 1048576, beyond 1048575"));
}

TEST_CASE("simt: elect chooses one lane, the same in a launch, and both ends of a warp in some schedule") {
  unsigned seen = 0;
  in_every_order([&] {
    std::uint32_t chosen[3] = {};
    const auto body = [&] {
      for (std::uint32_t& c : chosen) {
        if (elect()) c |= 1u << threadIdx.x;
      }
    };
    simt::run_grid(1, 32, 0, body, "elect");
    CHECK((chosen[0] == 1u || chosen[0] == 1u << 31));
    CHECK(chosen[1] == chosen[0]);
    CHECK(chosen[2] == chosen[0]);
    seen |= chosen[0];
  });
  CHECK(seen == (1u | 1u << 31));
}

TEST_CASE("simt: stmatrix is the inverse of ldmatrix") {
  in_every_order([] {
    std::uint32_t in[32][4], out[32][4];
    const auto body = [&] {
      LEVIN_SHARED_DYNAMIC(unsigned char, tile);
      const unsigned lane = threadIdx.x;
      for (unsigned m = 0; m < 4; ++m) in[lane][m] = lane * 4 + m;
      stmatrix_x4(tile + (31 - lane) * 16, in[lane]);
      __syncwarp();
      ldmatrix_x4(out[lane], tile + (31 - lane) * 16);
    };
    simt::run_grid(1, 32, 512, body, "stmatrix");
    for (int lane = 0; lane < 32; ++lane) {
      for (int m = 0; m < 4; ++m) CHECK(out[lane][m] == in[lane][m]);
    }
  });
}

TEST_CASE("simt: instructions of the async proxy need dynamic shared memory") {
  const auto body = [] { fence_async_shared(); };
  CHECK(has(message_of<InternalError>([&] { simt::run_grid(1, 32, 0, body, "none"); }),
            "needs LEVIN_SHARED_DYNAMIC memory"));
}

// ptxas takes 8 groups left for 7 without a word, and refuses other numbers of registers.
template <int kGroupsLeft>
concept Waits = requires {
  wgmma_wait<kGroupsLeft>();
};
static_assert(Waits<0> && Waits<7> && !Waits<8> && !Waits<-1>);
template <int kRegisters>
concept Gives = requires {
  registers_give<kRegisters>();
};
static_assert(Gives<24> && !Gives<16> && !Gives<42> && !Gives<264>);
