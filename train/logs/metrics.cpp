#include "levin/train/metrics.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

Tensor as_f64(const Tensor& t) { return t.detach().to(DType::f64); }
Tensor number(double x, Device device) { return full({}, x, device, DType::f64); }

std::int64_t at_least_one(const char* metric, const char* what, std::int64_t n) {
  if (n < 1) fail<ConfigError>(metric, ": ", what, " is ", n, ", expected 1 or more");
  return n;
}
// An integer or bool [n].
void check_labels(const Metric& metric, const Tensor& classes, std::int64_t n) {
  if (classes.rank() != 1 || classes.size(0) != n)
    fail<ShapeError>(metric.type_name(), ": classes have shape ", classes.shape(), ", expected [", n,
                     "], one for each sample");
  if (is_float(classes.dtype()))
    fail<DTypeError>(metric.type_name(), ": classes are ", classes.dtype(), ", expected an integer dtype");
}
void check_numbers(const Metric& metric, const Tensor& x, const Tensor& target) {
  if (x.shape() != target.shape())
    fail<ShapeError>(metric.type_name(), ": x has shape ", x.shape(), " and target ", target.shape(),
                     ", expected equal shapes");
}
// f64 [places]: how often each index occurs.
Tensor counted(const Tensor& index, std::int64_t places) {
  const Device device = index.device();
  return scatter_add(zeros({places}, device, DType::f64), 0, index, ones({index.numel()}, device, DType::f64));
}
// 0 where b is 0.
Tensor ratio_or_zero(const Tensor& a, const Tensor& b) {
  const Tensor none = eq(b, 0);
  return masked_fill(a / masked_fill(b, none, 1), none, 0);
}

}  // namespace

// ---- Classes
ConfusionMatrix::ConfusionMatrix(nn::Module& parent, std::string_view name, std::int64_t classes)
    : Metric(parent, name),
      counts_(add_state("counts", 0, {at_least_one("ConfusionMatrix", "classes", classes), classes})) {}
ConfusionMatrix::ConfusionMatrix(const nn::Options& options, std::int64_t classes)
    : Metric(options),
      counts_(add_state("counts", 0, {at_least_one("ConfusionMatrix", "classes", classes), classes})) {}

void ConfusionMatrix::update(const Tensor& scores, const Tensor& classes) {
  const NoGrad off;
  const std::int64_t n = counts_.size(0);
  const bool scored = scores.rank() == 2 && is_float(scores.dtype());
  if (scored ? scores.size(1) != n : scores.rank() != 1 || is_float(scores.dtype()))
    fail<ShapeError>(type_name(), ": scores are ", text(scores), ", expected floating [N, ", n, "] or an integer [N]");
  check_labels(*this, classes, scores.size(0));
  keep_f64();
  const Tensor said = scored ? argmax(scores.detach(), 1) : scores.to(DType::i64);
  const Tensor now =
      index_add(zeros({n, n}, said.device(), DType::f64), 0, classes.to(DType::i64), one_hot(said, n).to(DType::f64));
  add_(counts_, now);
  set_batch_value(value_of(now));
}
Tensor ConfusionMatrix::matrix() const { return counts_.detach().clone(); }
Tensor ConfusionMatrix::compute() const {
  const NoGrad off;
  return value_of(counts_);
}
Tensor ConfusionMatrix::value_of(const Tensor& matrix) const { return sum(diagonal(matrix)) / sum(matrix); }

ClassMetric::ClassMetric(nn::Module& parent, std::string_view name, const ClassMetricOptions& options)
    : ConfusionMatrix(parent, name, options.classes), average_(options.average) {}
ClassMetric::ClassMetric(const nn::Options& module, const ClassMetricOptions& options)
    : ConfusionMatrix(module, options.classes), average_(options.average) {}

