// Note [PowerSGD] is in power_sgd.h.
#include "train/strategy/power_sgd.h"

#include <algorithm>
#include <utility>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin::train {
namespace {

// A gradient, or anything shaped like it, as a matrix.
Tensor matrix_of(const Tensor& t) { return view(t, {t.size(0), t.numel() / t.size(0)}); }
std::int64_t bytes_of(const Tensor& t) {
  return t.defined() ? t.numel() * static_cast<std::int64_t>(itemsize(t.dtype())) : 0;
}

// Pieces of one flat tensor, in the order of take().
class Pieces {
 public:
  explicit Pieces(Tensor flat) : flat_(std::move(flat)) {}
  Tensor take(std::int64_t rows, std::int64_t columns) {
    const std::int64_t begin = std::exchange(at_, at_ + rows * columns);
    return view(slice(flat_, 0, begin, at_), {rows, columns});
  }

 private:
  Tensor flat_;
  std::int64_t at_ = 0;
};

}  // namespace

struct PowerSgd::Round {
  struct Matrix {
    std::size_t parameter;
    Tensor home{};    // the gradient, [n, m]
    Tensor local{};   // what this rank wants to send, [n, m]
    Tensor start{};   // Q of before, [m, k]; then P
    Tensor p{}, q{};  // parts of `first` and `second`
  };
  std::vector<Matrix> matrices;
  std::vector<std::pair<Tensor, Tensor>> plain;  // home, its part of `first`; [1, n]
  Tensor first, second;
  dist::Work work;
  bool turned = false;
};

Tensor orthonormal_columns(const Tensor& x) {
  Tensors columns;
  for (std::int64_t k = 0; k < x.size(1); ++k) {
    Tensor c = slice(x, 1, k, k + 1);
    const auto normalize = [&] {
      // Squares of small elements underflow, so the largest element becomes 1 first.
      for (const bool largest : {true, false}) {
        const Tensor size = largest ? amax(abs(c)) : norm(c);
        c = c / (size + eq(size, 0.0).to(size.dtype()));
      }
    };
    normalize();
    // What rounding leaves of the first pass is removed by the second ("twice is enough"; Giraud, Langou, Rozloznik,
    // 2005).
    for (int pass = 0; pass < 2 && k > 0; ++pass) {
      const Tensor basis = cat(columns, 1);
      c = c - matmul(basis, matmul(t(basis), c));
      normalize();
    }
    columns.push_back(c);
  }
  return columns.size() == 1 ? columns.front() : cat(columns, 1);
}

PowerSgd::PowerSgd(std::shared_ptr<dist::ProcessGroup> group, const PowerSgdOptions& options)
    : group_(std::move(group)), options_(options) {}

PowerSgd::State& PowerSgd::state_of(std::size_t parameter) {
  if (parameter >= states_.size()) states_.resize(parameter + 1);
  return states_[parameter];
}

std::int64_t PowerSgd::rank_of(const Gradient& g) const {
  const DType dtype = g.home.dtype();
  if (!g.compresses || g.home.rank() < 2 || g.home.numel() == 0 || (dtype != DType::f32 && dtype != DType::f64))
    return 0;
  const std::int64_t n = g.home.size(0), m = g.home.numel() / n, k = options_.matrix_approximation_rank;
  const double factors = static_cast<double>(n + m) * static_cast<double>(k);
  if (factors * options_.min_compression_rate >= static_cast<double>(n * m)) return 0;
  return std::min({n, m, k});
}

// The Q that a power iteration starts from: orthonormal, so that no column is lost.
Tensor PowerSgd::start_of(const Gradient& g, std::int64_t k) {
  State& s = state_of(g.parameter);
  if (!s.drawn.defined() || !options_.warm_start) {
    // Equal on all ranks, for each parameter and each draw another.
    Generator gen = Generator(options_.random_seed).fork("powersgd").fork(text(g.parameter)).fork(text(s.draws++));
    s.drawn = randn({g.home.numel() / g.home.size(0), k}, gen, Device::cpu()).to(g.home.dtype()).to(g.home.device());
  }
  if (!options_.warm_start || !s.q.defined()) return orthonormal_columns(s.drawn);
  // A column of zeros, or of a gradient that was not finite, would never recover.
  const Tensor sizes = norm(s.q, 2, {0}, KeepDim::yes);
  const Tensor usable = logical_and(isfinite(sizes), gt(sizes, 0.0));
  return orthonormal_columns(where(usable, s.q, s.drawn));
}

