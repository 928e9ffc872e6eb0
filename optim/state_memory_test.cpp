// State in memory of another kind, updated part by part.
#include <algorithm>
#include <cstring>
#include <map>

#include "optim/kinds_test.h"

namespace levin::optim {
namespace {

// Records what rests, and how much of it at once.
class Recording final : public StateMemory {
 public:
  explicit Recording(std::int64_t elements) : elements_(elements) {}
  Tensor allocate(const Shape& shape, DType dtype) override {
    Tensor t = zeros(shape, Device::cpu(), dtype);
    auto* const at = t.get().storage->data;
    memory_[at] = static_cast<std::size_t>(shape.numel()) * itemsize(dtype);
    all_.push_back(t);
    return t;
  }
  std::int64_t elements_at_once() const override { return elements_; }
  void rest(std::span<const Part> parts) noexcept override {
    std::size_t sum = 0;
    for (const Part& p : parts) {
      if (is_own(p)) sum += p.bytes;
    }
    most = std::max(most, sum);
    ++calls;
  }
  [[nodiscard]] bool is_own(const Part& p) const {
    const auto* const at = static_cast<const std::byte*>(p.begin);
    for (const auto& [begin, bytes] : memory_) {
      if (at >= begin && at + p.bytes <= begin + bytes) return true;
    }
    return false;
  }
  [[nodiscard]] bool has(const Tensor& t) const { return memory_.contains(t.get().storage->data); }
  std::size_t most = 0;
  int calls = 0;

 private:
  std::int64_t elements_;
  std::map<const std::byte*, std::size_t> memory_;
  Tensors all_;
};

}  // namespace

TEST_CASE("a state in other memory gives the same bits, updated in parts of any size") {
  auto kinds = elementwise_kinds();
  kinds.emplace_back("stochastic", make<Adam>(AdamOptions{.lr = 0.1, .rounding = Rounding::stochastic}));
  for (const auto& [name, kind] : kinds) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      for (const bool masters : {false, true}) {
        for (const std::int64_t elements : {1000, 7, 1'000'000}) {
          CAPTURE(name);
          CAPTURE(text(dtype));
          CAPTURE(masters);
          CAPTURE(elements);
          Net plain(kind, Device::cpu(), dtype), kept(kind, Device::cpu(), dtype);
          const auto memory = std::make_shared<Recording>(elements);
          if (elements == 7 && masters) kept.optimizer->use_master_weights();
          kept.optimizer->keep_state_in(memory);
          for (Net* net : {&plain, &kept}) {
            if (masters) net->optimizer->use_master_weights();
            for (int t = 0; t < 3; ++t) {
              net->set_gradients(t);
              net->optimizer->step();
            }
          }
          CHECK(plain.all() == kept.all());
          CHECK(same_state(plain.optimizer->state_dict(), kept.optimizer->state_dict()));
          bool all_there = true;
          for (const auto& [key, t] : kept.optimizer->state_refs()) {
            if (t.numel() > 1 || key.ends_with(".master")) all_there = all_there && memory->has(t);
          }
          CHECK(all_there);
          // At most three states an element; a master, and a first value other than 0, as a whole.
          const std::size_t width = dtype == DType::f64 ? 8 : 4;
          const std::size_t parts = 3 * width * static_cast<std::size_t>(elements);
          const bool whole = masters || name == "adagrad" || name == "rprop";
          CHECK(memory->most <= (whole ? std::max(parts, 5000 * width) : parts));
          CHECK(memory->calls > (elements == 7 ? 1000 : 2));
        }
      }
    }
  }
}

TEST_CASE("a state that is loaded lies in the optimizer's memory, and the next step continues from it") {
  for (const bool masters : {false, true}) {
    const DType dtype = masters ? DType::bf16 : DType::f32;
    const Make kind = make<Adam>(AdamOptions{.lr = 0.1});
    Net first(kind, Device::cpu(), dtype), second(kind, Device::cpu(), dtype);
    const auto memory = std::make_shared<Recording>(100);
    second.optimizer->keep_state_in(memory);
    for (Net* net : {&first, &second}) {
      if (masters) net->optimizer->use_master_weights();
    }
    for (int t = 0; t < 2; ++t) {
      first.set_gradients(t);
      first.optimizer->step();
    }
    second.optimizer->load_state_dict(first.optimizer->state_dict());
    for (const auto& [key, t] : second.optimizer->state_refs()) {
      if (t.numel() > 1) CHECK(memory->has(t));
    }
    for (std::size_t k = 0; k < first.values.size(); ++k) {
      second.values[k] = first.values[k].detach().clone();
      second.values[k].requires_grad_();
    }
    for (Net* net : {&first, &second}) {
      net->set_gradients(2);
      net->optimizer->step();
    }
    CHECK(first.all() == second.all());
  }
}

TEST_CASE("an optimizer keeps its state elsewhere from its first step on, on the CPU alone") {
  Net late(make<Adam>(AdamOptions{}), Device::cpu(), DType::f32),
      lbfgs(make<LBFGS>(LBFGSOptions{}), Device::cpu(), DType::f32);
  const auto memory = std::make_shared<Recording>(10);
  CHECK_THROWS_WITH_AS(lbfgs.optimizer->keep_state_in(memory), doctest::Contains("lbfgs"), ConfigError);
  CHECK_THROWS_WITH_AS(late.optimizer->keep_state_in(nullptr), doctest::Contains("no memory"), ConfigError);
  late.set_gradients(0);
  late.optimizer->step();
  CHECK_THROWS_WITH_AS(late.optimizer->keep_state_in(memory), doctest::Contains("after the first step"), StateError);
  if (const auto found = test::launching_device()) {
    Net there(make<Adam>(AdamOptions{}), *found, DType::f32);
    CHECK_THROWS_WITH_AS(there.optimizer->keep_state_in(memory), doctest::Contains("expected the CPU"), ConfigError);
  }
}

}  // namespace levin::optim
