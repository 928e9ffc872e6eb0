#include "levin/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "kernels/update/lists.cuh"
#include "kernels/update/loss_scale.h"
#include "levin/stream.h"
#include "levin/warning.h"
#include "optim/masters.h"
#include "optim/options.h"
#include "optim/updates.h"
#include "tensor/core/gradient_rows.h"
#include "tensor/device/one_memory.h"
#include "tensor/device/runtime.h"

namespace levin::optim {
namespace {

constexpr double kLargest = std::numeric_limits<float>::max(), kSmallest = std::numeric_limits<float>::min();

void check(const GradScalerOptions& o) {
  if (!(o.init_scale >= kSmallest && o.init_scale <= kLargest))
    fail<ConfigError>("grad_scaler: the scale is ", o.init_scale, ", expected a number above 0 that f32 holds");
  if (!(o.growth_factor > 1 && o.growth_factor <= kLargest))
    fail<ConfigError>("grad_scaler: growth_factor is ", o.growth_factor, ", expected more than 1");
  if (!(o.backoff_factor > 0 && o.backoff_factor < 1))
    fail<ConfigError>("grad_scaler: backoff_factor is ", o.backoff_factor, ", expected above 0 and below 1");
  if (o.growth_interval < 1)
    fail<ConfigError>("grad_scaler: growth_interval is ", o.growth_interval, ", expected 1 or more");
  check_not_negative("grad_scaler", "max_scale", o.max_scale);
  if (o.max_scale > 0 && o.init_scale > o.max_scale)
    fail<ConfigError>("grad_scaler: the scale is ", o.init_scale, ", expected at most max_scale, ", o.max_scale);
}

template <class T>
Tensor scalar(T value, Device device) {
  return from_data(std::span<const T>(&value, 1), Shape{}, device);
}
// Into the existing tensor: a recorded step reads its address.
template <class T>
void write(Tensor& t, T value) {
  if (is_capturing(t.device()))
    fail<CaptureError>("grad_scaler: load_state_dict() writes to the device; load before a step is recorded");
  if (t.device().is_cpu())
    *Updates::first<T>(t) = value;
  else
    detail::upload(Updates::first<T>(t), &value, sizeof value, Stream::current(t.device()));
  t.get().storage->wrote("grad_scaler");
}

}  // namespace

struct GradScaler::State {
  enum class Stage : std::uint8_t { ready, unscaled, stepped };
  // One optimizer's record. Its tensors stay where they are: a recorded step writes to them.
  struct Record {
    Stage stage = Stage::ready;
    bool seen = false;  // gradients, since the last update
    Tensor found_inf, norm, workspace;
    Tensor factors{};    // of an update that multiplies gradients: f64 [2]
    Tensors outgrown{};  // workspaces of fewer gradients

    void check_seen(const Optimizer& o) const {
      if (!seen)
        fail<StateError>("grad_scaler: no inf checks were recorded for optimizer ", o.name(),
                         ": none of its parameters has a gradient; call backward() first");
    }
    // For a pass that writes found_inf and norm.
    void place_results(Device device) {
      if (!found_inf.defined() || found_inf.device() != device) {
        found_inf = scalar(0.0f, device);
        norm = scalar(0.0, device);
      }
      found_inf.get().storage->wrote("unscale_");
      norm.get().storage->wrote("unscale_");
    }
#if LEVIN_LAUNCHES
    [[nodiscard]] double* work_for(const kernels::GradientMoves& moves, Device device) {
      const std::int64_t doubles = kernels::unscale_workspace(moves);
      if (!workspace.defined() || workspace.device() != device || workspace.numel() < doubles) {
        if (workspace.defined()) outgrown.push_back(workspace);
        workspace = empty({doubles}, device, DType::f64);
      }
      return Updates::first<double>(workspace);
    }
#endif
  };

  GradScalerOptions options;  // init_scale is the scale until there is a tensor
  std::int64_t first_tracker = 0, first_skipped = 0;
  Tensor scale, tracker, skipped;
  std::map<const Optimizer*, Record> records;