Tensor ClassMetric::per_class() const {
  const NoGrad off;
  const Tensor counts = matrix();
  const Ratio r = ratio(diagonal(counts), sum(counts, {0}), sum(counts, {1}));
  return ratio_or_zero(r.part, r.whole);
}
Tensor ClassMetric::value_of(const Tensor& counts) const {
  const Tensor right = diagonal(counts), said = sum(counts, {0}), true_ones = sum(counts, {1});
  if (average_ == Average::micro) {
    const Ratio r = ratio(sum(right), sum(said), sum(true_ones));
    return r.part / r.whole;
  }
  const Ratio r = ratio(right, said, true_ones);
  const Tensor shares = average_ == Average::weighted ? true_ones : gt(said + true_ones, 0).to(DType::f64);
  return sum(ratio_or_zero(r.part, r.whole) * shares) / sum(shares);
}
ClassMetric::Ratio Precision::ratio(const Tensor& right, const Tensor& said, const Tensor&) const {
  return {right, said};
}
ClassMetric::Ratio Recall::ratio(const Tensor& right, const Tensor&, const Tensor& true_ones) const {
  return {right, true_ones};
}
ClassMetric::Ratio F1::ratio(const Tensor& right, const Tensor& said, const Tensor& true_ones) const {
  return {right * 2, said + true_ones};
}

TopKAccuracy::TopKAccuracy(nn::Module& parent, std::string_view name, std::int64_t k)
    : MeanMetric(parent, name), k_(at_least_one("TopKAccuracy", "k", k)) {}
TopKAccuracy::TopKAccuracy(const nn::Options& options, std::int64_t k)
    : MeanMetric(options), k_(at_least_one("TopKAccuracy", "k", k)) {}

void TopKAccuracy::update(const Tensor& scores, const Tensor& classes) {
  const NoGrad off;
  if (scores.rank() != 2 || !is_float(scores.dtype()) || scores.size(1) < k_)
    fail<ShapeError>(type_name(), ": scores are ", text(scores), ", expected floating [N, C] of ", k_,
                     " classes or more");
  check_labels(*this, classes, scores.size(0));
  const Tensor best = topk(scores.detach(), k_, 1).indices;
  MeanMetric::update(any(eq(best, unsqueeze(classes.to(DType::i64), 1)), {1}));
}

// ---- Scores of two classes
ScoreMetric::ScoreMetric(nn::Module& parent, std::string_view name, const ScoreOptions& options)
    : Metric(parent, name),
      bins_(at_least_one("ScoreMetric", "bins", options.bins)),
      counts_(add_state("counts", 0, {2, bins_})) {}
ScoreMetric::ScoreMetric(const nn::Options& module, const ScoreOptions& options)
    : Metric(module),
      bins_(at_least_one("ScoreMetric", "bins", options.bins)),
      counts_(add_state("counts", 0, {2, bins_})) {}

void ScoreMetric::update(const Tensor& scores, const Tensor& classes) {
  const NoGrad off;
  if (scores.rank() != 1 || !is_float(scores.dtype()))
    fail<ShapeError>(type_name(), ": scores are ", text(scores), ", expected floating [N]");
  check_labels(*this, classes, scores.size(0));
  keep_f64();
  const auto bins = static_cast<double>(bins_);
  const Tensor bin = clamp(floor(as_f64(scores) * bins), 0, bins - 1).to(DType::i64);
  // A class other than 0 and 1 is no index: scatter_add throws IndexError. No multiple of bins_ overflows.
  const Tensor row = clamp(classes.to(DType::i64), -1, 2);
  const Tensor now = reshape(counted(bin + row * bins_, 2 * bins_), {std::int64_t{2}, bins_});
  add_(counts_, now);
  set_batch_value(value_of(select(now, 0, 1), select(now, 0, 0)));
}
Tensor ScoreMetric::compute() const {
  const NoGrad off;
  return value_of(select(counts_, 0, 1), select(counts_, 0, 0));
}
Tensor AUROC::value_of(const Tensor& ones, const Tensor& zeros) const {
  const Tensor all = sum(ones), above = all - cumsum(ones, 0);
  return sum(zeros * (above + ones * 0.5)) / (all * sum(zeros));
}
Tensor AveragePrecision::value_of(const Tensor& ones, const Tensor& zeros) const {
  const auto from = [](const Tensor& x) { return sum(x) - cumsum(x, 0) + x; };  // counts of this score or a greater one
  const Tensor right = from(ones);
  return sum(ones * ratio_or_zero(right, right + from(zeros))) / sum(ones);
}

