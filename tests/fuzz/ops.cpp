#include <optional>

#include "levin/autograd.h"
#include "levin/memory.h"
#include "levin/serialize.h"
#include "tests/fuzz/chooser.h"

namespace levin::fuzz {
namespace {

constexpr std::int64_t kMostMemory = 8 << 20;    // of all tensors: bounds the work of a call
constexpr std::int64_t kMostElements = 1 << 14;  // of a tensor that later calls take; an expanded one has no memory
constexpr std::size_t kMostTensors = 8, kMostCalls = 24;

class MemoryLimit {
 public:
  MemoryLimit() : before_(set_memory_limit(Device::cpu(), memory_stats(Device::cpu()).in_use + kMostMemory)) {}
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  ~MemoryLimit() { set_memory_limit(Device::cpu(), before_); }

 private:
  std::optional<std::int64_t> before_;
};

// Every mode that a program may switch on around its calls.
struct Modes {
  explicit Modes(std::uint8_t bits) {
    if ((bits & 3) == 1) autocast.emplace((bits & 4) != 0 ? DType::f16 : DType::bf16);
    if ((bits & 24) == 8) off.emplace();
    if ((bits & 24) == 16) inference.emplace();
    if ((bits & 224) == 32) anomaly.emplace();
  }
  std::optional<Autocast> autocast{};
  std::optional<NoGrad> off{};
  std::optional<InferenceMode> inference{};
  std::optional<AnomalyMode> anomaly{};
};

// Puts gradients of tensors that require grad, some of the second order, into the pool.
void differentiate(Chooser& choose, Pool& pool) {
  Tensors leaves, outputs;
  for (const Tensor& x : pool.all()) {
    if (x.requires_grad()) (x.is_leaf() ? leaves : outputs).push_back(x);
  }
  if (outputs.empty()) return;
  const Tensor y = outputs[choose.below(outputs.size())];
  const bool again = choose.one_in(3);
  if (choose.one_in(4) && !again) {
    (void)refused([&] { backward(y, ones_like(y), {.retain_graph = choose.one_in(2)}); });
    return;
  }
  if (leaves.empty()) return;
  (void)refused([&] {
    const Tensor seed = ones_like(y);
    const Tensors first =
        grad(std::span(&y, 1), leaves, std::span(&seed, 1), {.create_graph = again, .allow_unused = true});
    for (const Tensor& g : first) {
      if (!g.defined()) continue;
      pool.keep(g);
      if (!again || !g.requires_grad()) continue;
      const Tensor ones = ones_like(g);
      for (const Tensor& gg : grad(std::span(&g, 1), leaves, std::span(&ones, 1), {.allow_unused = true})) {
        if (gg.defined()) pool.keep(gg);
      }
    }
  });
}

}  // namespace

Tensor Pool::of(const Shape& shape, DType dtype) {
  if (choose_.one_in(16)) return empty(shape, Device::meta(), dtype);
  if (shape.numel() > kMostElements) return empty({0}, Device::cpu(), dtype);
  const bool floats = dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
  Generator gen(choose_.byte());
  Tensor x = choose_.one_in(8) ? full(shape, choose_.scalar(), Device::cpu(), dtype)
             : floats          ? randn(shape, gen, Device::cpu(), DType::f32).to(dtype)
                               : randint(0, 4, shape, gen, Device::cpu(), DType::i64).to(dtype);
  if (floats && !choose_.one_in(3)) x.requires_grad_();
  return x;
}

Tensor Pool::any() {
  const std::uint8_t b = choose_.byte();
  if (b >= 252) return {};
  if (!all_.empty() && b % 4 != 0) return all_[(b / 4u) % all_.size()];
  const Shape shape = choose_.shape();
  return of(shape, choose_.dtype());
}
Tensor Pool::index() {
  if (choose_.one_in(8)) return any();
  Generator gen(choose_.byte());
  const Shape shape = choose_.shape();
  return randint(choose_.one_in(8) ? -2 : 0, choose_.one_in(8) ? 70 : 2, shape, gen, Device::cpu(), DType::i64);
}
Tensor Pool::mask() {
  if (choose_.one_in(8)) return any();
  const Tensor like = any();
  return like.defined() && choose_.one_in(2) ? of(like.shape(), DType::b8) : of(choose_.shape(), DType::b8);
}
Tensor Pool::matching(const Tensor& like) {
  return like.defined() && !choose_.one_in(4) ? of(like.shape(), like.dtype()) : any();
}

void Pool::keep(const Tensor& x) {
  if (!x.defined() || x.numel() > kMostElements) return;
  if (x.device().is_cpu()) (void)content_hash("", x.detach());  // every element is read: a sanitizer sees wrong views
  if (all_.size() == kMostTensors) all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(choose_.below(kMostTensors)));
  all_.push_back(x);
}

bool ops(Bytes in) {
  Chooser choose(in);
  const MemoryLimit limit;
  const Modes modes(choose.byte());
  Pool pool(choose);
  bool taken = false;
  for (std::size_t calls = 0; calls < kMostCalls && !choose.used_up(); ++calls) {
    if (choose.one_in(8)) {
      differentiate(choose, pool);
      continue;
    }
    const Form& form = forms()[choose.below(forms().size())];
    const bool called = !refused([&] {
      for (const Tensor& y : form.call(choose, pool)) pool.keep(y);
    });
    taken = taken || called;
  }
  return taken;
}

}  // namespace levin::fuzz
