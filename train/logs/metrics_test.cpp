#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "levin/ops.h"
#include "levin/train/metrics.h"
#include "tests/device.h"

using namespace levin;

namespace {

const nn::Options kAlone{.gen = Generator(0), .device = Device::cpu()};

template <class T>
Tensor row(const std::vector<T>& values) {
  return from_data(std::span<const T>(values), {static_cast<std::int64_t>(values.size())}, Device::cpu());
}
Tensor classes(const std::vector<std::int64_t>& values) { return row(values); }

// By all pairs, and by all thresholds.
double pairs_in_order(const std::vector<double>& scores, const std::vector<std::int64_t>& labels) {
  double right = 0, pairs = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    for (std::size_t j = 0; j < scores.size(); ++j) {
      if (labels[i] != 1 || labels[j] != 0) continue;
      pairs += 1;
      right += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
    }
  }
  return right / pairs;
}
double average_precision(const std::vector<double>& scores, const std::vector<std::int64_t>& labels) {
  std::vector<double> thresholds = scores;
  std::sort(thresholds.rbegin(), thresholds.rend());
  thresholds.erase(std::unique(thresholds.begin(), thresholds.end()), thresholds.end());
  const auto ones = static_cast<double>(std::count(labels.begin(), labels.end(), 1));
  double area = 0, before = 0;
  for (const double at : thresholds) {
    double right = 0, said = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (scores[i] < at) continue;
      said += 1;
      right += labels[i] == 1;
    }
    area += (right / ones - before) * right / said;
    before = right / ones;
  }
  return area;
}

}  // namespace

TEST_CASE("a confusion matrix counts true classes by rows and said ones by columns, of scores or of classes") {
  ConfusionMatrix m(kAlone, 3);
  CHECK(std::isnan(m.compute().item()));
  m.update(classes({0, 0, 2, 1}), classes({0, 1, 2, 1}));
  CHECK(m.batch_value().item() == 0.75);
  m.update(from_data<float>(std::vector<float>{0, 1, 5, 9, 1, 0}, {2, 3}, Device::cpu()), classes({2, 2}));
  CHECK(m.batch_value().item() == 0.5);
  CHECK(m.matrix().to_vector<double>() == std::vector<double>{1, 0, 0, 1, 1, 0, 1, 0, 2});
  CHECK(m.compute().item() == 4.0 / 6);
  CHECK_THROWS_AS(m.update(classes({3}), classes({0})), IndexError);
  CHECK_THROWS_AS(m.update(classes({0}), classes({-1})), IndexError);
  CHECK_THROWS_AS(m.update(zeros({2, 4}, Device::cpu()), classes({0, 1})), ShapeError);
  CHECK_THROWS_AS(m.update(classes({0, 1}), classes({0})), ShapeError);
  CHECK_THROWS_AS(m.update(classes({0}), row<float>({0})), DTypeError);
  CHECK(m.compute().item() == 4.0 / 6);
  const Tensor counted = m.matrix();
  m.reset();
  CHECK(sum(m.matrix()).item() == 0);
  CHECK(sum(counted).item() == 6);  // a result is no part of the metric
  CHECK_THROWS_AS(ConfusionMatrix(kAlone, 0), ConfigError);
}

TEST_CASE("precision, recall and F1 of each class, and their averages") {
  // Class 0: 2 right of 3 said and 4 true; class 1: 1 of 3 and 2; class 2: 0 of 0 and 0; class 3: 1 of 2 and 2.
  const Tensor truth = classes({0, 0, 0, 0, 1, 1, 3, 3}), said = classes({0, 0, 1, 3, 1, 0, 3, 1});
  const auto values = [&](Average average) {
    Precision precision(kAlone, {.classes = 4, .average = average});
    Recall recall(kAlone, {.classes = 4, .average = average});
    F1 f1(kAlone, {.classes = 4, .average = average});
    std::vector<double> out;
    for (ClassMetric* m :
         {static_cast<ClassMetric*>(&precision), static_cast<ClassMetric*>(&recall), static_cast<ClassMetric*>(&f1)}) {
      m->update(said, truth);
      out.push_back(m->compute().item());
    }
    CHECK(recall.per_class().to_vector<double>() == std::vector<double>{0.5, 0.5, 0, 0.5});
    return out;
  };
  const double f[] = {4.0 / 7, 2.0 / 5, 2.0 / 4};
  const std::vector<double> macro = values(Average::macro), micro = values(Average::micro),
                            weighted = values(Average::weighted);
  CHECK(macro[0] == doctest::Approx((2.0 / 3 + 1.0 / 3 + 1.0 / 2) / 3));  // class 2 was neither true nor said
  CHECK(macro[1] == doctest::Approx(0.5));
  CHECK(macro[2] == doctest::Approx((f[0] + f[1] + f[2]) / 3));
  for (const double v : micro) CHECK(v == doctest::Approx(0.5));
  CHECK(weighted[0] == doctest::Approx((4 * 2.0 / 3 + 2 * 1.0 / 3 + 2 * 1.0 / 2) / 8));
  CHECK(weighted[1] == doctest::Approx(0.5));
  CHECK(weighted[2] == doctest::Approx((4 * f[0] + 2 * f[1] + 2 * f[2]) / 8));
}

