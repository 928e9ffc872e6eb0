#include "kernels/lib/tensor_map.h"

#include "levin/error.h"

#if defined(LEVIN_CUDA)
#include <cuda.h>
#include <cuda_runtime.h>

#include <bit>
#elif defined(LEVIN_SIMT)
#include <cstring>
#endif

namespace levin::kernels {

namespace {

constexpr std::int64_t kElement = 2;  // bytes

bool within(std::int64_t x, std::int64_t most) { return x >= 1 && x <= most; }
bool is_step(std::int64_t bytes) { return bytes % 16 == 0 && within(bytes, (std::int64_t{1} << 40) - 1); }

std::optional<std::string> refusal_of(const TiledMatrix::Many& many, const char* what) {
  if (!within(many.count, std::int64_t{1} << 32)) return text(many.count) + " " + what + ", expected 1 to 2^32";
  if (!is_step(many.bytes))
    return std::string(what) + " " + text(many.bytes) + " bytes apart, expected a multiple of 16 below 2^40";
  return {};
}

}  // namespace

// The limits of cuTensorMapEncodeTiled.
std::optional<std::string> tensor_map_refusal(const TiledMatrix& m) {
  constexpr std::int64_t kMostRow[] = {256 * kElement, 32, 64, 128};  // bytes of a row of the box, by swizzle
  const std::int64_t box_row = m.box_columns * kElement;
  if (m.dtype != DType::f16 && m.dtype != DType::bf16) return "dtype " + text(m.dtype) + ", expected f16 or bf16";
  if (reinterpret_cast<std::uintptr_t>(m.data) % 16 != 0) return "the address is not a multiple of 16";
  if (!within(m.columns, std::int64_t{1} << 32) || !within(m.rows, std::int64_t{1} << 32))
    return text(m.rows) + " rows of " + text(m.columns) + " elements, expected 1 to 2^32 of each";
  if (!is_step(m.row_bytes)) return "rows " + text(m.row_bytes) + " bytes apart, expected a multiple of 16 below 2^40";
  if (!within(m.box_columns, 256) || !within(m.box_rows, 256))
    return "a box of " + text(m.box_rows) + " rows of " + text(m.box_columns) + " elements, expected 1 to 256 of each";
  if (box_row % 16 != 0 || box_row > kMostRow[int(m.swizzle)])
    return "rows of a box of " + text(box_row) + " bytes, expected a multiple of 16 up to " +
           text(kMostRow[int(m.swizzle)]);
  if (!m.is_of_heads() && m.batches.count == 0) return {};
  if (auto why = refusal_of(m.heads, "heads")) return why;
  return refusal_of(m.batches, "batches");
}

namespace {

#if defined(LEVIN_CUDA)

// By the runtime: a link to libcuda would keep programs from starting on machines without a driver.
decltype(&cuTensorMapEncodeTiled) encoder() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
  if (code != cudaSuccess || found != cudaDriverEntryPointSuccess)
    fail<CudaError>("tensor_map: the driver has no cuTensorMapEncodeTiled (", cudaGetErrorName(code), ")");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
}

TensorMap encoded(const TiledMatrix& m) {
  static const auto encode = encoder();
  constexpr CUtensorMapSwizzle kSwizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                              CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B};
  const cuuint64_t sizes[] = {cuuint64_t(m.columns), cuuint64_t(m.rows), cuuint64_t(m.heads.count),
                              cuuint64_t(m.batches.count)},
                   steps[] = {cuuint64_t(m.row_bytes), cuuint64_t(m.heads.bytes), cuuint64_t(m.batches.bytes)};
  const cuuint32_t box[] = {cuuint32_t(m.box_columns), cuuint32_t(m.box_rows), 1, 1}, every[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult code = encode(
      &map, m.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      m.is_of_heads() ? 4 : 2, const_cast<void*>(m.data), sizes, steps, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
      kSwizzles[int(m.swizzle)], CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) fail<CudaError>("tensor_map: cuTensorMapEncodeTiled returns ", int(code));
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
  return std::bit_cast<TensorMap>(map);
}

#elif defined(LEVIN_SIMT)

constexpr std::uint64_t kMark = 0x7069786d70616d74u;

TensorMap encoded(const TiledMatrix& m) {
  static_assert(sizeof m + 8 <= sizeof(TensorMap));
  TensorMap map{};
  map.words[0] = kMark;
  std::memcpy(&map.words[1], &m, sizeof m);
  return map;
}

#else

TensorMap encoded(const TiledMatrix&) { fail<UnsupportedError>("tensor_map: this build launches no kernels"); }

#endif

}  // namespace

TensorMap tensor_map(const TiledMatrix& matrix) {
  if (const auto why = tensor_map_refusal(matrix)) fail<UnsupportedError>("tensor_map: ", *why);
  return encoded(matrix);
}

#if defined(LEVIN_SIMT)
std::optional<TiledMatrix> decoded(const TensorMap& map) {
  if (map.words[0] != kMark) return {};
  TiledMatrix m;
  std::memcpy(static_cast<void*>(&m), &map.words[1], sizeof m);
  return m;
}
#endif

}  // namespace levin::kernels
