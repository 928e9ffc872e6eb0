// Small pictures in color: trains a residual network on CIFAR-10.
#include <map>

#include "examples/cifar_data.h"
#include "examples/cifar_model.h"
#include "examples/dataset.h"

using namespace levin;
using namespace levin::examples;

namespace {

constexpr const char* kWhere =
    "put the binary version (https://www.cs.toronto.edu/~kriz/cifar.html: data_batch_1.bin to data_batch_5.bin, "
    "test_batch.bin, plain, .gz or .xz) into a folder and give it by --data, or as $LEVIN_DATA/cifar10";

cifar::Settings parse(int argc, char** argv) {
  cifar::Settings s;
  s.model = "resnet8";
  s.epochs = 5;
  s.lr = 0.01;
  s.ema = 0.995;
  s.label_smoothing = 0.1;
  std::string augment = "crop,flip,cutout";
  Flags flags("cifar", "Trains a classifier of small pictures in color.");
  flags.add("--augment", augment);
  parse_classifier_flags(flags, s, {"resnet8", "resnet20"}, argc, argv,
                         "a folder of CIFAR-10's binary files (default: $LEVIN_DATA/cifar10, generated patterns)");
  if (s.swa > 0 && !flags.given("--ema")) s.ema = 0;
  const std::map<std::string, bool*> known = {
      {"crop", &s.crop}, {"flip", &s.flip}, {"cutout", &s.cutout}, {"mixup", &s.mixup}};
  for (const auto& [name, on] : known) *on = false;
  for (const std::string& name : augment == "none" ? std::vector<std::string>{} : words(augment)) {
    if (!known.contains(name))
      flags.refuse("--augment: \"" + name + "\" is unknown; expected some of crop,flip,cutout,mixup, or none");
    *known.at(name) = true;
  }
  return s;
}

// Tries --data and $LEVIN_DATA/cifar10; else draws patterns.
Pictures find(const cifar::Settings& s, const Generator& gen) {
  const auto complete = [](const std::string& dir) {
    return data::has_cifar10(dir, data::Split::train) && data::has_cifar10(dir, data::Split::test);
  };
  std::string dir = s.data;
  if (dir.empty()) {
    const std::string root = environment("LEVIN_DATA");
    if (!root.empty() && complete(root + "/cifar10")) dir = root + "/cifar10";
  } else if (!complete(dir)) {
    fail<DataError>("--data: ", dir, " lacks CIFAR-10's files; ", kWhere);
  }
  Pictures p;
  std::pair<Tensor, Tensor> train, test;
  if (dir.empty()) {
    train = cifar::draw_patterns(gen.fork("train"), 10000);
    test = cifar::draw_patterns(gen.fork("test"), 1000);
    p.classes = cifar::kPatterns;
    p.said = std::string("data: generated patterns, not CIFAR-10; ") + kWhere;
  } else {
    const data::Cifar10 of_train = data::load_cifar10(dir, data::Split::train),
                        of_test = data::load_cifar10(dir, data::Split::test);
    train = {of_train.images, of_train.labels};
    test = {of_test.images, of_test.labels};
    p.classes = data::cifar10_classes(dir);
    p.real = true;
    p.said = "data: CIFAR-10 from " + dir;
    if (of_test.labels.size(0) < 10000)
      p.said += "; the test pictures are the first " + text(of_test.labels.size(0)) + " of 10000";
  }
  const std::vector<data::Normalization> scale(data::kCifar10Normalization.begin(), data::kCifar10Normalization.end());
  std::vector<data::Transform> changes;
  if (s.crop) changes.push_back(data::random_crop({.padding = {4, 4}, .mode = data::PaddingMode::reflect}));
  if (s.flip) changes.push_back(data::random_horizontal_flip());
  if (s.cutout) changes.push_back(data::cutout(8, 128));
  changes.push_back(data::normalize(scale));
  p.train = data::image_dataset(train.first, train.second, changes);
  p.plain = data::image_dataset(train.first, train.second, scale);
  p.test = data::image_dataset(test.first, test.second, scale);
  return p;
}

// The misclassified pictures as they are, in the order of the test set.
void draw(const std::string& path, const Pictures& pictures, const Predictions& predictions) {
  constexpr std::size_t kMost = 400;
  constexpr std::int64_t kSide = cifar::kSide, kColumns = 20;
  std::vector<std::int64_t> wrong = predictions.wrong();
  if (wrong.size() > kMost) wrong.resize(kMost);
  const auto count = static_cast<std::int64_t>(wrong.size());
  const std::int64_t rows = std::max<std::int64_t>(1, (count + kColumns - 1) / kColumns), cell = kSide + 2;
  Tensor sheet = full({rows * cell, kColumns * cell, 3}, 128, Device::cpu(), DType::u8);
  auto* const pixel = sheet.mutable_data<std::uint8_t>();
  for (std::int64_t k = 0; k < count; ++k) {
    Generator none(0);  // test samples draw nothing
    const Tensor image = pictures.test->get(wrong[static_cast<std::size_t>(k)], none)[0].contiguous();
    const float* const from = image.data<float>();
    for (std::int64_t c = 0; c < 3; ++c) {
      const data::Normalization n = data::kCifar10Normalization[static_cast<std::size_t>(c)];
      for (std::int64_t y = 0; y < kSide; ++y) {
        for (std::int64_t x = 0; x < kSide; ++x) {
          const float value = from[(c * kSide + y) * kSide + x] * n.std + n.mean;
          const std::int64_t row = k / kColumns * cell + 1 + y, column = k % kColumns * cell + 1 + x;
          pixel[(row * kColumns * cell + column) * 3 + c] =
              static_cast<std::uint8_t>(std::lround(std::clamp(value, 0.f, 1.f) * 255));
        }
      }
    }
  }
  data::save_png(path, sheet);
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("cifar", [&] {
    const cifar::Settings s = parse(argc, argv);
    const ClassifierProgram program{
        .name = "cifar",
        .class_is = "class",
        .find = [&s](const ClassifierSettings&,
                     const Generator& gen) { return read_data([&] { return find(s, gen.fork("pictures")); }); },
        .make_model = [&s](const ClassifierSettings& now, const Generator& gen,
                           Device device) -> std::unique_ptr<Classifier> {
          return std::make_unique<cifar::ResNetClassifier>(now, s.mixup, gen, device);
        },
        .draw_misclassified = draw};
    return run_classifier(program, s);
  });
}
