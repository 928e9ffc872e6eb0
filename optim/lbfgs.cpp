#include <algorithm>
#include <cmath>
#include <deque>

#include "kernels/update/lists.cuh"
#include "optim/options.h"
#include "optim/updates.h"

namespace levin::optim {
namespace {

using Vector = std::vector<double>;

double inner(const Vector& a, const Vector& b) {
  return kernels::cpu::dot(kernels::Cpu{}, a.data(), b.data(), static_cast<std::int64_t>(a.size()));
}
void add_scaled(Vector& y, double alpha, const Vector& x) {
  kernels::cpu::axpy(kernels::Cpu{}, alpha, x.data(), y.data(), static_cast<std::int64_t>(y.size()));
}
double largest(const Vector& v) {
  double high = 0;
  for (const double x : v) {
    if (!(std::abs(x) <= high)) high = std::abs(x);  // a NaN counts as largest
  }
  return high;
}
Tensor as_tensor(const Vector& v) { return from_data(v, {static_cast<std::int64_t>(v.size())}, Device::cpu()); }

struct Point {  // along the search direction: step length, loss, gradient, its slope
  double t = 0, f = 0;
  Vector g;
  double slope = 0;
};

// The minimum of the cubic through two points with slopes, inside [low, high]. Nocedal & Wright, equation 3.59.
double cubic_minimum(const Point& a, const Point& b, double low, double high) {
  const Point &x = a.t <= b.t ? a : b, &y = a.t <= b.t ? b : a;
  const double d1 = x.slope + y.slope - 3 * (x.f - y.f) / (x.t - y.t);
  const double square = d1 * d1 - x.slope * y.slope;
  if (square < 0) return (low + high) / 2;
  const double d2 = std::sqrt(square);
  const double at = y.t - (y.t - x.t) * ((y.slope + d2 - d1) / (y.slope - x.slope + 2 * d2));
  return std::isfinite(at) ? std::clamp(at, low, high) : (low + high) / 2;
}

// Strong Wolfe line search. Nocedal & Wright, algorithms 3.5 (bracket) and 3.6 (zoom).
template <class Eval>
Point wolfe_search(const Point& start, double t, double direction_size, double tolerance, Eval&& eval) {
  constexpr int max_evals = 25;  // in each of the two phases; PyTorch's max_ls
  constexpr double c1 = 1e-4, c2 = 0.9;
  const auto armijo = [&](const Point& p) { return p.f <= start.f + c1 * p.t * start.slope; };
  const auto curved = [&](const Point& p) { return std::abs(p.slope) <= -c2 * start.slope; };
  Point previous = start, now = eval(t);
  Point low, high;
  for (int i = 0;; ++i) {
    if (!armijo(now) || (i > 0 && now.f >= previous.f) || !std::isfinite(now.f)) {
      low = previous;
      high = now;
      break;
    }
    if (curved(now)) return now;
    if (now.slope >= 0) {
      low = now;
      high = previous;
      break;
    }
    if (i + 1 >= max_evals) return now;
    const double next = cubic_minimum(previous, now, now.t + 0.01 * (now.t - previous.t), now.t * 10);
    previous = std::move(now);
    now = eval(next);
  }
  for (int i = 0; i < max_evals; ++i) {
    if (std::abs(high.t - low.t) * direction_size < tolerance) break;
    const double left = std::min(low.t, high.t), right = std::max(low.t, high.t), margin = 0.1 * (right - left);
    const double at =
        std::isfinite(high.f) ? cubic_minimum(low, high, left + margin, right - margin) : (left + right) / 2;
    Point p = eval(at);
    if (!armijo(p) || p.f >= low.f || !std::isfinite(p.f)) {
      high = std::move(p);
    } else {
      if (curved(p)) return p;
      if (p.slope * (high.t - low.t) >= 0) high = low;
      low = std::move(p);
    }
  }
  return low;
}

}  // namespace

struct LBFGS::Memory {
  std::deque<Vector> steps, changes;  // s_k, y_k
  std::deque<double> weights;         // 1 / (y_k . s_k)
  Vector direction, last_gradient;
  double diagonal = 1, t = 0, last_loss = 0;
  std::int64_t iterations = 0, evaluations = 0;

