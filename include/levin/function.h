// A small std::function that also holds callables that can only be moved: the real one costs 0.3 s to parse in each
// file that includes a public header.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "levin/export.h"

namespace levin {

namespace detail {
[[noreturn]] LEVIN_API void fail_empty_function();  // throws StateError
}

template <class Signature>
class Function;

// Holds any callable R(A...); empty by default, true when it holds one. A copy shares the callable, as a copy of a
// Tensor shares its data. Calling an empty one throws StateError. A lambda of up to eight words that captures
// references, pointers and numbers costs no allocation.
template <class R, class... A>
class Function<R(A...)> {
 public:
  Function() = default;
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, Function> && std::is_invocable_r_v<R, std::decay_t<F>&, A...>)
      Function(F&& f) {
    using Held = std::decay_t<F>;
    if constexpr (std::is_pointer_v<std::remove_cvref_t<F>>) {
      if (!f) return;  // a null pointer to a function is none
    }
    if constexpr (lies_inside<Held>) {
      ::new (static_cast<void*>(place_)) Held(std::forward<F>(f));
      call_ = [](const Function& self, A... args) -> R {
        return static_cast<R>((*std::launder(reinterpret_cast<const Held*>(self.place_)))(std::forward<A>(args)...));
      };
    } else {
      shared_ = std::make_shared<Held>(std::forward<F>(f));
      call_ = [](const Function& self, A... args) -> R {
        return static_cast<R>((*static_cast<Held*>(self.shared_.get()))(std::forward<A>(args)...));
      };
    }
  }
  Function(const Function&) = default;
  Function& operator=(const Function&) = default;
  Function(Function&& other) noexcept { *this = std::move(other); }
  Function& operator=(Function&& other) noexcept {
    if (this == &other) return *this;
    call_ = std::exchange(other.call_, nullptr);
    shared_ = std::move(other.shared_);
    for (std::size_t i = 0; i < sizeof place_; ++i) place_[i] = other.place_[i];
    return *this;
  }
  ~Function() = default;
  R operator()(A... args) const {
    if (!call_) [[unlikely]]
      detail::fail_empty_function();
    return call_(*this, std::forward<A>(args)...);
  }
  explicit operator bool() const { return call_ != nullptr; }

 private:
  static constexpr std::size_t kPlace = 8 * sizeof(void*);
  // Whether a copy behaves as the original does: no call changes it, so that a copy in each Function is as good as a
  // shared one.
  template <class F>
  static constexpr bool lies_inside = sizeof(F) <= kPlace && alignof(F) <= alignof(std::max_align_t) &&
                                      std::is_trivially_copyable_v<F>&& std::is_invocable_r_v<R, const F&, A...>;
  R (*call_)(const Function&, A...) = nullptr;
  std::shared_ptr<void> shared_;
  alignas(std::max_align_t) std::byte place_[kPlace]{};
};

}  // namespace levin