TEST_CASE("top-k accuracy finds the class among the k greatest scores") {
  TopKAccuracy m(kAlone, 2);
  m.update(from_data<float>(std::vector<float>{3, 2, 1, 1, 2, 3}, {2, 3}, Device::cpu()), classes({1, 0}));
  CHECK(m.batch_value().item() == 0.5);
  m.update(from_data<float>(std::vector<float>{3, 2, 1}, {1, 3}, Device::cpu()), classes({0}));
  CHECK(m.compute().item() == 2.0 / 3);
  CHECK_THROWS_AS(m.update(zeros({1, 1}, Device::cpu()), classes({0})), ShapeError);
  CHECK_THROWS_AS(TopKAccuracy(kAlone, 0), ConfigError);
}

TEST_CASE("the areas under the curves of scores are those of all pairs and of all thresholds") {
  std::mt19937 random(3);
  std::vector<double> scores;
  std::vector<std::int64_t> labels;
  AUROC auroc(kAlone, {.bins = 64});
  AveragePrecision precision(kAlone, {.bins = 64});
  for (int batch = 0; batch < 3; ++batch) {
    std::vector<double> s;
    std::vector<std::int64_t> t;
    for (int i = 0; i < 100; ++i) {
      t.push_back(random() % 3 == 0);
      s.push_back(static_cast<double>(random() % 48 + (t.back() != 0 ? 16 : 0)) / 64);  // many are equal
    }
    auroc.update(row(s), classes(t));
    precision.update(row(s).to(DType::f32), classes(t));
    CHECK(auroc.batch_value().item() == doctest::Approx(pairs_in_order(s, t)).epsilon(1e-12));
    scores.insert(scores.end(), s.begin(), s.end());
    labels.insert(labels.end(), t.begin(), t.end());
  }
  CHECK(auroc.compute().item() == doctest::Approx(pairs_in_order(scores, labels)).epsilon(1e-12));
  CHECK(precision.compute().item() == doctest::Approx(average_precision(scores, labels)).epsilon(1e-12));
}

TEST_CASE("scores beyond 0 and 1 count as these, and samples of one class have no area") {
  AUROC m(kAlone);
  CHECK(std::isnan(m.compute().item()));
  m.update(row<double>({7, 1}), classes({1, 1}).to(DType::b8));
  CHECK(std::isnan(m.compute().item()));
  m.update(row<double>({-1}), classes({0}).to(DType::b8));
  CHECK(m.compute().item() == 1);
  for (const std::int64_t label : {std::int64_t{2}, std::int64_t{-1}, std::int64_t{1} << 60})
    CHECK_THROWS_AS(m.update(row<double>({0.5}), classes({label})), IndexError);
  CHECK_THROWS_WITH_AS(m.update(classes({0}), classes({0})), doctest::Contains("AUROC: scores are"),
                       ShapeError);  // the metric that the user has
}

TEST_CASE("errors of numbers are means over all elements, not of batches' means") {
  MeanAbsoluteError mae(kAlone);
  MeanSquaredError mse(kAlone);
  RootMeanSquaredError rmse(kAlone);
  const auto update = [&](const Tensor& x, const Tensor& target) {
    mae.update(x, target);
    mse.update(x, target);
    rmse.update(x, target);
  };
  update(row<float>({1, 2, 3}), row<float>({2, 2, 5}));
  CHECK(mae.batch_value().item() == 1);
  CHECK(rmse.batch_value().item() == doctest::Approx(std::sqrt(5.0 / 3)));
  update(row<float>({0}), row<float>({4}));
  CHECK(mae.compute().item() == 7.0 / 4);
  CHECK(mse.compute().item() == 21.0 / 4);
  CHECK(rmse.compute().item() == doctest::Approx(std::sqrt(21.0 / 4)));
  CHECK_THROWS_AS(mae.update(row<float>({0}), zeros({1, 1}, Device::cpu())), ShapeError);
}

