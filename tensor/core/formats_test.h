// Damage for readers: the tests of every file format apply it to a good file.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "levin/error.h"
#include "tensor/files/file.h"

namespace levin::test {

enum class Outcome { accepted, refused, wrong };

// Reads `bytes` with `read` (Source& -> void). Refused means FormatError whose message begins with the file's name.
template <class Read>
Outcome outcome(const std::string& bytes, const Read& read) {
  detail::MemorySource source("damaged", std::as_bytes(std::span<const char>(bytes)));
  try {
    read(source);
    return Outcome::accepted;
  } catch (const FormatError& e) {
    return std::string(e.what()).starts_with("damaged: ") ? Outcome::refused : Outcome::wrong;
  } catch (...) { return Outcome::wrong; }
}

// A file cut anywhere must be refused.
template <class Read>
void check_truncations(const std::string& good, const Read& read) {
  REQUIRE(outcome(good, read) == Outcome::accepted);
  std::size_t not_refused = 0;
  for (std::size_t n = 0; n < good.size(); ++n) {
    if (outcome(good.substr(0, n), read) != Outcome::refused) ++not_refused;
  }
  CHECK(not_refused == 0);
  CHECK(outcome(good + '\0', read) == Outcome::refused);
}

// A flipped bit gives a valid file (another name, another value) or a FormatError, nothing else.
template <class Read>
std::size_t check_bit_flips(const std::string& good, std::size_t begin, std::size_t end, const Read& read) {
  std::size_t wrong = 0, accepted = 0;
  for (std::size_t bit = begin * 8; bit < end * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const Outcome o = outcome(bad, read);
    wrong += o == Outcome::wrong;
    accepted += o == Outcome::accepted;
  }
  CHECK(wrong == 0);
  return accepted;
}

// Random damage, the same in every run: overwrites, removes and doubles bytes, and inserts pieces of `tokens`.
template <class Read>
void check_mutations(const std::string& good, std::size_t cases, const std::vector<std::string>& tokens,
                     const Read& read) {
  std::uint64_t state = 0x9e3779b97f4a7c15u;
  const auto draw = [&](std::size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>((state >> 33) % n);
  };
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < cases; ++i) {
    std::string bad = good;
    for (std::size_t n = 1 + draw(4); n > 0 && !bad.empty(); --n) {
      const std::size_t at = draw(bad.size());
      switch (draw(5)) {
        case 0: bad[at] = static_cast<char>(draw(256)); break;
        case 1: bad.erase(at, 1 + draw(8)); break;
        case 2: bad.insert(at, bad.substr(draw(bad.size()), 1 + draw(32))); break;
        case 3: bad.insert(at, tokens[draw(tokens.size())]); break;
        default: bad.resize(at); break;
      }
    }
    wrong += outcome(bad, read) == Outcome::wrong;
  }
  CHECK(wrong == 0);
}

// The message of the FormatError, or "" when the bytes are accepted.
template <class Read>
std::string refusal(const std::string& bytes, const Read& read) {
  detail::MemorySource source("damaged", std::as_bytes(std::span<const char>(bytes)));
  try {
    read(source);
  } catch (const FormatError& e) { return e.what(); }
  return "";
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace levin::test
