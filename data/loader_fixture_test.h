// Shared by the loader's tests: a dataset of numbers, the values of epochs, messages of errors.
#pragma once

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "data/random.h"
#include "levin/data.h"

namespace levin::data::testing {

// Sample i is {i, a random number of its own}.
class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t n) : n_(n) {}
  std::int64_t size() const override { return n_; }
  Sample get(std::int64_t index, Generator& rng) const override {
    Tensor i = empty({1}, Device::cpu(), DType::i64);
    *i.mutable_data<std::int64_t>() = index;
    const Counter drawn = philox({0, 0, 0, 0}, rng.seed() + rng.reserve(4).offset);
    Tensor r = empty({2}, Device::cpu(), DType::i64);
    r.mutable_data<std::int64_t>()[0] = drawn[0];
    r.mutable_data<std::int64_t>()[1] = drawn[1];
    return {i, r};
  }

 private:
  std::int64_t n_;
};

// All values of some epochs, one after the other.
inline std::vector<std::int64_t> content(DataLoader& loader, int epochs = 1) {
  std::vector<std::int64_t> all;
  for (int e = 0; e < epochs; ++e) {
    std::int64_t position = 0;
    for (const Batch& b : loader) {
      CHECK(b.position == position++);
      CHECK(b.size() == b[0].size(0));
      for (const Tensor& field : b.fields) {
        all.insert(all.end(), field.data<std::int64_t>(), field.data<std::int64_t>() + field.numel());
      }
      all.push_back(-1);
    }
  }
  return all;
}

template <class E>
std::string message(const auto& f) {
  try {
    f();
  } catch (const E& e) { return e.what(); }
  return "no such error";
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class Throwing final : public Numbers {
 public:
  Throwing(std::int64_t n, std::int64_t bad, bool levin_error) : Numbers(n), bad_(bad), levin_error_(levin_error) {}
  Sample get(std::int64_t index, Generator& rng) const override {
    if (index == bad_ && levin_error_) fail<ShapeError>("crop: shape is [3], expected [4]");
    if (index == bad_) throw std::runtime_error("disk on fire");
    return Numbers::get(index, rng);
  }

 private:
  std::int64_t bad_;
  bool levin_error_;
};

}  // namespace levin::data::testing
