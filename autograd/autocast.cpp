#include "autograd/autocast.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "tensor/device/runtime.h"

namespace levin {
namespace detail {

// Casts of leaf parameters, by handle. A cast that was made without recording must not serve where ops are recorded:
// the parameter would get no gradient.
class CastCache {
 public:
  explicit CastCache(CastPlan* plan) : plan_(plan) {}
  ~CastCache() {
    if (!plan_) return;
    for (const bool grad : {false, true}) {
      if (!used_[grad].empty()) plan_->parameters_[grad] = std::move(used_[grad]);
    }
  }
  CastCache(const CastCache&) = delete;
  CastCache& operator=(const CastCache&) = delete;

  Tensor cast_of(const Tensor& x, DType dtype) {
    const bool grad = mode().grad;
    Entry& e = entries_[{x.impl(), grad}];
    if (!e.serves(x, dtype) && plan_ && !std::exchange(planned_[grad], true)) cast_planned(x, grad, dtype);
    if (!e.serves(x, dtype)) e = {x, cast(x, dtype), x.version(), e.used};
    if (plan_ && !std::exchange(e.used, true)) used_[grad].push_back(x);
    return e.cast;
  }

 private:
  struct Entry {
    Tensor source{}, cast{};  // the source is kept, so that its address is not reused
    std::uint32_t version = 0;
    bool used = false;  // in used_
    [[nodiscard]] bool serves(const Tensor& x, DType dtype) const {
      return cast.defined() && version == x.version() && cast.dtype() == dtype;
    }
  };
  using Key = std::pair<const TensorImpl*, bool>;
  struct Hash {
    std::size_t operator()(const Key& k) const {
      return std::hash<const void*>{}(k.first) * 2 + static_cast<std::size_t>(k.second);
    }
  };

  // The parameters that a guard with this plan cast before, if x is among them.
  void cast_planned(const Tensor& x, bool grad, DType dtype) {
    Tensors together;
    bool mine = false;
    for (const Tensor& p : plan_->parameters_[grad]) {
      if (p.dtype() != DType::f32 || p.device() != x.device() || !p.is_leaf() || !p.requires_grad()) continue;
      together.push_back(p);
      mine |= p.impl() == x.impl();
    }
    if (!mine || !x.device().launches()) return;
    const Tensors made = cast_all(together, dtype);
    for (std::size_t i = 0; i < together.size(); ++i)
      entries_[{together[i].impl(), grad}] = {together[i], made[i], together[i].version(), false};
  }

  CastPlan* plan_;
  std::unordered_map<Key, Entry, Hash> entries_;
  Tensors used_[2];  // with recording off, on
  bool planned_[2] = {};
};

namespace {

bool changes(const Tensor& t) { return t.defined() && is_float(t.dtype()) && t.dtype() != DType::f64; }
bool is_half(DType t) { return t == DType::f16 || t == DType::bf16; }

// The widest of the floating inputs; f16 and bf16 meet in f32.
DType widest(std::span<const Tensor* const> in) {
  bool any = false;
  DType wide = DType::f32;
  for (const Tensor* t : in) {
    if (!t->defined() || !is_float(t->dtype())) continue;
    const DType d = t->dtype();
    if (!any)
      wide = d;
    else if (d == DType::f64 || wide == DType::f64)
      wide = DType::f64;
    else if (d != wide)
      wide = DType::f32;
    any = true;
  }
  return wide;
}

// For a mode whose autocast was `cache` and is off.
void autocast_inputs(CastCache& cache, const OpInfo& info, std::span<const Tensor* const> in, std::span<Tensor> out) {
  const DType lower = mode().autocast_dtype;
  const DType wide = info.autocast == AutocastPolicy::widest ? widest(in) : DType::f32;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const Tensor& t = *in[i];
    DType target = t.defined() ? t.dtype() : DType::f32;
    switch (info.autocast) {
      case AutocastPolicy::keep:
      case AutocastPolicy::full_result: break;
      case AutocastPolicy::lower: target = changes(t) ? lower : target; break;
      case AutocastPolicy::full: target = changes(t) ? DType::f32 : target; break;
      case AutocastPolicy::widest: target = changes(t) ? wide : target; break;
    }
    if (!t.defined() || target == t.dtype())
      out[i] = t;
    else if (is_half(target) && t.is_leaf() && t.requires_grad())
      out[i] = cache.cast_of(t, target);
    else
      out[i] = cast(t, target);
  }
}

}  // namespace

Detour::Detour(const OpInfo& info, std::span<const Tensor* const> in, std::span<Tensor> out)
    : mode_(mode()), before_(std::exchange(mode_.autocast, nullptr)), now_{info.name, out.data(), out.size()} {
  mode_.detour = blocking_launches();  // casts are ops of their own, with names of their own
  try {
    if (before_)
      autocast_inputs(*before_, info, in, out);
    else
      std::transform(in.begin(), in.end(), out.begin(), [](const Tensor* t) { return *t; });
  } catch (...) {
    restore();  // before the end of the constructor no destructor would run
    throw;
  }
  mode_.detour = false;
  outer_ = blocking_launches() ? set_launching(&now_) : nullptr;
}
Detour::~Detour() {
  if (blocking_launches()) set_launching(outer_);
  restore();
}
void Detour::restore() noexcept {
  mode_.autocast = before_;
  mode_.detour = before_ || blocking_launches();
}

}  // namespace detail

CastPlan::CastPlan() = default;
CastPlan::~CastPlan() = default;

Autocast::Autocast(DType dtype) : Autocast(dtype, nullptr) {}
Autocast::Autocast(DType dtype, CastPlan& plan) : Autocast(dtype, &plan) {}
Autocast::Autocast(DType dtype, CastPlan* plan)
    : before_(detail::mode().autocast), dtype_before_(detail::mode().autocast_dtype) {
  if (dtype != DType::f16 && dtype != DType::bf16)
    fail<DTypeError>("autocast: the dtype is ", dtype, ", expected f16 or bf16");
  detail::Mode& mode = detail::mode();
  if (!before_) {
    own_ = std::make_unique<detail::CastCache>(plan);
    mode.autocast = own_.get();
    mode.detour = true;
  }
  mode.autocast_dtype = dtype;
}
Autocast::Autocast() : before_(detail::mode().autocast), dtype_before_(detail::mode().autocast_dtype) {
  detail::mode().autocast = nullptr;
}
Autocast::~Autocast() {
  detail::mode().autocast = before_;
  detail::mode().autocast_dtype = dtype_before_;
  detail::mode().detour = true;
}

DType autocast_dtype() { return detail::mode().autocast ? detail::mode().autocast_dtype : DType::f32; }

}  // namespace levin
