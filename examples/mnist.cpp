// Handwritten digits: trains a small network on MNIST and shows what the network learned.
#include "examples/mnist_model.h"

using namespace levin;
using namespace levin::examples;

namespace {

ClassifierSettings parse(int argc, char** argv) {
  ClassifierSettings s;
  s.model = "cnn";
  s.lr = 2e-3;
  Flags flags("mnist", "Trains a classifier of handwritten digits.");
  parse_classifier_flags(flags, s, {"mlp", "cnn"}, argc, argv);
  return s;
}

Pictures find(const ClassifierSettings& s, const Generator& gen) {
  const Digits digits = find_digits(s.data, gen.fork("digits"));
  Pictures pictures{.train = digits.train, .test = digits.test, .real = digits.real, .said = digits.said};
  for (std::int64_t c = 0; c < kClasses; ++c) pictures.classes.push_back(std::to_string(c));
  return pictures;
}

}  // namespace

int main(int argc, char** argv) {
  const ClassifierProgram program{
      .name = "mnist",
      .class_is = "digit",
      .find = find,
      .make_model = mnist::make_model,
      .draw_misclassified = [](const std::string& path, const Pictures& pictures, const Predictions& predictions) {
        draw_misclassified(path, *pictures.test, predictions);
      }};
  return run_program("mnist", [&] { return run_classifier(program, parse(argc, argv)); });
}