  // Keeps the pair of the last step and its change of the gradient, at most `most` of them.
  void keep_pair(const Vector& gradient, int most) {
    Vector y = gradient, s = direction;
    add_scaled(y, -1, last_gradient);
    for (double& v : s) v *= t;
    const double ys = inner(y, s);
    if (!(ys > 1e-10)) return;  // such a pair would break positive definiteness; PyTorch's threshold
    if (static_cast<int>(steps.size()) == most) {
      steps.pop_front();
      changes.pop_front();
      weights.pop_front();
    }
    diagonal = ys / inner(y, y);
    steps.push_back(std::move(s));
    changes.push_back(std::move(y));
    weights.push_back(1 / ys);
  }
  // -H gradient with the inverse Hessian H of the pairs, by the two-loop recursion (algorithm 7.4).
  [[nodiscard]] Vector newton_direction(const Vector& gradient) const {
    Vector q = gradient;
    for (double& v : q) v = -v;
    Vector alpha(steps.size());
    for (std::size_t k = steps.size(); k-- > 0;) {
      alpha[k] = weights[k] * inner(steps[k], q);
      add_scaled(q, -alpha[k], changes[k]);
    }
    for (double& v : q) v *= diagonal;
    for (std::size_t k = 0; k < steps.size(); ++k) {
      const double beta = weights[k] * inner(changes[k], q);
      add_scaled(q, alpha[k] - beta, steps[k]);
    }
    return q;
  }
  // Begins the next iteration where the loss and its gradient are these; t becomes the first step length to try.
  void begin_iteration(double loss, const Vector& gradient, double lr, int most) {
    if (++iterations > 1) keep_pair(gradient, most);
    direction = newton_direction(gradient);
    last_gradient = gradient;
    last_loss = loss;
    double total = 0;
    for (const double v : gradient) total += std::abs(v);
    t = iterations == 1 ? std::min(1.0, 1 / total) * lr : lr;
  }
};

LBFGS::LBFGS(Parameters parameters, LBFGSOptions options) : options_(options), memory_(std::make_unique<Memory>()) {
  check_at_least("lbfgs", "max_iter", options.max_iter, 1);
  check_at_least("lbfgs", "max_eval", options.max_eval, 0);
  check_at_least("lbfgs", "history_size", options.history_size, 1);
  check_not_negative("lbfgs", "tolerance_grad", options.tolerance_grad);
  check_not_negative("lbfgs", "tolerance_change", options.tolerance_change);
  for (const ParamRef& p : parameters) {
    if (p.value && p.value->defined() && itemsize(p.value->dtype()) == 2)
      fail<ConfigError>("lbfgs: parameter ", p.name, " is ", p.value->dtype(), ", expected f32 or f64");
  }
  add("lbfgs", std::move(parameters), options.lr);
}
LBFGS::~LBFGS() = default;

void LBFGS::update(int, const float*) {
  fail<StateError>("lbfgs: step() needs a closure that evaluates the loss; call step(closure)");
}
void LBFGS::check_skippable() const {
  fail<ConfigError>(
      "lbfgs: a step evaluates the loss several times, so that gradients can not be unscaled once and the step "
      "skipped; "
      "train it without loss scaling");
}

namespace {

enum class What : bool { values, gradients };
// All values or all gradients (unset ones as zeros), end to end in double. Vectors have the order of contiguous memory,
// also where parameters lie in another format: a saved state then fits either.
Vector gathered(const Parameters& parameters, What what) {
  Vector out;
  for (const ParamRef& p : parameters) {
    Updates::check("lbfgs", p, Device::cpu());
    if (itemsize(p.value->dtype()) == 2)
      fail<StateError>("lbfgs: parameter ", p.name, " is now ", text(*p.value), ", expected f32 or f64");
    Tensor t = what == What::gradients ? p.value->grad() : p.value->detach();
    const auto n = static_cast<std::size_t>(p.value->numel());
    if (!t.defined()) {
      out.resize(out.size() + n, 0.0);
      continue;
    }
    t = Updates::dense(t);
    if (t.dtype() == DType::f32)
      out.insert(out.end(), Updates::first<float>(t), Updates::first<float>(t) + n);
    else
      out.insert(out.end(), Updates::first<double>(t), Updates::first<double>(t) + n);
  }
  return out;
}

// f(offset in memory) for the elements of t, in the order of contiguous memory.
template <class F>
void each_offset(const Tensor& t, F&& f) {
  std::vector<std::int64_t> at(static_cast<std::size_t>(t.rank()), 0);
  std::int64_t offset = 0;
  for (std::int64_t n = t.numel(); n > 0; --n) {
    f(offset);
    for (int d = t.rank() - 1; d >= 0; --d) {
      auto& i = at[static_cast<std::size_t>(d)];
      offset += t.strides()[d];
      if (++i < t.shape()[d]) break;
      offset -= i * t.strides()[d];
      i = 0;
    }
  }
}

// p = x + t d
void write_values(const Parameters& parameters, const Vector& x, double t, const Vector& d) {
  std::size_t at = 0;
  for (const ParamRef& p : parameters) {
    const Tensor& value = *p.value;
    each_offset(value, [&](std::int64_t offset) {
      const double v = x[at] + t * d[at];
      ++at;
      if (value.dtype() == DType::f32)
        Updates::first<float>(value)[offset] = static_cast<float>(v);
      else
        Updates::first<double>(value)[offset] = v;
    });
    value.get().storage->wrote("lbfgs_step");
  }
}

}  // namespace

Tensor LBFGS::step(const Function<Tensor()>& closure) {
  if (!closure) fail<ConfigError>("lbfgs: step() is given an empty closure, expected one that returns the loss");
  Memory& m = *memory_;
  const Parameters& parameters = groups_[0].parameters;
  const double lr = groups_[0].lr;
  const int max_eval = options_.max_eval > 0 ? options_.max_eval : options_.max_iter * 5 / 4;
  const Tensor first_loss = closure();
  int evals = 1;
  Point now{.f = first_loss.item(), .g = gathered(parameters, What::gradients)};
  const auto converged = [&] { return largest(now.g) <= options_.tolerance_grad; };
  if (converged()) return first_loss;
  for (int iteration = 1; iteration <= options_.max_iter; ++iteration) {
    m.begin_iteration(now.f, now.g, lr, options_.history_size);
    now.t = 0;
    now.slope = inner(now.g, m.direction);
    if (now.slope > -options_.tolerance_change) break;
    const Vector x = gathered(parameters, What::values);
    const auto at = [&](double t) {
      ++evals;
      write_values(parameters, x, t, m.direction);
      Point p{.t = t, .f = closure().item(), .g = gathered(parameters, What::gradients)};
      p.slope = inner(p.g, m.direction);
      return p;
    };
    if (options_.line_search == LineSearch::strong_wolfe) {
      now = wolfe_search(now, m.t, largest(m.direction), options_.tolerance_change, at);
      m.t = now.t;
      write_values(parameters, x, m.t, m.direction);
    } else if (iteration < options_.max_iter) {
      now = at(m.t);
    } else {
      write_values(parameters, x, m.t, m.direction);
      break;
    }
    if (converged() || evals >= max_eval) break;
    if (largest(m.direction) * std::abs(m.t) <= options_.tolerance_change) break;
    if (std::abs(now.f - m.last_loss) < options_.tolerance_change) break;
  }
  m.evaluations += evals;
  return first_loss;
}

std::array<const char*, Optimizer::kMaxState> LBFGS::state_names(int) const { return {}; }

NamedTensors LBFGS::extra_state() const {
  const Memory& m = *memory_;
  NamedTensors out;
  out.emplace_back("lbfgs.numbers", as_tensor({m.diagonal, m.t, m.last_loss}));
  out.emplace_back("lbfgs.counts", tensor({m.iterations, m.evaluations}, Device::cpu()));
  out.emplace_back("lbfgs.direction", as_tensor(m.direction));
  out.emplace_back("lbfgs.last_gradient", as_tensor(m.last_gradient));
  const auto rows = [](const std::deque<Vector>& list) {
    Vector flat;
    for (const Vector& v : list) flat.insert(flat.end(), v.begin(), v.end());
    return as_tensor(flat);
  };
  out.emplace_back("lbfgs.steps", rows(m.steps));
  out.emplace_back("lbfgs.changes", rows(m.changes));
  out.emplace_back("lbfgs.weights", as_tensor(Vector(m.weights.begin(), m.weights.end())));
  return out;
}

void LBFGS::load_extra_state(const NamedTensors& state) {
  const auto find = [&](const char* key) -> const Tensor& {
    for (const auto& [name, value] : state) {
      if (name == key) return value;
    }
    fail<ConfigError>("lbfgs: state has no ", key, "; it was saved by another optimizer");
  };
  auto m = std::make_unique<Memory>();
  const Vector numbers = find("lbfgs.numbers").to_vector<double>();
  const auto counts = find("lbfgs.counts").to_vector<std::int64_t>();
  const Vector weights = find("lbfgs.weights").to_vector<double>(), steps = find("lbfgs.steps").to_vector<double>(),
               changes = find("lbfgs.changes").to_vector<double>();
  m->direction = find("lbfgs.direction").to_vector<double>();
  m->last_gradient = find("lbfgs.last_gradient").to_vector<double>();
  std::size_t n = 0;
  for (const ParamRef& p : groups_[0].parameters) n += static_cast<std::size_t>(p.value->numel());
  const bool fits = numbers.size() == 3 && counts.size() == 2 && steps.size() == weights.size() * n &&
                    changes.size() == steps.size() && (m->direction.empty() || m->direction.size() == n) &&
                    m->last_gradient.size() == m->direction.size();
  if (!fits) fail<ConfigError>("lbfgs: the state's sizes do not fit ", n, " parameters");
  m->diagonal = numbers[0];
  m->t = numbers[1];
  m->last_loss = numbers[2];
  m->iterations = counts[0];
  m->evaluations = counts[1];
  for (std::size_t k = 0; k < weights.size(); ++k) {
    const auto from = static_cast<std::ptrdiff_t>(k * n), to = static_cast<std::ptrdiff_t>((k + 1) * n);
    m->steps.emplace_back(steps.begin() + from, steps.begin() + to);
    m->changes.emplace_back(changes.begin() + from, changes.begin() + to);
  }
  m->weights.assign(weights.begin(), weights.end());
  memory_ = std::move(m);
}

}  // namespace levin::optim
