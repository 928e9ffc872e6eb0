#include "levin/train/metric.h"

#include <limits>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Tensor as_f64(const Tensor& t) { return t.detach().to(DType::f64); }

}  // namespace

Metric::Metric(nn::Module& parent, std::string_view name)
    : Module(parent, name), batch_value_(add_state("batch", kNaN)), self_(std::make_shared<Metric*>(this)) {}
Metric::Metric(const nn::Options& options)
    : Module(options), batch_value_(add_state("batch", kNaN)), self_(std::make_shared<Metric*>(this)) {}
Metric::~Metric() { *self_ = nullptr; }

Tensor& Metric::add_state(std::string_view name, double start, const Shape& shape, Across across) {
  nn::Buffer& buffer = register_buffer(name, full(shape, start, device(), DType::f64), nn::Persistent::no);
  states_.push_back({.value = &buffer, .start = start, .across = across});
  return buffer;
}

void Metric::reset() {
  const NoGrad off;
  for (const State& s : states_) fill_(*s.value, s.start);
}

void Metric::keep_f64() {
  for (const State& s : states_) {
    Tensor& value = *s.value;
    if (value.dtype() != DType::f64) value = value.to(DType::f64);
  }
}

void Metric::set_batch_value(const Tensor& value) {
  const NoGrad off;
  if (value.numel() != 1)
    fail<ShapeError>("Metric: the value of a batch has shape ", value.shape(), ", expected one element");
  copy_(batch_value_, reshape(as_f64(value), Dims(std::initializer_list<std::int64_t>{})));
}

void MeanMetric::add(const Tensor& sum, const Tensor& weight) {
  add_(sum_, sum);
  add_(weight_, weight);
  set_batch_value(sum / weight);
}
void MeanMetric::update(const Tensor& values, double weight) {
  const NoGrad off;
  keep_f64();
  const Tensor x = as_f64(values);
  add(sum(x) * weight, full({}, weight * static_cast<double>(x.numel()), x.device(), DType::f64));
}
void MeanMetric::update(const Tensor& values, const Tensor& weights) {
  const NoGrad off;
  keep_f64();
  const Tensor x = as_f64(values), w = expand(as_f64(weights), values.shape());
  add(sum(x * w), sum(w));
}
Tensor MeanMetric::compute() const {
  const NoGrad off;
  return sum_ / weight_;
}

void Accuracy::update(const Tensor& scores, const Tensor& classes) {
  const NoGrad off;
  const bool scored = scores.rank() == 2 && is_float(scores.dtype());
  if (!scored && (scores.rank() != 1 || is_float(scores.dtype())))
    fail<ShapeError>("Accuracy: scores are ", text(scores), ", expected floating [N, C] or an integer [N]");
  if (classes.rank() != 1 || classes.size(0) != scores.size(0))
    fail<ShapeError>("Accuracy: classes have shape ", classes.shape(), ", expected [", scores.size(0),
                     "], one for each of the scores");
  if (is_float(classes.dtype()))
    fail<DTypeError>("Accuracy: classes are ", classes.dtype(), ", expected an integer dtype");
  keep_f64();
  const Tensor said = scored ? argmax(scores.detach(), 1) : scores.to(DType::i64);
  const Tensor right = sum(eq(said, classes.to(DType::i64)).to(DType::f64));
  const auto n = static_cast<double>(classes.size(0));
  add_(right_, right);
  add_(seen_, full({}, n, right.device(), DType::f64));
  set_batch_value(right / n);
}
Tensor Accuracy::compute() const {
  const NoGrad off;
  return right_ / seen_;
}

MaxMetric::MaxMetric(nn::Module& parent, std::string_view name)
    : Metric(parent, name), most_(add_state("most", -kInfinity, {}, Across::max)) {}
MaxMetric::MaxMetric(const nn::Options& options)
    : Metric(options), most_(add_state("most", -kInfinity, {}, Across::max)) {}
void MaxMetric::update(const Tensor& values) {
  const NoGrad off;
  keep_f64();
  const Tensor now = amax(as_f64(values));
  copy_(most_, maximum(most_, now));
  set_batch_value(now);
}
Tensor MaxMetric::compute() const { return most_.detach().clone(); }

MinMetric::MinMetric(nn::Module& parent, std::string_view name)
    : Metric(parent, name), least_(add_state("least", kInfinity, {}, Across::min)) {}
MinMetric::MinMetric(const nn::Options& options)
    : Metric(options), least_(add_state("least", kInfinity, {}, Across::min)) {}
void MinMetric::update(const Tensor& values) {
  const NoGrad off;
  keep_f64();
  const Tensor now = amin(as_f64(values));
  copy_(least_, minimum(least_, now));
  set_batch_value(now);
}
Tensor MinMetric::compute() const { return least_.detach().clone(); }

}  // namespace levin
