// A small move-only std::function: the real one costs 0.3 s to parse in every file that includes a public header.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace levin {

template <class Signature>
class Function;

// Holds any callable R(A...); empty by default, true when it holds one. Calling an empty one is undefined. A callable of up to
// eight words lies inside: a lambda that captures a few references costs no allocation.
template <class R, class... A>
class Function<R(A...)> {
 public:
  Function() = default;
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, Function> && std::is_invocable_r_v<R, std::decay_t<F>&, A...>)
      Function(F&& f) {
    using Held = Holder<std::decay_t<F>>;
    if constexpr (fits<Held>)
      target_ = ::new (static_cast<void*>(place_)) Held(std::forward<F>(f));
    else
      target_ = new Held(std::forward<F>(f));
  }
  Function(Function&& other) noexcept { take(other); }
  Function& operator=(Function&& other) noexcept {
    if (this != &other) {
      clear();
      take(other);
    }
    return *this;
  }
  ~Function() { clear(); }
  R operator()(A... args) const { return target_->call(std::forward<A>(args)...); }
  explicit operator bool() const { return target_ != nullptr; }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual R call(A... args) = 0;
    virtual Base* move_to(std::byte* place) noexcept = 0;
  };
  template <class F>
  struct Holder final : Base {
    template <class G>
    explicit Holder(G&& f) : f_(std::forward<G>(f)) {}
    R call(A... args) override { return static_cast<R>(f_(std::forward<A>(args)...)); }
    Base* move_to([[maybe_unused]] std::byte* place) noexcept override {
      if constexpr (fits<Holder>)
        return ::new (static_cast<void*>(place)) Holder(std::move(f_));
      else
        return this;
    }
    F f_;
  };
  template <class H>
  static constexpr bool fits =
      sizeof(H) <= 9 * sizeof(void*) &&
      alignof(H) <= alignof(std::max_align_t) && std::is_nothrow_move_constructible_v<decltype(H::f_)>;
  [[nodiscard]] bool inside() const { return static_cast<const void*>(target_) == static_cast<const void*>(place_); }
  void take(Function& other) noexcept {
    if (!other.target_) return;
    target_ = other.target_->move_to(place_);
    if (other.inside())
      other.clear();
    else
      other.target_ = nullptr;
  }
  void clear() noexcept {
    if (inside())
      target_->~Base();
    else
      delete target_;
    target_ = nullptr;
  }
  Base* target_ = nullptr;
  alignas(std::max_align_t) std::byte place_[9 * sizeof(void*)];
};

}  // namespace levin
