#include "levin/generator.h"

#include "levin/error.h"

namespace levin {
namespace {

// SplitMix64's finaliser (Steele, Lea, Flood, 2014): every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

Generator Generator::fork(std::string_view name) const {
  std::uint64_t h = mix(state_.seed + 0x9e3779b97f4a7c15u);
  for (const char c : name) h = mix(h ^ static_cast<unsigned char>(c)) + 0x9e3779b97f4a7c15u;
  return Generator(mix(h ^ name.size()));
}

RandomRange Generator::reserve(std::int64_t n) {
  if (n < 0) fail<IndexError>("generator: reserve is asked for ", n, " numbers, expected 0 or more");
  const RandomRange range = state_;
  state_.offset += (static_cast<std::uint64_t>(n) + 3) / 4;
  return range;
}

}  // namespace levin