TEST_CASE("R2 is the share of the targets' variance that is explained, the mean over outputs") {
  R2Score one(kAlone), two(kAlone, 2);
  one.update(row<double>({2.5, 0, 2}), row<double>({3, -0.5, 2}));
  one.update(row<double>({8}), row<double>({7}));
  CHECK(one.compute().item() == doctest::Approx(0.9486081370449679));  // of the four samples together
  CHECK(std::isnan(one.batch_value().item()));
  two.update(from_data<double>(std::vector<double>{0, 1, 1, 1}, {2, 2}, Device::cpu()),
             from_data<double>(std::vector<double>{0, 1, 2, 1}, {2, 2}, Device::cpu()));
  CHECK(two.compute().item() == doctest::Approx((0.5 + 1) / 2));  // the second does not vary, and has no error
  R2Score flat(kAlone);
  flat.update(row<double>({0.1, 0.1, 0.3}), row<double>({0.1, 0.1, 0.1}));  // 0.1^2 + 0.1^2 + 0.1^2 is not 0.3^2 / 3
  CHECK(flat.compute().item() == 0);
  flat.reset();
  flat.update(row<double>({0.1, 0.1, 0.1}), row<double>({0.1, 0.1, 0.1}));
  CHECK(flat.compute().item() == 1);
  CHECK_THROWS_AS(one.update(zeros({2, 2}, Device::cpu()), zeros({2, 2}, Device::cpu())), ShapeError);
}

TEST_CASE("perplexity is exp of the mean loss over the tokens that count") {
  Perplexity m(kAlone, 0);
  m.update(zeros({2, 3, 8}, Device::cpu(), DType::bf16), ones({2, 3}, Device::cpu(), DType::i64));
  CHECK(m.batch_value().item() == doctest::Approx(8));
  Tensor sure = zeros({2, 8}, Device::cpu());
  add_(sure, one_hot(classes({1, 2}), 8).to(DType::f32), 100);
  m.update(sure, classes({1, 0}));  // the second is ignored
  CHECK(m.compute().item() == doctest::Approx(std::exp(6 * std::log(8.0) / 7)));
  CHECK_THROWS_AS(m.update(sure, classes({1})), ShapeError);
}

TEST_CASE("BLEU of Papineni's sentences, of a corpus, and smoothed") {
  const std::string the = "the the the the the the the";
  const std::vector<std::string> cat{"the cat is on the mat", "there is a cat on the mat"};
  Bleu words(kAlone, {.longest = 1});
  words.update(the, cat);
  CHECK(words.compute().item() == doctest::Approx(2.0 / 7));  // counts are clipped
  Bleu four(kAlone), smooth(kAlone, {.smooth = SmoothBleu::yes});
  for (Bleu* m : {&four, &smooth}) m->update("the cat is on the table", std::vector<std::string>{cat[0]});
  const double shares[] = {5.0 / 6, 4.0 / 5, 3.0 / 4, 2.0 / 3};
  const double smoothed[] = {5.0 / 6, 5.0 / 6, 4.0 / 5, 3.0 / 4};
  double log = 0, log_smoothed = 0;
  for (int n = 0; n < 4; ++n) log += std::log(shares[n]) / 4, log_smoothed += std::log(smoothed[n]) / 4;
  CHECK(four.compute().item() == doctest::Approx(std::exp(log)));
  CHECK(smooth.compute().item() == doctest::Approx(std::exp(log_smoothed)));
  four.update("mat", cat);  // no 2-gram, and shorter than each reference
  CHECK(four.batch_value().item() == 0);
  const double corpus = std::pow(6.0 / 7 * shares[1] * shares[2] * shares[3], 0.25) * std::exp(1 - 12.0 / 7);
  CHECK(four.compute().item() == doctest::Approx(corpus));
  Bleu none(kAlone);
  none.update("", cat);
  CHECK(none.compute().item() == 0);
  CHECK_THROWS_AS(none.update("a", {}), ConfigError);
  CHECK_THROWS_AS(Bleu(kAlone, {.longest = 0}), ConfigError);
}

TEST_CASE("metrics on a device have the values of the CPU") {
  DEVICE_OR_SKIP();
  Generator random(7);
  const Tensor logits = randn({50, 5}, random, Device::cpu()), truth = randint(0, 5, {50}, random, Device::cpu());
  const Tensor scores = rand({50}, random, Device::cpu()), labels = randint(0, 2, {50}, random, Device::cpu());
  const auto values = [&](Device where) {
    const nn::Options alone{.gen = Generator(0), .device = where};
    F1 f1(alone, {.classes = 5});
    TopKAccuracy top(alone, 2);
    AUROC auroc(alone);
    AveragePrecision precision(alone);
    R2Score r2(alone, 5);
    Perplexity perplexity(alone);
    RootMeanSquaredError rmse(alone);
    f1.update(logits.to(where), truth.to(where));
    top.update(logits.to(where), truth.to(where));
    auroc.update(scores.to(where), labels.to(where));
    precision.update(scores.to(where), labels.to(where));
    r2.update(logits.to(where), logits.to(where) * 1.5f);
    perplexity.update(logits.to(where), truth.to(where));
    rmse.update(logits.to(where), logits.to(where) * 1.5f);
    std::vector<double> out;
    for (const Metric* m : std::initializer_list<const Metric*>{&f1, &top, &auroc, &precision, &r2, &perplexity, &rmse})
      out.push_back(m->compute().item());
    return out;
  };
  const std::vector<double> got = values(device), want = values(Device::cpu());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-6));
  }
}
