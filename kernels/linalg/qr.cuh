// a = q r by Householder reflections, blocks of them joined (reflections.cuh).
//
//   cpu::qr_each(on, a, q, r, batch, m, n)   what qr() of linalg.h says
//
// Only columns right of a block are reflected by products: of the columns within one, each is reflected by all before
// it, which stay in L1.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_QR_CUH
#define LEVIN_KERNELS_QR_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/executor/cpu.h"
#include "kernels/lib/scratch.h"
#include "kernels/linalg/columns.cuh"
#include "kernels/linalg/each_matrix.h"
#include "kernels/linalg/reflections.cuh"

#define LEVIN_LEVEL_FILE "kernels/linalg/qr.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(qr_each)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class T>
int64_t qr_numbers(int64_t m, int64_t n) {
  const int64_t k = std::min(m, n), pitch = pitch_of<T>(m);
  return (n + k) * pitch + reflection_numbers<T>(k, pitch);
}

// memory: qr_numbers().
template <class T>
void qr_of(const Cpu& on, const T* a, T* q, T* r, int64_t m, int64_t n, T* memory) {
  const int64_t k = std::min(m, n), pitch = pitch_of<T>(m);
  const Columns<T> columns{memory, pitch}, q_columns{columns[n], pitch};
  const Reflections<T> h = reflections(q_columns[k], k, pitch, m, int64_t{0});
  // Numbers whose sums of squares are far from the ends of the range stay as they are.
  Extent<T> extent;
  extent.add(a, m * n);
  constexpr int kFar = std::numeric_limits<T>::max_exponent / 2;
  const T factor =
      extent.is_finite() && extent.most != 0 && std::abs(std::ilogb(extent.most)) > kFar ? extent.factor() : T(1);
  columns_of_rows(a, n, factor, columns, m, n);
  factorise(on, columns, n, h);
  put_identity(q_columns, k);
  h.put_on(on, q_columns, k, true);
  for (int64_t j = 0; j < n; ++j) std::fill(columns[j] + std::min(k, j + 1), columns[j] + k, T(0));
  rows_of_columns<T>(on, {columns.data, pitch}, nullptr, 1 / factor, r, n, k, n);
  rows_of_columns<T>(on, {q_columns.data, pitch}, nullptr, T(1), q, k, m, k);
}

template <class T>
void qr_each(const Cpu& on, const T* a, T* q, T* r, int64_t batch, int64_t m, int64_t n) {
  const int64_t k = std::min(m, n);
  if (k == 0) return;
  const int64_t bytes = qr_numbers<T>(m, n) * int64_t(sizeof(T));
  (void)each_matrix(on, batch, 200 + m * n * k / 8, bytes, [&](int64_t i, const lib::Scratch& memory) {
    qr_of(on, a + i * m * n, q + i * m * k, r + i * k * n, m, n, memory.as<T>());
    return true;
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
