#include "train/run/by_rank_zero.h"

#include <exception>
#include <new>

#include "levin/error.h"
#include "train/run/packed.h"

namespace levin::train {
namespace {

enum class Kind : std::uint8_t { none, file, memory, config, format, state, other };

Kind kind_of(const std::exception& e) {
  if (dynamic_cast<const FileError*>(&e)) return Kind::file;
  if (dynamic_cast<const OutOfMemoryError*>(&e) || dynamic_cast<const std::bad_alloc*>(&e)) return Kind::memory;
  if (dynamic_cast<const ConfigError*>(&e)) return Kind::config;
  if (dynamic_cast<const FormatError*>(&e)) return Kind::format;
  return dynamic_cast<const StateError*>(&e) ? Kind::state : Kind::other;
}

[[noreturn]] void fail_as(Kind kind, const std::string& words) {
  switch (kind) {
    case Kind::file: fail<FileError>("rank 0: ", words);
    case Kind::memory: fail<OutOfMemoryError>("rank 0: ", words);
    case Kind::config: fail<ConfigError>("rank 0: ", words);
    case Kind::format: fail<FormatError>("rank 0: ", words);
    case Kind::state: fail<StateError>("rank 0: ", words);
    default: fail<CommError>("rank 0 failed: ", words);
  }
}

}  // namespace

std::string by_rank_zero(Strategy& strategy, const Function<std::string()>& f) {
  if (strategy.ranks().size == 1) return f();
  if (strategy.ranks().rank == 0) {
    std::string answer;
    try {
      answer = f();
    } catch (const std::exception& e) {
      (void)strategy.from_rank_zero(Packed().add(kind_of(e)).add(std::string_view(e.what())).bytes());
      throw;
    }
    (void)strategy.from_rank_zero(Packed().add(Kind::none).add(answer).bytes());
    return answer;
  }
  const std::string bytes = strategy.from_rank_zero({});
  Unpacked in(bytes);
  const auto kind = in.take<Kind>();
  auto words = in.take<std::string>();
  if (kind != Kind::none) fail_as(kind, words);
  return words;
}

}  // namespace levin::train
