// Metrics of classes, numbers and texts: what levin/train/metric.h says of metrics holds for each. States are sums and
// counts of a fixed size, so memory does not grow with samples. Updates with tensors wait for no device. Constructors
// throw ConfigError, updates ShapeError, DTypeError and IndexError.
//
//   struct Net : TrainModuleOf<Net> {
//     F1 f1{*this, "f1", {.classes = 10}};
//     AUROC auroc{*this, "auroc"};
//     ...
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "levin/train/metric.h"

namespace levin {

// How many samples of each class were said to be of each class.
class LEVIN_API ConfusionMatrix : public Metric {
 public:
  ConfusionMatrix(nn::Module& parent, std::string_view name, std::int64_t classes);
  ConfusionMatrix(const nn::Options& options, std::int64_t classes);
  // scores: floating [N, C], or the classes themselves, an integer [N]. classes: an integer [N] of 0 to C - 1.
  void update(const Tensor& scores, const Tensor& classes);
  // f64 [C, C]: in row i and column j the samples of class i that were said to be j.
  [[nodiscard]] Tensor matrix() const;
  // The share of the diagonal, the accuracy.
  [[nodiscard]] Tensor compute() const override;

 protected:
  [[nodiscard]] virtual Tensor value_of(const Tensor& matrix) const;

 private:
  Tensor& counts_;
};

// macro: the mean over the classes that were true or said at least once. micro: all samples as one class. weighted: the
// mean over the classes, each as often as it is true.
enum class Average : std::uint8_t { macro, micro, weighted };
struct ClassMetricOptions {
  std::int64_t classes = 2;
  Average average = Average::macro;
};

// A ratio of counts for each class, 0 where nothing is counted.
class LEVIN_API ClassMetric : public ConfusionMatrix {
 public:
  ClassMetric(nn::Module& parent, std::string_view name, const ClassMetricOptions& options = {});
  explicit ClassMetric(const nn::Options& module, const ClassMetricOptions& options = {});
  [[nodiscard]] Tensor per_class() const;  // f64 [C]

 protected:
  struct Ratio {
    Tensor part, whole;
  };
  // right: samples of a class that were said to be of it. said, true_ones: all that were said to be, that are of it.
  [[nodiscard]] virtual Ratio ratio(const Tensor& right, const Tensor& said, const Tensor& true_ones) const = 0;
  [[nodiscard]] Tensor value_of(const Tensor& matrix) const override;

 private:
  Average average_;
};

// right / said
class LEVIN_API Precision : public ClassMetric {
 public:
  using ClassMetric::ClassMetric;

 protected:
  [[nodiscard]] Ratio ratio(const Tensor& right, const Tensor& said, const Tensor& true_ones) const override;
};
// right / true
class LEVIN_API Recall : public ClassMetric {
 public:
  using ClassMetric::ClassMetric;

 protected:
  [[nodiscard]] Ratio ratio(const Tensor& right, const Tensor& said, const Tensor& true_ones) const override;
};
// 2 right / (said + true), the harmonic mean of both.
class LEVIN_API F1 : public ClassMetric {
 public:
  using ClassMetric::ClassMetric;

 protected:
  [[nodiscard]] Ratio ratio(const Tensor& right, const Tensor& said, const Tensor& true_ones) const override;
};

// The share of samples whose class is among the k greatest scores.
class LEVIN_API TopKAccuracy : public MeanMetric {
 public:
  TopKAccuracy(nn::Module& parent, std::string_view name, std::int64_t k);
  TopKAccuracy(const nn::Options& options, std::int64_t k);
  void update(const Tensor& scores, const Tensor& classes);  // floating [N, C], an integer [N]

 private:
  std::int64_t k_;
};

// Scores in [0, 1] of samples of two classes, counted in `bins` equal intervals. Scores of one interval count as equal.
struct ScoreOptions {
  std::int64_t bins = 4096;
};
class LEVIN_API ScoreMetric : public Metric {
 public:
  ScoreMetric(nn::Module& parent, std::string_view name, const ScoreOptions& options = {});
  explicit ScoreMetric(const nn::Options& module, const ScoreOptions& options = {});
  // scores: floating [N], probabilities of class 1; one beyond [0, 1] counts as 0 or 1, NaN as 0. classes: bool or
  // an integer [N], 0 or 1.
  void update(const Tensor& scores, const Tensor& classes);
  [[nodiscard]] Tensor compute() const override;