std::shared_ptr<PowerSgd::Round> PowerSgd::begin(std::vector<Gradient> gradients) {
  const NoGrad off;
  auto round = std::make_shared<Round>();
  const Tensor& like = gradients.front().home;
  std::int64_t first = 0, second = 0;
  std::vector<std::int64_t> ranks;
  for (const Gradient& g : gradients) {
    ranks.push_back(rank_of(g));
    const std::int64_t n = ranks.back() > 0 ? g.home.size(0) : 0;
    first += n > 0 ? n * ranks.back() : g.home.numel();
    if (n > 0) second += g.home.numel() / n * ranks.back();
  }
  round->first = empty({first}, like.device(), like.dtype());
  if (second > 0) round->second = empty({second}, like.device(), like.dtype());
  Pieces ps(round->first), qs(round->second);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Gradient& g = gradients[i];
    if (ranks[i] == 0) {
      const Tensor row = view(g.home, {1, g.home.numel()});
      round->plain.emplace_back(row, ps.take(1, row.numel()));
      copy_(round->plain.back().second, row);
      continue;
    }
    Round::Matrix m{.parameter = g.parameter, .home = matrix_of(g.home), .start = start_of(g, ranks[i])};
    m.local = m.home;
    if (options_.use_error_feedback) {
      Tensor& error = state_of(g.parameter).error;
      if (error.defined())
        add_(error, m.home);
      else
        error = m.home.clone();
      m.local = error;
    }
    m.p = ps.take(m.home.size(0), ranks[i]);
    m.q = qs.take(m.home.size(1), ranks[i]);
    copy_(m.p, matmul(m.local, m.start));
    round->matrices.push_back(std::move(m));
  }
  round->work = group_->all_reduce(round->first, dist::ReduceOp::average);
  return round;
}

void PowerSgd::turn(Round& round) {
  if (std::exchange(round.turned, true)) return;
  const NoGrad off;
  round.work.wait();
  for (auto& [home, part] : round.plain) copy_(home, part);
  for (Round::Matrix& m : round.matrices) {
    m.start = orthonormal_columns(m.p);
    copy_(m.q, matmul(t(m.local), m.start));
  }
  round.work = round.second.defined() ? group_->all_reduce(round.second, dist::ReduceOp::average) : dist::Work();
}

void PowerSgd::finish(Round& round, std::span<const std::uint8_t> used) {
  turn(round);
  const NoGrad off;
  round.work.wait();
  for (Round::Matrix& m : round.matrices) {
    if (!used.empty() && used[m.parameter] == 0) continue;
    State& s = state_of(m.parameter);
    copy_(m.home, matmul(m.start, t(m.q)));
    if (options_.warm_start) s.q = m.q.clone();
    if (!options_.use_error_feedback) continue;
    add_(s.error, m.home, -1);
    // Of a gradient that is not finite nothing is kept: the error would never be finite again.
    s.error = where(isfinite(s.error), s.error, zeros_like(s.error));
  }
}

NamedTensors PowerSgd::state(std::size_t parameter) const {
  if (parameter >= states_.size()) return {};
  const State& s = states_[parameter];
  NamedTensors all;
  if (s.error.defined()) all.emplace_back("error", s.error);
  if (s.q.defined()) all.emplace_back("q", s.q);
  if (s.draws > 0) all.emplace_back("draws", from_data<std::int64_t>({s.draws}, {1}, Device::cpu()));
  return all;
}

void PowerSgd::load(std::size_t parameter, const Tensor& like, const NamedTensors& state) {
  const NoGrad off;
  State s;
  const std::int64_t n = like.rank() == 0 ? 1 : like.size(0), m = n == 0 ? 0 : like.numel() / n;
  const auto here = [&](const Tensor& t) { return t.to(like.device()).to(like.dtype()).clone(); };
  for (const auto& [name, t] : state) {
    if (name == "error" && options_.use_error_feedback) {
      if (t.shape() != Shape{n, m})
        fail<ConfigError>("resume: the error of powersgd is ", text(t), ", the gradient is a matrix of ", n,
                          " rows and ", m, " columns; load the weights alone");
      s.error = here(t);
    } else if (name == "q" && options_.warm_start) {
      if (t.rank() == 2 && t.size(0) == m && t.size(1) == std::min({n, m, options_.matrix_approximation_rank}))
        s.q = here(t);
    } else if (name == "draws" && t.dtype() == DType::i64 && t.numel() == 1) {
      // With warm start there is one draw, which the next round makes again.
      s.draws = options_.warm_start ? 0 : t.to_vector<std::int64_t>().front();
    }
  }
  state_of(parameter) = std::move(s);
}

std::int64_t PowerSgd::bytes(const Round& round) { return bytes_of(round.first) + bytes_of(round.second); }

}  // namespace levin::train
