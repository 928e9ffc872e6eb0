// Which elements of a strided tensor belong to which output of a reduction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "levin/shape.h"

namespace levin::kernels {

// Kept dimensions in order, reduced ones by falling stride; neighbours that one step can walk are merged, size 1 is
// dropped. Steps in elements.
struct ReducePlan {
  int kept = 0, reduced = 0;  // counts of dimensions
  std::array<int64_t, kMaxRank> kept_size{}, kept_step{}, reduced_size{}, reduced_step{};
  int64_t outputs = 1;  // product of the kept sizes
  int64_t n = 1;        // elements of one output

  ReducePlan() = default;
  // Bit d of `mask`: dimension d is reduced.
  ReducePlan(const Shape& shape, const Strides& strides, uint32_t mask) {
    for (int d = 0; d < shape.rank(); ++d) {
      const int64_t size = shape[d], step = strides[d];
      if (mask >> d & 1u) {
        n *= size;
        if (size != 1) insert_reduced(size, step);
      } else {
        outputs *= size;
        if (size == 1) continue;
        if (kept > 0 && kept_step[at(kept - 1)] == step * size) {
          kept_size[at(kept - 1)] *= size;
          kept_step[at(kept - 1)] = step;
        } else {
          kept_size[at(kept)] = size;
          kept_step[at(kept++)] = step;
        }
      }
    }
    merge_reduced();
  }

 private:
  static size_t at(int i) { return static_cast<size_t>(i); }
  // Broadcast dimensions (step 0) go outermost: the walk over real memory stays inside.
  static int64_t rank_of(int64_t step) { return step == 0 ? std::numeric_limits<int64_t>::max() : std::abs(step); }
  void insert_reduced(int64_t size, int64_t step) {
    int i = reduced++;
    for (; i > 0 && rank_of(reduced_step[at(i - 1)]) < rank_of(step); --i) {
      reduced_size[at(i)] = reduced_size[at(i - 1)];
      reduced_step[at(i)] = reduced_step[at(i - 1)];
    }
    reduced_size[at(i)] = size;
    reduced_step[at(i)] = step;
  }
  void merge_reduced() {
    int count = 0;
    for (int i = 0; i < reduced; ++i) {
      if (count > 0 && reduced_step[at(count - 1)] == reduced_step[at(i)] * reduced_size[at(i)]) {
        reduced_size[at(count - 1)] *= reduced_size[at(i)];
        reduced_step[at(count - 1)] = reduced_step[at(i)];
      } else {
        reduced_size[at(count)] = reduced_size[at(i)];
        reduced_step[at(count++)] = reduced_step[at(i)];
      }
    }
    reduced = count;
  }
};

}  // namespace levin::kernels