  [[nodiscard]] kernels::LossScaleRule rule() const {
    return {options.growth_factor, options.backoff_factor, options.growth_interval,
            static_cast<float>(options.max_scale > 0 ? std::min(options.max_scale, kLargest) : kLargest)};
  }
  // Whether no other optimizer's gradients were seen since the last update.
  [[nodiscard]] bool only(const Record& record) const {
    return std::none_of(records.begin(), records.end(),
                        [&](const auto& r) { return r.second.seen && &r.second != &record; });
  }
  void write_scale() {
    for (Tensor* t : {&scale, &tracker, &skipped}) t->get().storage->wrote("grad_scaler");
  }
  [[nodiscard]] kernels::LossScale on_device() const {
    return {Updates::first<float>(scale), Updates::first<std::int64_t>(tracker), Updates::first<std::int64_t>(skipped)};
  }
  [[nodiscard]] const Record& judged(const char* what, const Optimizer& o) const {
    const auto found = records.find(&o);
    if (found == records.end() || !found->second.found_inf.defined())
      fail<StateError>("grad_scaler: ", what, " of optimizer ", o.name(), " is asked for before its first unscale_()");
    return found->second;
  }
};

GradScaler::GradScaler(GradScalerOptions options) : state_(std::make_unique<State>()) {
  check(options);
  state_->options = options;
}
GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

GradScaler::State& GradScaler::state() const {
  if (!state_) fail<StateError>("grad_scaler: it was moved from; use the one that it was moved to");
  return *state_;
}

bool GradScaler::enabled() const { return state().options.enabled; }

Tensor GradScaler::scale(Device device) {
  State& s = this->state();
  if (!s.scale.defined()) {
    s.scale = scalar(s.options.enabled ? static_cast<float>(s.options.init_scale) : 1.0f, device);
    s.tracker = scalar(s.first_tracker, device);
    s.skipped = scalar(s.first_skipped, device);
  }
  if (!detail::one_memory(s.scale.device(), device))
    fail<DeviceError>("grad_scaler: the scale is asked for on ", device, ", it lives on ", s.scale.device(),
                      "; give each device a scaler of its own");
  return s.scale;
}

void GradScaler::begin(Optimizer& optimizer, const Tensor& divisor) {
  State& s = this->state();
  optimizer.check_skippable();
  const std::string of = std::string(" (optimizer ") + optimizer.name() + ")";
  State::Record& r = s.records[&optimizer];
  if (r.stage == State::Stage::unscaled)
    fail<StateError>("grad_scaler: unscale_() was already called since the last update()", of);
  if (r.stage == State::Stage::stepped) fail<StateError>("grad_scaler: unscale_() is called after step()", of);
  if (!s.scale.defined())
    fail<StateError>("grad_scaler: unscale_() is called before scale()", of,
                     ": the loss was not multiplied with the scale");
  if (divisor.defined() &&
      (divisor.dtype() != DType::f32 || divisor.numel() != 1 || divisor.device() != s.scale.device()))
    fail<ShapeError>("grad_scaler: the divisor is ", divisor, ", expected one f32 element on ", s.scale.device());
  const Parameters updated = optimizer.parameters(), model = optimizer.model_parameters();
  for (std::size_t i = 0; i < model.size(); ++i) {
    const ParamRef& p = model[i];
    const Tensor g = detail::gradient_values(*p.value);
    if (!g.defined()) continue;
    if (itemsize(g.dtype()) == 2 && updated[i].value == p.value)
      fail<DataError>("grad_scaler: the gradient of ", p.name, " is ", g.dtype(),
                      ", expected f32 or f64; keep parameters f32 and compute under Autocast, or let the optimizer "
                      "use_master_weights()");
    if (!detail::one_memory(g.device(), s.scale.device()))
      fail<DeviceError>("grad_scaler: the gradient of ", p.name, " is on ", g.device(), ", the scale on ",
                        s.scale.device(), "; give each device a scaler of its own");
  }
  Masters::check(optimizer);
}

void GradScaler::unscale_(Optimizer& optimizer, const Tensor& divisor) {
  State& s = this->state();
  if (!s.options.enabled) return;
  begin(optimizer, divisor);
  State::Record& r = s.records[&optimizer];
  const auto gradients = Masters::gradients(optimizer, Masters::Which::all, "unscale_");
  r.stage = State::Stage::unscaled;
  r.seen = !gradients.empty();
  if (!r.seen) return;
  // Pieces may lie on the CPU, and the scale where the loss is.
  const Device device = gradients.front().to.device();
  Tensor factor = divisor.defined() ? divisor : s.scale;
  if (!detail::one_memory(factor.device(), device)) factor = factor.detach().to(device);
  r.place_results(device);
  float* const found = Updates::first<float>(r.found_inf);
  double* const norm = Updates::first<double>(r.norm);
  const float* const scale = Updates::first<float>(factor);
#if LEVIN_LAUNCHES
  if (device.launches()) {
    const GradientLists lists(gradients);
    kernels::unscale_on_device({Stream::current(device)}, lists.moves(), scale, r.work_for(lists.moves(), device),
                               found, norm);
    return;
  }
#endif
  const kernels::Cpu on;
  double squares = 0;
  bool finite = true;
  const auto unscale = [&]<class T>(T* g, std::int64_t n) {
    const kernels::Slot<T> slot{.p = g, .n = n};
    const std::span one(&slot, 1);
    kernels::cpu::scale(on, one, 1.0 / static_cast<double>(*scale));
    const double part = kernels::cpu::power_sum(on, one, 2);
    squares += part;
    // The square of a finite f32 is finite in double; that of a f64 gradient may overflow: its largest element decides.
    if (!std::isfinite(part))
      finite = finite && std::is_same_v<T, double> &&
               std::isfinite(kernels::cpu::power_sum(on, one, std::numeric_limits<double>::infinity()));
  };
  for (const auto& [from, to] : gradients) {
    if (from.dtype() != to.dtype()) Updates::round_into(to, from);
    if (to.dtype() == DType::f32)
      unscale(Updates::first<float>(to), to.numel());
    else
      unscale(Updates::first<double>(to), to.numel());
  }
  *found = finite ? 0.0f : 1.0f;
  *norm = std::sqrt(squares);
}

void GradScaler::judge(Optimizer& optimizer, const ScaledStep& how, bool moves) {
  begin(optimizer, how.divisor);
  State& s = this->state();
  State::Record& r = s.records[&optimizer];
  const auto gradients = Masters::sources(optimizer);
  r.seen = !gradients.empty();
  r.check_seen(optimizer);
  const Device device = gradients.front().from.device();
  r.place_results(device);
  if (!r.factors.defined() || r.factors.device() != device) r.factors = empty({2}, device, DType::f64);
  if (moves) s.write_scale();
#if LEVIN_LAUNCHES
  kernels::StepVerdict step{
      .factors = {Updates::first<double>(r.factors), how.max_norm.value_or(-1)}, .rule = s.rule(), .state = {}};
  if (moves) step.state = s.on_device();
  const GradientLists lists(gradients);
  kernels::unscale_on_device(
      {Stream::current(device)}, lists.moves(), Updates::first<float>(how.divisor.defined() ? how.divisor : s.scale),
      r.work_for(lists.moves(), device), Updates::first<float>(r.found_inf), Updates::first<double>(r.norm), step);
#endif
}

void GradScaler::forget() {
  for (auto& [optimizer, r] : state().records) {
    r.stage = State::Stage::ready;
    r.seen = false;
  }
}

void GradScaler::step(Optimizer& optimizer) {
  State& s = this->state();
  if (!s.options.enabled) return optimizer.step();
  optimizer.check_skippable();
  State::Record& r = s.records[&optimizer];
  if (r.stage == State::Stage::stepped)
    fail<StateError>("grad_scaler: step() was already called since the last update() (optimizer ", optimizer.name(),
                     ")");
  if (r.stage == State::Stage::ready) unscale_(optimizer);
  r.check_seen(optimizer);
  optimizer.step_unless(r.found_inf);
  r.stage = State::Stage::stepped;
}

void GradScaler::step(Optimizer& optimizer, const ScaledStep& how) {
  State& s = this->state();
  if (how.max_norm && !(*how.max_norm >= 0))
    fail<ConfigError>("grad_scaler: max_norm is ", *how.max_norm, ", expected 0 or more");
  if (!s.options.enabled) {
    if (how.max_norm)
      (void)optimizer.step_clipped(*how.max_norm);
    else
      optimizer.step();
    return;
  }
  optimizer.check_skippable();
  State::Record& r = s.records[&optimizer];
  if (r.stage == State::Stage::unscaled && how.divisor.defined())
    fail<StateError>("grad_scaler: step() is given a divisor after unscale_() (optimizer ", optimizer.name(),
                     "); give it to unscale_()");
  if (r.stage == State::Stage::ready && optimizer.fuses_clipping()) {
    const bool moves = how.update && s.only(r);
    judge(optimizer, how, moves);
    optimizer.step_groups(Updates::first<float>(r.found_inf), Updates::first<double>(r.factors));
    if (moves) return forget();
    r.stage = State::Stage::stepped;
  } else {
    if (r.stage == State::Stage::ready) unscale_(optimizer, how.divisor);
    if (how.max_norm && r.seen && r.stage == State::Stage::unscaled)
      clip_grads_with_norm_(optimizer.parameters(), *how.max_norm, r.norm);
    step(optimizer);
  }
  if (how.update) update();
}

void GradScaler::update() {
  State& s = this->state();
  if (!s.options.enabled) return;
  kernels::Verdicts verdicts;
  Tensors there;  // verdicts of another device, where the scale is
  for (const auto& [optimizer, r] : s.records) {
    if (!r.seen) continue;
    if (verdicts.count == kernels::Verdicts::kMost)
      fail<ConfigError>("grad_scaler: more than ", verdicts.count, " optimizers took part in an update");
    const bool here = detail::one_memory(r.found_inf.device(), s.scale.device());
    there.push_back(here ? r.found_inf : r.found_inf.to(s.scale.device()));
    verdicts.found[verdicts.count] = Updates::first<float>(there.back());
    verdicts.stepped[verdicts.count++] = r.stage == State::Stage::stepped;
  }
  if (verdicts.count == 0)
    fail<StateError>("grad_scaler: no inf checks were recorded prior to update(); call step() or unscale_() first");
  forget();
  const kernels::LossScale to = s.on_device();
  s.write_scale();
#if LEVIN_LAUNCHES
  if (const Device device = s.scale.device(); device.launches()) {
    kernels::update_scale_on_device({Stream::current(device)}, verdicts, s.rule(), to);
    return;
  }
#endif
  bool any = false;
  for (int k = 0; k < verdicts.count; ++k) {
    if (*verdicts.found[k] == 0) continue;
    any = true;
    *to.skipped += verdicts.stepped[k] ? 1 : 0;
  }
  kernels::next_scale(s.rule(), any, *to.scale, *to.tracker);
}

Tensor GradScaler::found_inf(const Optimizer& optimizer) const {
  return state().judged("found_inf", optimizer).found_inf;
}
Tensor GradScaler::grad_norm(const Optimizer& optimizer) const { return state().judged("grad_norm", optimizer).norm; }

double GradScaler::get_scale() const {
  const State& s = this->state();
  if (s.scale.defined()) return s.scale.item();
  return s.options.enabled ? static_cast<double>(static_cast<float>(s.options.init_scale)) : 1;
}
std::int64_t GradScaler::growth_tracker() const {
  return state().tracker.defined() ? state().tracker.item<std::int64_t>() : state().first_tracker;
}
std::int64_t GradScaler::skipped_steps() const {
  return state().skipped.defined() ? state().skipped.item<std::int64_t>() : state().first_skipped;
}

Tensor GradScaler::skipped() const {
  if (!state().skipped.defined()) fail<StateError>("grad_scaler: skipped() is asked for before scale()");
  return state().skipped;
}

NamedTensors GradScaler::state_dict() const {
  const GradScalerOptions& o = state().options;
  if (!o.enabled) return {};
  const auto number = [](auto x) { return tensor({x}, Device::cpu()); };
  return {{"scale", number(get_scale())},
          {"growth_factor", number(o.growth_factor)},
          {"backoff_factor", number(o.backoff_factor)},
          {"growth_interval", number(o.growth_interval)},
          {"growth_tracker", number(growth_tracker())},
          {"skipped_steps", number(skipped_steps())}};
}

void GradScaler::load_state_dict(const NamedTensors& state) {
  State& s = this->state();
  if (!s.options.enabled) {
    if (!state.empty())
      warn("W-AMP-STATE-IGNORED", WarningCategory::user,
           "grad_scaler: a state is loaded into a scaler that is not enabled; it is ignored");
    return;
  }
  if (state.empty()) {
    warn("W-AMP-STATE-MISSING", WarningCategory::user,
         "grad_scaler: there is no state to load (it was saved without loss scaling); the scale starts as its options "
         "say");
    return;
  }
  std::size_t used = 0;
  const auto find = [&](const char* key, DType dtype) -> const Tensor& {
    for (const auto& [name, value] : state) {
      if (name != key) continue;
      if (value.dtype() != dtype || value.numel() != 1)
        fail<ConfigError>("grad_scaler: state ", key, " is ", value, ", expected one element of ", dtype);
      ++used;
      return value;
    }
    fail<ConfigError>("grad_scaler: state has no ", key, "; it was not saved by a GradScaler");
  };
  GradScalerOptions o = s.options;
  o.init_scale = find("scale", DType::f64).item();
  o.growth_factor = find("growth_factor", DType::f64).item();
  o.backoff_factor = find("backoff_factor", DType::f64).item();
  o.growth_interval = find("growth_interval", DType::i64).item<std::int64_t>();
  const auto tracker = find("growth_tracker", DType::i64).item<std::int64_t>();
  const auto skipped = find("skipped_steps", DType::i64).item<std::int64_t>();
  if (tracker < 0) fail<ConfigError>("grad_scaler: state growth_tracker is ", tracker, ", expected 0 or more");
  if (skipped < 0) fail<ConfigError>("grad_scaler: state skipped_steps is ", skipped, ", expected 0 or more");
  if (used != state.size())
    fail<ConfigError>("grad_scaler: the state has ", state.size(), " entries, expected ", used,
                      "; it was not saved by a GradScaler");
  check(o);
  if (s.scale.defined()) {
    write(s.scale, static_cast<float>(o.init_scale));
    write(s.tracker, tracker);
    write(s.skipped, skipped);
  }
  s.options = o;
  s.first_tracker = tracker;
  s.first_skipped = skipped;
}

}  // namespace levin::optim
