// Containers whose children are named "0", "1", ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "levin/function.h"
#include "levin/nn/module.h"

namespace levin::nn {

// Modules called one after another, each Tensor -> Tensor:
//
//   nn::Sequential net({.gen = gen, .device = device});
//   net.add<nn::Linear>({.in = 784, .out = 256});
//   net.add<nn::ReLU>();
class LEVIN_API Sequential : public Module {
 public:
  using Module::Module;

  // Constructs T(*this, "<size>", options) or T(*this, "<size>", args...) at the end and returns it.
  template <class T>
  T& add(const typename T::Options& options) {
    return append(std::make_unique<T>(*this, next_name(), options));
  }
  template <class T, class... Args>
  requires std::is_constructible_v<T, Module&, std::string, Args...> T& add(Args&&... args) {
    return append(std::make_unique<T>(*this, next_name(), std::forward<Args>(args)...));
  }

  Tensor operator()(const Tensor& x) const { return run(x, 0, size()); }
  // Children begin to end - 1 only: a stage of a pipeline. Throws IndexError unless 0 <= begin <= end <= size().
  [[nodiscard]] Tensor run(const Tensor& x, std::int64_t begin, std::int64_t end) const;
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }
  [[nodiscard]] Module& operator[](std::int64_t i);  // throws IndexError

 private:
  struct Entry {
    std::unique_ptr<Module> module;
    Function<Tensor(const Tensor&)> call;
  };
  [[nodiscard]] std::string next_name() const { return std::to_string(entries_.size()); }
  template <class T>
  T& append(std::unique_ptr<T> owned) {
    T& module = *owned;
    entries_.push_back({std::move(owned), [&module](const Tensor& x) { return module(x); }});
    return module;
  }
  std::vector<Entry> entries_;
};

// Modules of one type, which their owner calls:
//
//   nn::ModuleList<Block> blocks{*this, "blocks"};
//   for (const Block& block : blocks) x = block(x);
template <class T>
class ModuleList : public Module {
  template <class Pointer, class Value>
  struct Iterator {
    Pointer at;
    Value& operator*() const { return **at; }
    Iterator& operator++() {
      ++at;
      return *this;
    }
    friend bool operator==(const Iterator&, const Iterator&) = default;
  };

 public:
  using Module::Module;
  template <class U = T>
  T& add(const typename U::Options& options) {
    return append(std::make_unique<T>(*this, next_name(), options));
  }
  template <class... Args>
  requires std::is_constructible_v<T, Module&, std::string, Args...> T& add(Args&&... args) {
    return append(std::make_unique<T>(*this, next_name(), std::forward<Args>(args)...));
  }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }
  [[nodiscard]] T& operator[](std::int64_t i) { return *entries_[check(i)]; }  // throws IndexError
  [[nodiscard]] const T& operator[](std::int64_t i) const { return *entries_[check(i)]; }
  auto begin() { return Iterator<std::unique_ptr<T>*, T>{entries_.data()}; }
  auto end() { return Iterator<std::unique_ptr<T>*, T>{entries_.data() + entries_.size()}; }
  auto begin() const { return Iterator<const std::unique_ptr<T>*, const T>{entries_.data()}; }
  auto end() const { return Iterator<const std::unique_ptr<T>*, const T>{entries_.data() + entries_.size()}; }

 private:
  [[nodiscard]] std::string next_name() const { return std::to_string(entries_.size()); }
  [[nodiscard]] std::size_t check(std::int64_t i) const {
    if (i < 0 || i >= size()) fail<IndexError>("ModuleList: index is ", i, ", expected 0 to ", size() - 1);
    return static_cast<std::size_t>(i);
  }
  T& append(std::unique_ptr<T> owned) {
    entries_.push_back(std::move(owned));
    return *entries_.back();
  }
  std::vector<std::unique_ptr<T>> entries_;
};

}  // namespace levin::nn
