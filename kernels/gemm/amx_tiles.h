// The eight tiles of AMX, 16 rows of 64 bytes each; a core multiplies two in 16 cycles. A tile of sums holds 16 x 16
// f32 numbers. One of the left operand holds 16 rows of 16 pairs of bf16, one of the right operand 16 rows of pairs of
// 16 columns (Note [Pairs of bf16]). AmxTiles are the CPU's. EmulatedTiles are the same in plain C++, for tests on
// CPUs that have AVX512_BF16, which rounds the sums. Both have
//   zero<N>()  load<N>(from, stride in bytes)  store<N>(to, stride)  multiply<Sum, Left, Right>()
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace levin::kernels {

inline constexpr int kTileSide = 16;

#if defined(__x86_64__)
// One at a time in a thread. Inline assembly, because g++ 12's intrinsics do not say that they read memory.
class AmxTiles {
 public:
  AmxTiles() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const shape;
    static_assert(sizeof shape == 64);
    asm volatile("ldtilecfg %0" ::"m"(shape) : "memory");
  }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
  ~AmxTiles() { asm volatile("tilerelease" ::: "memory"); }

  template <int N>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(N));
  }
  template <int N>
  void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(N) : "memory");
  }
  template <int N>
  void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(N) : "memory");
  }
  template <int Sum, int Left, int Right>
  void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(Left), "i"(Right));
  }
};
#endif

class EmulatedTiles {
 public:
  template <int N>
  void zero() {
    std::memset(tile_[N], 0, sizeof tile_[N]);
  }
  template <int N>
  void load(const void* from, std::int64_t stride) {
    for (int row = 0; row < kTileSide; ++row)
      std::memcpy(tile_[N][row], static_cast<const char*>(from) + row * stride, sizeof tile_[N][row]);
  }
  template <int N>
  void store(void* to, std::int64_t stride) const {
    for (int row = 0; row < kTileSide; ++row)
      std::memcpy(static_cast<char*>(to) + row * stride, tile_[N][row], sizeof tile_[N][row]);
  }
  // A tile's first and second numbers are added up each for themselves, then both to the sum.
  template <int Sum, int Left, int Right>
  void multiply() {
    for (int i = 0; i < kTileSide; ++i) {
      for (int j = 0; j < kTileSide; ++j) {
        float first = 0, second = 0;
        for (int k = 0; k < kTileSide; ++k) {
          const std::uint32_t x = tile_[Left][i][k], y = tile_[Right][k][j];
          first += std::bit_cast<float>(x << 16) * std::bit_cast<float>(y << 16);
          second += std::bit_cast<float>(x & 0xffff0000u) * std::bit_cast<float>(y & 0xffff0000u);
        }
        std::uint32_t& sum = tile_[Sum][i][j];
        sum = std::bit_cast<std::uint32_t>(std::bit_cast<float>(sum) + (first + second));
      }
    }
  }

 private:
  std::uint32_t tile_[8][kTileSide][kTileSide];
};

}  // namespace levin::kernels
