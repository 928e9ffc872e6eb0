#include "train/run/by_rank_zero.h"

#include <exception>
#include <new>

#include "levin/error.h"
#include "train/run/packed.h"

namespace levin::train {
namespace {

enum class Kind : std::uint8_t { none, file, memory, config, format, state, data, other };

Kind kind_of(const std::exception& e) {
  if (dynamic_cast<const FileError*>(&e)) return Kind::file;
  if (dynamic_cast<const OutOfMemoryError*>(&e) || dynamic_cast<const std::bad_alloc*>(&e)) return Kind::memory;
  if (dynamic_cast<const ConfigError*>(&e)) return Kind::config;
  if (dynamic_cast<const FormatError*>(&e)) return Kind::format;
  if (dynamic_cast<const DataError*>(&e)) return Kind::data;
  return dynamic_cast<const StateError*>(&e) ? Kind::state : Kind::other;
}

[[noreturn]] void fail_as(Kind kind, std::size_t rank, const std::string& words) {
  const std::string whose = "rank " + text(rank) + ": ";
  switch (kind) {
    case Kind::file: fail<FileError>(whose, words);
    case Kind::memory: fail<OutOfMemoryError>(whose, words);
    case Kind::config: fail<ConfigError>(whose, words);
    case Kind::format: fail<FormatError>(whose, words);
    case Kind::state: fail<StateError>(whose, words);
    case Kind::data: fail<DataError>(whose, words);
    default: fail<CommError>("rank ", rank, " failed: ", words);
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
  if (kind != Kind::none) fail_as(kind, 0, words);
  return words;
}

void by_all_ranks(Strategy& strategy, const Function<void()>& f) {
  if (strategy.ranks().size == 1) return f();
  std::exception_ptr mine;
  Packed said;
  try {
    f();
    said.add(Kind::none).add(std::string_view());
  } catch (const CommError&) {
    throw;  // the ranks cannot agree on anything any more
  } catch (const std::exception& e) {
    mine = std::current_exception();
    said.add(kind_of(e)).add(std::string_view(e.what()));
  } catch (...) {
    mine = std::current_exception();
    said.add(Kind::other).add(std::string_view("an exception that is no std::exception"));
  }
  std::vector<std::string> all;
  try {
    all = strategy.gather(said.bytes());
  } catch (const CommError&) {
    if (mine) std::rethrow_exception(mine);
    throw;
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    Unpacked in(all[r]);
    const auto kind = in.take<Kind>();
    if (kind == Kind::none) continue;
    if (static_cast<int>(r) == strategy.ranks().rank) std::rethrow_exception(mine);
    fail_as(kind, r, in.take<std::string>());
  }
}

}  // namespace levin::train
