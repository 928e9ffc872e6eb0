// Values as bytes, for Strategy::gather and from_rank_zero: all ranks run the same program.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "levin/error.h"

namespace levin::train {

class Packed {
 public:
  template <class T>
  Packed& add(const T& value) {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      const std::string_view words = value;
      add(static_cast<std::uint64_t>(words.size()));
      bytes_.append(words);
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      char raw[sizeof(T)];
      std::memcpy(raw, &value, sizeof(T));
      bytes_.append(raw, sizeof(T));
    }
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Takes the values in the order in which they were added. Throws CommError where there are no more bytes.
class Unpacked {
 public:
  explicit Unpacked(std::string_view bytes) : left_(bytes) {}
  template <class T>
  [[nodiscard]] T take() {
    if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>) {
      return T(cut(take<std::uint64_t>()));
    } else {
      T value;
      std::memcpy(&value, cut(sizeof(T)).data(), sizeof(T));
      return value;
    }
  }
  [[nodiscard]] bool empty() const { return left_.empty(); }

 private:
  std::string_view cut(std::uint64_t n) {
    if (n > left_.size())
      fail<CommError>("another rank sent ", left_.size(), " bytes where ", n,
                      " were expected; do all ranks call the same functions of the trainer?");
    const std::string_view part = left_.substr(0, static_cast<std::size_t>(n));
    left_.remove_prefix(static_cast<std::size_t>(n));
    return part;
  }
  std::string_view left_;
};

}  // namespace levin::train
