// A small move-only std::function: the real one costs 0.3 s to parse in every file that includes a public header.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace levin {

template <class Signature>
class Function;

// Holds any callable R(A...); empty by default, true when it holds one. Calling an empty one is undefined.
template <class R, class... A>
class Function<R(A...)> {
 public:
  Function() = default;
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, Function> && std::is_invocable_r_v<R, F&, A...>) Function(F&& f)
      : target_(std::make_unique<Holder<std::remove_cvref_t<F>>>(std::forward<F>(f))) {}
  R operator()(A... args) const { return target_->call(std::forward<A>(args)...); }
  explicit operator bool() const { return target_ != nullptr; }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual R call(A... args) = 0;
  };
  template <class F>
  struct Holder final : Base {
    explicit Holder(F f) : f_(std::move(f)) {}
    R call(A... args) override { return static_cast<R>(f_(std::forward<A>(args)...)); }
    F f_;
  };
  std::unique_ptr<Base> target_;
};

}  // namespace levin
