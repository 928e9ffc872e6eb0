// The errors that Levin throws: typed, thrown before anything changes, worded `op: what is wrong, actual and expected;
// what to do`. While a module is called, and in the backward of an op of its call, the text begins with the module's
// path: `in encoder.3.linear1: linear: ...` (levin/nn/call.h).
#pragma once

#include <concepts>
#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

#include "levin/export.h"

namespace levin {

namespace detail {
struct NamedBatch;
}

// The base of all errors. what() is message() after "in <module_path()>: " where there is a path, and after the batch,
// as in "epoch 3, batch 17: ", where a trainer's step threw it.
class LEVIN_API Error : public std::runtime_error {
 public:
  // module_path() becomes that of the module that this thread is calling.
  Error(const std::string& message, std::source_location at);
  [[nodiscard]] std::string_view message() const noexcept;
  [[nodiscard]] std::string_view op() const noexcept;           // the message up to its first colon
  [[nodiscard]] std::string_view module_path() const noexcept;  // "encoder.3.linear1"; empty outside of modules
  [[nodiscard]] const std::source_location& where() const noexcept { return at_; }

 private:
  friend struct detail::NamedBatch;
  Error(const std::string& message, std::source_location at, std::uint32_t module_path);
  std::source_location at_;
  std::uint32_t module_path_;      // interned
  std::uint32_t batch_words_ = 0;  // the length of the batch's name at the start of what()
};

// One class for each kind of error.
#define LEVIN_ERROR_TYPE(Name)                                                        \
  class LEVIN_API Name : public Error {                                               \
   public:                                                                            \
    Name(const std::string& message, std::source_location at) : Error(message, at) {} \
  }
LEVIN_ERROR_TYPE(ShapeError);        // shapes that do not fit each other or the op
LEVIN_ERROR_TYPE(DTypeError);        // dtypes that differ, or that the argument may not have
LEVIN_ERROR_TYPE(DeviceError);       // tensors on different devices, or data asked for on the wrong one
LEVIN_ERROR_TYPE(IndexError);        // an index, dimension or class outside its range
LEVIN_ERROR_TYPE(AutogradError);     // misuse of recording: stale saved tensors, in-place writes, freed graphs
LEVIN_ERROR_TYPE(CaptureError);      // something that a graph cannot record
LEVIN_ERROR_TYPE(UnsupportedError);  // a combination of op, dtype and device without a kernel
LEVIN_ERROR_TYPE(OutOfMemoryError);  // a failed allocation, with bytes wanted and in use
LEVIN_ERROR_TYPE(CudaError);         // an error code of the CUDA runtime or its libraries
LEVIN_ERROR_TYPE(CommError);         // a collective that failed or timed out
LEVIN_ERROR_TYPE(FormatError);       // a file whose content is not as expected
LEVIN_ERROR_TYPE(FileError);         // a file that cannot be opened, read or written
LEVIN_ERROR_TYPE(ConfigError);       // options that are wrong or contradict each other, found before any work
LEVIN_ERROR_TYPE(StateError);        // a call in the wrong phase
LEVIN_ERROR_TYPE(DataError);         // a dataset or loader that cannot deliver
LEVIN_ERROR_TYPE(InterruptedError);  // stopped by a signal after saving
LEVIN_ERROR_TYPE(InternalError);     // a bug in Levin
#undef LEVIN_ERROR_TYPE

// How a value reads in a message. Each type that appears in messages has one overload beside its declaration.
[[nodiscard]] inline const std::string& text(const std::string& s) { return s; }
[[nodiscard]] inline std::string text(std::string_view s) { return std::string(s); }
[[nodiscard]] inline std::string text(const char* s) { return s; }
[[nodiscard]] LEVIN_API std::string text(double x);
[[nodiscard]] LEVIN_API std::string text(std::int64_t x);
[[nodiscard]] LEVIN_API std::string text(std::uint64_t x);
template <std::integral I>
[[nodiscard]] std::string text(I x) {
  if constexpr (std::same_as<I, bool>) {
    return x ? "true" : "false";
  } else if constexpr (std::signed_integral<I>) {
    return text(static_cast<std::int64_t>(x));
  } else {
    return text(static_cast<std::uint64_t>(x));
  }
}

namespace detail {
// The first part of a message and the place of the check, captured by the implicit conversion from the literal.
struct At {
  std::string first;
  std::source_location where;
  At(const char* s, std::source_location w = std::source_location::current()) : first(s), where(w) {}
  At(std::string s, std::source_location w = std::source_location::current()) : first(std::move(s)), where(w) {}
  At(std::string_view s, std::source_location w = std::source_location::current()) : first(s), where(w) {}
};
}  // namespace detail

// Throws E with the parts joined: fail<ShapeError>("add: shapes ", a, " and ", b, " do not broadcast").
template <class E, class... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void fail(detail::At at, const Parts&... parts) {
  std::string message = std::move(at.first);
  (message.append(text(parts)), ...);
  throw E(message, at.where);
}

}  // namespace levin