// ---- Numbers
void MeanAbsoluteError::update(const Tensor& x, const Tensor& target) {
  const NoGrad off;
  check_numbers(*this, x, target);
  MeanMetric::update(abs(as_f64(x) - as_f64(target)));
}
void MeanSquaredError::update(const Tensor& x, const Tensor& target) {
  const NoGrad off;
  check_numbers(*this, x, target);
  MeanMetric::update(square(as_f64(x) - as_f64(target)));
}
void RootMeanSquaredError::update(const Tensor& x, const Tensor& target) {
  MeanSquaredError::update(x, target);
  set_batch_value(sqrt(batch_value()));
}
Tensor RootMeanSquaredError::compute() const {
  const NoGrad off;
  return sqrt(MeanMetric::compute());
}

namespace {

// sums [3, outputs] of n samples: of targets, of their squares, of squared errors.
Tensor determination(const Tensor& n, const Tensor& sums) {
  constexpr double kRounding = 1e-14;  // of a difference of sums, beside them
  const Tensor squares = select(sums, 0, 1), errors = select(sums, 0, 2);
  const Tensor total = squares - square(select(sums, 0, 0)) / n;
  const Tensor flat = le(total, squares * kRounding);
  const Tensor score = 1 - errors / masked_fill(total, flat, 1);
  const Tensor each = where(flat, eq(errors, 0).to(DType::f64), score);
  return masked_fill(mean(each), lt(n, 2), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

R2Score::R2Score(nn::Module& parent, std::string_view name, std::int64_t outputs)
    : Metric(parent, name),
      outputs_(at_least_one("R2Score", "outputs", outputs)),
      sums_(add_state("sums", 0, {3, outputs})) {}
R2Score::R2Score(const nn::Options& options, std::int64_t outputs)
    : Metric(options),
      outputs_(at_least_one("R2Score", "outputs", outputs)),
      sums_(add_state("sums", 0, {3, outputs})) {}

void R2Score::update(const Tensor& x, const Tensor& target) {
  const NoGrad off;
  check_numbers(*this, x, target);
  if (!(x.rank() == 1 && outputs_ == 1) && !(x.rank() == 2 && x.size(1) == outputs_))
    fail<ShapeError>(type_name(), ": x has shape ", x.shape(), ", expected [N, ", outputs_, "]",
                     outputs_ == 1 ? " or [N]" : "");
  keep_f64();
  const std::int64_t samples = x.size(0);
  const Tensor y = reshape(as_f64(target), {samples, outputs_}), said = reshape(as_f64(x), {samples, outputs_});
  const std::array<Tensor, 3> parts{sum(y, {0}), sum(square(y), {0}), sum(square(said - y), {0})};
  const Tensor now = stack(parts), n = number(static_cast<double>(samples), y.device());
  add_(seen_, n);
  add_(sums_, now);
  set_batch_value(determination(n, now));
}
Tensor R2Score::compute() const {
  const NoGrad off;
  return determination(seen_, sums_);
}

Perplexity::Perplexity(nn::Module& parent, std::string_view name, std::int64_t ignore_index)
    : MeanMetric(parent, name), ignore_index_(ignore_index) {}
Perplexity::Perplexity(const nn::Options& options, std::int64_t ignore_index)
    : MeanMetric(options), ignore_index_(ignore_index) {}

void Perplexity::update(const Tensor& logits, const Tensor& tokens) {
  const NoGrad off;
  if (logits.rank() < 2 || tokens.shape() != logits.shape().removed(logits.rank() - 1))
    fail<ShapeError>(type_name(), ": logits have shape ", logits.shape(), " and tokens ", tokens.shape(),
                     ", expected [..., C] and [...]");
  const Tensor flat = reshape(tokens, {tokens.numel()});
  // 16-bit logits have f32 losses.
  const DType wide = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor losses = cross_entropy(reshape(logits.detach().to(wide), {tokens.numel(), logits.shape().back()}), flat,
                                      {.ignore_index = ignore_index_, .reduction = Reduction::none});
  MeanMetric::update(losses, ne(flat, ignore_index_));
  set_batch_value(exp(batch_value()));
}
Tensor Perplexity::compute() const {
  const NoGrad off;
  return exp(MeanMetric::compute());
}

// ---- Texts
namespace {

using Words = std::vector<std::string_view>;
using Counts = std::map<Words, std::int64_t>;

Words words_of(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n\f\v";
  Words words;
  for (;;) {
    const std::size_t begin = text.find_first_not_of(kSpaces);
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const std::size_t end = std::min(text.find_first_of(kSpaces), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}
Counts grams_of(const Words& words, std::size_t n) {
  Counts counts;
  for (std::size_t i = 0; i + n <= words.size(); ++i)
    ++counts[Words(words.begin() + std::ptrdiff_t(i), words.begin() + std::ptrdiff_t(i + n))];
  return counts;
}
std::int64_t checked_longest(const BleuOptions& options) {
  if (options.longest < 1 || options.longest > 16)
    fail<ConfigError>("Bleu: longest is ", options.longest, ", expected 1 to 16");
  return options.longest;
}

}  // namespace

Bleu::Bleu(nn::Module& parent, std::string_view name, const BleuOptions& options)
    : Metric(parent, name),
      options_(options),
      found_(add_state("found", 0, {checked_longest(options)})),
      all_(add_state("all", 0, {options.longest})),
      lengths_(add_state("lengths", 0, {2})) {}
Bleu::Bleu(const nn::Options& module, const BleuOptions& options)
    : Metric(module),
      options_(options),
      found_(add_state("found", 0, {checked_longest(options)})),
      all_(add_state("all", 0, {options.longest})),
      lengths_(add_state("lengths", 0, {2})) {}

void Bleu::update(std::string_view candidate, std::span<const std::string> references) {
  const NoGrad off;
  if (references.empty()) fail<ConfigError>("Bleu: the candidate has no reference, expected one or more");
  keep_f64();
  const Words said = words_of(candidate);
  std::vector<Words> wanted;
  for (const std::string& r : references) wanted.push_back(words_of(r));
  const auto gap = [&](const Words& w) {
    return std::pair(w.size() > said.size() ? w.size() - said.size() : said.size() - w.size(), w.size());
  };
  const Words& nearest =
      *std::min_element(wanted.begin(), wanted.end(), [&](const Words& a, const Words& b) { return gap(a) < gap(b); });
  std::vector<double> found, all;
  for (std::size_t n = 1; n <= static_cast<std::size_t>(options_.longest); ++n) {
    Counts most;
    for (const Words& w : wanted) {
      for (const auto& [gram, count] : grams_of(w, n)) most[gram] = std::max(most[gram], count);
    }
    std::int64_t right = 0, total = 0;
    for (const auto& [gram, count] : grams_of(said, n)) {
      const auto in_reference = most.find(gram);
      right += in_reference == most.end() ? 0 : std::min(count, in_reference->second);
      total += count;
    }
    found.push_back(static_cast<double>(right));
    all.push_back(static_cast<double>(total));
  }
  const std::vector<double> lengths{static_cast<double>(said.size()), static_cast<double>(nearest.size())};
  const auto on_device = [&](const std::vector<double>& v) {
    return from_data(std::span<const double>(v), {static_cast<std::int64_t>(v.size())}, Device::cpu())
        .to(found_.device());
  };
  const Tensor f = on_device(found), a = on_device(all), l = on_device(lengths);
  add_(found_, f);
  add_(all_, a);
  add_(lengths_, l);
  set_batch_value(value_of(f, a, l));
}
Tensor Bleu::value_of(const Tensor& found, const Tensor& all, const Tensor& lengths) const {
  Tensor extra = zeros_like(found);
  if (options_.smooth == SmoothBleu::yes) extra = gt(arange(options_.longest, found.device()), 0).to(DType::f64);
  const Tensor precision = ratio_or_zero(found + extra, all + extra);
  const Tensor said = select(lengths, 0, 0), wanted = select(lengths, 0, 1);
  const Tensor brevity = exp(clamp(1 - wanted / said, {}, 0));
  return masked_fill(brevity * exp(mean(log(precision))), any(eq(found + extra, 0)), 0);
}
Tensor Bleu::compute() const {
  const NoGrad off;
  return value_of(found_, all_, lengths_);
}

}  // namespace levin
