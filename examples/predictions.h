// The predictions of a classifier beside the truth: the confusion of classes, the misclassified samples.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "levin/levin.h"

namespace levin::examples {

struct Predictions {
  // `classes`: their names. `what`: what a class is, for the heading.
  explicit Predictions(std::vector<std::string> classes_ = {}, std::string what_ = "class")
      : classes(std::move(classes_)), what(std::move(what_)), confusion(classes.size() * classes.size()) {}
  std::vector<std::string> classes;
  std::string what;
  std::vector<std::int64_t> truth, predicted;  // by position in the test set
  std::vector<std::int64_t> confusion;         // [true, predicted]

  void add(const Tensor& logits, const Tensor& labels) {
    const std::vector<std::int64_t> t = labels.to_vector<std::int64_t>();
    const std::vector<std::int64_t> p = argmax(logits, 1).to_vector<std::int64_t>();
    for (std::size_t i = 0; i < t.size(); ++i) add(t[i], p[i]);
  }
  [[nodiscard]] std::vector<std::int64_t> wrong() const {
    std::vector<std::int64_t> at;
    for (std::size_t i = 0; i < truth.size(); ++i) {
      if (truth[i] != predicted[i]) at.push_back(static_cast<std::int64_t>(i));
    }
    return at;
  }
  [[nodiscard]] double accuracy() const {
    const auto count = static_cast<double>(truth.size());
    return (count - static_cast<double>(wrong().size())) / count;
  }
  // A row a class: how often each class was predicted, and the share that is right.
  void print() const {
    std::size_t widest = 5;
    for (const std::string& name : classes) widest = std::max(widest, name.size());
    const int first = static_cast<int>(widest);
    std::printf("confusion (row: true %s, column: predicted)\n%*s", what.c_str(), first, "");
    for (std::size_t c = 0; c < classes.size(); ++c) std::printf("%6zu", c);
    std::printf("   correct\n");
    for (std::size_t r = 0; r < classes.size(); ++r) {
      std::int64_t all = 0;
      std::printf("%*s", first, classes[r].c_str());
      for (std::size_t c = 0; c < classes.size(); ++c) {
        all += at(r, c);
        std::printf("%6lld", static_cast<long long>(at(r, c)));
      }
      std::printf("  %6.2f %%\n", all > 0 ? 100.0 * static_cast<double>(at(r, r)) / static_cast<double>(all) : 0);
    }
  }

 private:
  friend class RankPredictions;
  void add(std::int64_t t, std::int64_t p) {
    truth.push_back(t);
    predicted.push_back(p);
    ++confusion.at(static_cast<std::size_t>(t) * classes.size() + static_cast<std::size_t>(p));
  }
  [[nodiscard]] std::int64_t at(std::size_t r, std::size_t c) const { return confusion[r * classes.size() + c]; }
};

// The predictions of ranks, of which each tests a part of the samples.
class RankPredictions {
 public:
  // `places`: of the samples in the test set.
  void add(const Tensor& logits, const Tensor& labels, const std::vector<std::int64_t>& places) {
    const std::vector<std::int64_t> t = labels.to_vector<std::int64_t>();
    const std::vector<std::int64_t> p = argmax(logits, 1).to_vector<std::int64_t>();
    for (std::size_t i = 0; i < t.size(); ++i) {
      for (const std::int64_t number : {places.at(i), t[i], p[i]})
        mine_.append(reinterpret_cast<const char*>(&number), sizeof number);
    }
  }
  // Adds those of all ranks, by position. Every rank calls it.
  void add_to(Predictions& all, Strategy& ranks) const {
    std::map<std::int64_t, std::array<std::int64_t, 3>> by_place;
    for (const std::string& of_rank : ranks.gather(mine_)) {
      std::array<std::int64_t, 3> sample{};
      for (std::size_t at = 0; at + sizeof sample <= of_rank.size(); at += sizeof sample) {
        std::memcpy(sample.data(), of_rank.data() + at, sizeof sample);
        by_place.emplace(sample[0], sample);
      }
    }
    for (const auto& [place, sample] : by_place) all.add(sample[1], sample[2]);
  }

 private:
  std::string mine_;
};

}  // namespace levin::examples
