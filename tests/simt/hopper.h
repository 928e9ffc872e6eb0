// What the tests of kernels/device/hopper.cuh share.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/device/hopper.cuh"
#include "tests/simt/launch.h"

namespace levin::test {

// Restores the order of completion that a test chose.
class KeepCompletion {
 public:
  ~KeepCompletion() { simt::set_completion(before_); }

 private:
  simt::Completion before_ = simt::completion();
};

// Calls f() under each schedule with each order of completion, three seeds where both are random; afterwards the
// process has the ones it had.
template <class F>
void in_every_order(F f) {
  const KeepSchedule keep;
  const KeepCompletion keep_completion;
  for (const simt::Schedule schedule : simt::kSchedules) {
    for (const simt::Completion completion : simt::kCompletions) {
      const bool seeded = completion == simt::Completion::random && schedule >= simt::Schedule::shuffled;
      for (std::uint64_t seed = 3; seed < (seeded ? 6 : 4); ++seed) {
        simt::set_schedule(schedule, seed);
        simt::set_completion(completion, seed);
        INFO(simt::name(schedule), ", ", simt::name(completion), ", seed ", seed);
        f();
      }
    }
  }
}

// Memory that TMA can address.
template <class T>
class Aligned {
 public:
  explicit Aligned(std::size_t n, T value = T{}) : memory_(n + 64 / sizeof(T), value), n_(n) {}
  [[nodiscard]] T* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (64 - address % 64) % 64 / sizeof(T);
  }
  [[nodiscard]] std::size_t size() const { return n_; }
  T& operator[](std::size_t i) { return data()[i]; }

 private:
  std::vector<T> memory_;
  std::size_t n_;
};

template <class T>
kernels::TensorMap map_of(T* data, std::int64_t columns, std::int64_t rows, int box_columns, int box_rows,
                          kernels::Swizzle swizzle = kernels::Swizzle::bytes128, std::int64_t step = 0) {
  return kernels::tensor_map({.data = data,
                              .dtype = dtype_of<T>,
                              .columns = columns,
                              .rows = rows,
                              .row_bytes = (step != 0 ? step : columns) * std::int64_t(sizeof(T)),
                              .box_columns = box_columns,
                              .box_rows = box_rows,
                              .swizzle = swizzle});
}

// Whole numbers from -4 to 4: sums of a few hundred products are exact.
template <class T>
void fill_integers(Aligned<T>& a, std::uint32_t seed) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    a[i] = T(float(int(seed >> 24) % 9 - 4));
  }
}

// What this program's test `name` prints when it is to plant a bug, for bugs that AddressSanitizer reports: it ends the
// process. In the child planted_in_child() is the bug's number; elsewhere null.
struct Child {
  bool ended_well;
  std::string output;
};
inline const char* planted_in_child() { return std::getenv("LEVIN_SIMT_PLANTED"); }
inline Child child_with(int bug, const std::string& name) {
  char self[PATH_MAX] = {};
  REQUIRE(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  const std::string command =
      "LEVIN_SIMT_PLANTED=" + std::to_string(bug) + " '" + std::string(self) + "' --filter '" + name + "' 2>&1";
  FILE* const child = popen(command.c_str(), "r");
  REQUIRE(child != nullptr);
  std::string output;
  char part[4096];
  while (const std::size_t n = fread(part, 1, sizeof part, child)) output.append(part, n);
  return {pclose(child) == 0, output};
}

}  // namespace levin::test
