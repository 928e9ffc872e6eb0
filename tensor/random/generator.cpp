#include "levin/generator.h"

#include "levin/error.h"
#include "tensor/device/graph_random.h"

namespace levin {
namespace {

using detail::GraphRandom;

// SplitMix64's finaliser (Steele, Lea, Flood, 2014): every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

Generator::Generator(std::uint64_t seed) : state_{seed, 0} {
  if (const GraphRandom* graph = GraphRandom::recording()) [[unlikely]]
    cell_ = graph->made_inside(state_);
}
Generator::Generator(const Generator& other) : state_(other.state()) {
  if (GraphRandom* graph = GraphRandom::recording()) [[unlikely]]
    cell_ = std::make_shared<detail::GeneratorCell>(graph->meet(other));
}
Generator::Generator(Generator&& other) noexcept : state_(other.state()), cell_(std::move(other.cell_)) {
  other.state_ = state_;
}
Generator& Generator::operator=(const Generator& other) {
  if (GraphRandom* graph = GraphRandom::recording()) [[unlikely]]
    graph->meet(*this) = detail::GeneratorCell(graph->meet(other));
  else
    set_state(other.state());
  return *this;
}
Generator::~Generator() = default;

Generator Generator::fork(std::string_view name) const {
  const std::uint64_t key = seed();
  std::uint64_t h = mix(key + 0x9e3779b97f4a7c15u);
  for (const char c : name) h = mix(h ^ static_cast<unsigned char>(c)) + 0x9e3779b97f4a7c15u;
  return Generator(mix(h ^ name.size()));
}

RandomRange Generator::reserve(std::int64_t n, Device device) {
  if (n < 0) fail<IndexError>("generator: reserve is asked for ", n, " numbers, expected 0 or more");
  const std::uint64_t counters = (static_cast<std::uint64_t>(n) + 3) / 4;
  RandomRange range;
  if (GraphRandom* graph = GraphRandom::recording()) [[unlikely]]
    range = graph->relative(graph->meet(*this), device);
  else
    range = state();
  (cell_ ? cell_->state : state_).offset += counters;
  return range;
}

RandomRange Generator::state() const { return cell_ ? cell_->state : state_; }
void Generator::set_state(RandomRange state) {
  state.on_device = nullptr;
  if (GraphRandom* graph = GraphRandom::recording()) [[unlikely]]
    graph->meet(*this).words = nullptr;
  (cell_ ? cell_->state : state_) = state;
}

}  // namespace levin
