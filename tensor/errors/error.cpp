#include "levin/error.h"

#include <fmt/format.h>

#include "levin/function.h"
#include "tensor/device/launching.h"
#include "tensor/errors/batch_error.h"

namespace levin {
namespace {

std::string in_module(std::uint32_t path, const std::string& message) {
  return path ? "in " + detail::path_text(path) + ": " + message : message;
}

}  // namespace

struct detail::NamedBatch {
  static void put(Error& error, const std::string& words) {
    if (error.batch_words_ > 0) return;
    static_cast<std::runtime_error&>(error) = std::runtime_error(words + error.what());
    error.batch_words_ = static_cast<std::uint32_t>(words.size());
  }
};

void detail::name_batch(Error& error, std::optional<std::int64_t> epoch, const char* loop,
                        std::int64_t batch) noexcept {
  try {
    std::string words = epoch ? "epoch " + text(*epoch) + ", " : std::string();
    if (*loop != '\0') words += std::string(loop) + " ";
    NamedBatch::put(error, words + "batch " + text(batch) + ": ");
  } catch (const std::exception&) {}  // no memory; the error itself matters more
}

Error::Error(const std::string& message, std::source_location at) : Error(message, at, detail::module_path_id()) {}
Error::Error(const std::string& message, std::source_location at, std::uint32_t module_path)
    : std::runtime_error(in_module(module_path, message)), at_(at), module_path_(module_path) {}

std::string_view Error::module_path() const noexcept { return detail::path_text(module_path_); }

std::string_view Error::message() const noexcept {
  std::string_view all = what();
  all.remove_prefix(batch_words_);
  return module_path_ ? all.substr(std::string_view("in : ").size() + module_path().size()) : all;
}

std::string_view Error::op() const noexcept {
  const std::string_view words = message();
  const std::size_t colon = words.find(':');
  return colon == std::string_view::npos ? std::string_view() : words.substr(0, colon);
}

std::string text(double x) { return fmt::format("{}", x); }
std::string text(std::int64_t x) { return fmt::format("{}", x); }
std::string text(std::uint64_t x) { return fmt::format("{}", x); }

void detail::fail_empty_function() {
  fail<StateError>("function: an empty Function is called; give it something to call before");
}

}  // namespace levin