 protected:
  // From f64 [bins] counts of each class, by growing score.
  [[nodiscard]] virtual Tensor value_of(const Tensor& ones, const Tensor& zeros) const = 0;

 private:
  std::int64_t bins_;
  Tensor& counts_;  // [2, bins]
};

// The area under the curve of true over false positives: the probability that a sample of class 1 has a greater score
// than one of class 0, an equal score counted half. NaN without samples of both.
class LEVIN_API AUROC : public ScoreMetric {
 public:
  using ScoreMetric::ScoreMetric;

 protected:
  [[nodiscard]] Tensor value_of(const Tensor& ones, const Tensor& zeros) const override;
};
// The area under the curve of precision over recall, as the sum of steps: sum over thresholds of precision times the
// recall gained. NaN without samples of class 1.
class LEVIN_API AveragePrecision : public ScoreMetric {
 public:
  using ScoreMetric::ScoreMetric;

 protected:
  [[nodiscard]] Tensor value_of(const Tensor& ones, const Tensor& zeros) const override;
};

// The mean over all elements of |x - target|; shapes are equal.
class LEVIN_API MeanAbsoluteError : public MeanMetric {
 public:
  using MeanMetric::MeanMetric;
  void update(const Tensor& x, const Tensor& target);
};
// The mean over all elements of (x - target)^2; shapes are equal.
class LEVIN_API MeanSquaredError : public MeanMetric {
 public:
  using MeanMetric::MeanMetric;
  void update(const Tensor& x, const Tensor& target);
};
// The root of the mean squared error.
class LEVIN_API RootMeanSquaredError : public MeanSquaredError {
 public:
  using MeanSquaredError::MeanSquaredError;
  void update(const Tensor& x, const Tensor& target);
  [[nodiscard]] Tensor compute() const override;
};

// 1 - sum (x - target)^2 / sum (target - mean(target))^2, the mean over the outputs. Where targets vary by no more than
// their sums round, it is 1 for no error, else 0. NaN for fewer than 2 samples.
class LEVIN_API R2Score : public Metric {
 public:
  R2Score(nn::Module& parent, std::string_view name, std::int64_t outputs = 1);
  explicit R2Score(const nn::Options& options, std::int64_t outputs = 1);
  void update(const Tensor& x, const Tensor& target);  // [N] for one output, or [N, outputs]; shapes are equal
  [[nodiscard]] Tensor compute() const override;

 private:
  std::int64_t outputs_;
  Tensor& seen_ = add_state("seen", 0);
  Tensor& sums_;  // [3, outputs]: of targets, of their squares, of squared errors
};

// exp of the mean of cross_entropy over all tokens that count.
class LEVIN_API Perplexity : public MeanMetric {
 public:
  Perplexity(nn::Module& parent, std::string_view name, std::int64_t ignore_index = -100);
  explicit Perplexity(const nn::Options& options, std::int64_t ignore_index = -100);
  void update(const Tensor& logits, const Tensor& tokens);  // floating [..., C], i64 [...]
  [[nodiscard]] Tensor compute() const override;

 private:
  std::int64_t ignore_index_;
};

// yes: adds 1 to both counts of 2-grams and longer ones. Lin and Och, "Automatic evaluation of machine translation
// quality", 2004.
enum class SmoothBleu : bool { no, yes };
struct BleuOptions {
  std::int64_t longest = 4;  // n-grams of 1 to so many words, 1 to 16
  SmoothBleu smooth = SmoothBleu::no;
};
// BLEU of all sentences as one corpus: the geometric mean of the shares of n-grams that a reference has, times
// exp(1 - r / c) where the candidates' length c is at most the references' r. The reference nearest in length counts,
// the shorter of two. Words stand between spaces. Papineni et al., "BLEU: a method for automatic evaluation of machine
// translation", 2002. Counts are made on
// the host and copied to the device: an update has no place in a captured step.
class LEVIN_API Bleu : public Metric {
 public:
  Bleu(nn::Module& parent, std::string_view name, const BleuOptions& options = {});
  explicit Bleu(const nn::Options& module, const BleuOptions& options = {});
  // Throws ConfigError for no reference.
  void update(std::string_view candidate, std::span<const std::string> references);
  [[nodiscard]] Tensor compute() const override;

 private:
  [[nodiscard]] Tensor value_of(const Tensor& found, const Tensor& all, const Tensor& lengths) const;
  BleuOptions options_;
  Tensor& found_;
  Tensor& all_;
  Tensor& lengths_;  // of the candidates, of the references
};

}  // namespace levin
