#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "levin/train/summary.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

struct Block : nn::Module {
  using Module::Module;
  nn::Linear in{*this, "in", {.in = 1000, .out = 1000}};
  nn::ReLU act{*this, "act"};
};
struct Deep : nn::Module {
  using Module::Module;
  nn::Parameter scale{*this, "scale", Tensor(zeros({7}, Device::cpu()))};
  Block first{*this, "first"};
  nn::Linear head{*this, "head", {.in = 1000, .out = 3}};
};
const nn::Options kRoot{.gen = Generator(1), .device = Device::cpu()};

Tensor shape_of(const Shape& shape) { return empty(shape, Device::meta()); }
// The cells of a module's line, joined by spaces: "Linear 48 train [4, 2] [4, 16] 256"; empty where it has none.
std::string cells_of(const std::string& table, const std::string& name) {
  const std::size_t at = table.find("| " + name + " ");
  if (at == std::string::npos) return {};
  std::string line = table.substr(at, table.find('\n', at) - at), out;
  for (std::size_t i = 2 + name.size(); i < line.size(); ++i) {
    if (line[i] == '|' || (line[i] == ' ' && (out.empty() || out.back() == ' '))) continue;
    out += line[i];
  }
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

struct ToldBlock : nn::Module {
  using Module::Module;
  nn::Linear in{*this, "in", {.in = 8, .out = 8}};
  Tensor operator()(const Tensor& x) const {
    const nn::Call call(*this, x);
    return call.gives(matmul(relu(in(x)), in.weight));
  }
};
struct SilentBlock : nn::Module {
  using Module::Module;
  nn::Linear in{*this, "in", {.in = 8, .out = 8}};
  Tensor operator()(const Tensor& x) const { return matmul(relu(in(x)), in.weight); }
};
struct Nested : nn::Module {
  using Module::Module;
  nn::Conv2d conv{*this, "conv", {.in = 1, .out = 2, .kernel = 3}};
  ToldBlock told{*this, "told"};
  SilentBlock silent{*this, "silent"};
  nn::MultiheadAttention attention{*this, "attention", {.embed_dim = 8, .num_heads = 2}};
  nn::LSTM lstm{*this, "lstm", {.in = 8, .hidden = 3}};
  nn::Linear unused{*this, "unused", {.in = 8, .out = 8}};
  Tensor operator()(const Tensor& image) const {  // [N, 1, 6, 4] -> [N, 4, 3]
    const Tensor x = reshape(conv(image), {image.size(0), 2, 8});
    const Tensor y = told(narrow(told(x), 1, 0, 1));
    return lstm(attention(cat({silent(x), y, y}, 1))).y;
  }
};

// Everything that a run on shapes could change.
struct Disturbed : TrainModuleOf<Disturbed> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 300}};
  nn::BatchNorm1d norm{*this, "norm", {.features = 300}};
  nn::Dropout drop{*this, "drop", {.p = 0.5}};
  nn::Linear fc2{*this, "fc2", {.in = 300, .out = 1}};
  nn::ModuleGenerator noise{*this, "noise"};
  bool example = true, throws = false;
  int forwards = 0;
  bool recorded = false, trained = false;

  Tensor operator()(const Tensor& x) const { return fc2(drop(norm(fc1(x)))); }
  Batch example_input() override { return example ? Batch{.fields = {ones({4, 2}, Device::cpu())}} : Batch{}; }
  void example_forward(const Batch& b) override {
    ++forwards;
    recorded |= grad_mode();
    trained |= is_training() || drop.is_training();
    CHECK(b[0].device().is_meta());
    CHECK(device().is_meta());
    (void)(*this)(b[0] + randn({4, 2}, noise, b[0].device()));
    (void)noise.reserve(3, b[0].device());  // ops draw nothing on meta
    if (throws) (void)sum(b[0]).item<float>();
  }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    return squared_error((*this)(b[0] + randn(b[0].shape(), noise, b[0].device(), b[0].dtype())), b[1]);
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 1e-3})}};
  }
};

// The addresses and values of a module.
struct StateOf {
  std::vector<const void*> handles;
  std::vector<float> values, gradients;
  std::vector<bool> modes;
  std::vector<RandomRange> generators;
  std::int64_t bytes = memory_stats(Device::cpu()).in_use;
  explicit StateOf(nn::Module& m) {
    for (const ParamRef& p : m.parameters()) {
      handles.push_back(p.value->impl());
      if (const Tensor g = p.value->grad(); g.defined()) {
        const std::vector<float> all = g.to_vector<float>();
        gradients.insert(gradients.end(), all.begin(), all.end());
      }
    }
    for (const nn::BufferRef& b : m.buffers()) handles.push_back(b.value->impl());
    m.visit([&](const std::string&, const nn::Module& at) { modes.push_back(at.is_training()); });
    for (const auto& [name, g] : m.generators()) generators.push_back(g->state());
    values = float_weights(m);
  }
  static std::vector<float> float_weights(const nn::Module& m) {
    std::vector<float> all;
    for (const auto& [name, t] : m.state_dict()) {
      const std::vector<float> some = t.to(DType::f32).to_vector<float>();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  void check_equal(const StateOf& o) const {
    CHECK(handles == o.handles);
    CHECK(values == o.values);
    CHECK(gradients == o.gradients);
    CHECK(modes == o.modes);
    CHECK(bytes == o.bytes);
    REQUIRE(generators.size() == o.generators.size());
    for (std::size_t i = 0; i < generators.size(); ++i) {
      CHECK(generators[i].seed == o.generators[i].seed);
      CHECK(generators[i].offset == o.generators[i].offset);
    }
  }
};

struct Fitted {
  std::vector<float> weights;
  std::string summary;
  std::vector<std::string> warnings;
};
template <class M>
Fitted fitted(M& net, const std::string& precision = "32-true") {
  const Warnings warnings;
  auto summary = std::make_shared<ModelSummary>();
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.precision = precision;
  options.callbacks = {summary};
  Trainer trainer(std::move(options));
  data::DataLoader train = loader();
  trainer.fit(net, {.train = train});
  Fitted out{.weights = StateOf::float_weights(net), .summary = summary->text(), .warnings = {}};
  for (const Warning& w : warnings.all()) {
    if (w.id == "W-TRAIN-SUMMARY") out.warnings.push_back(w.text);
  }
  return out;
}

}  // namespace

TEST_CASE("counts read as Lightning prints them") {
  const std::vector<std::pair<std::int64_t, std::string>> cases = {
      {0, "0"},
      {123, "123"},
      {999, "999"},
      {1000, "1.0 K"},
      {1234, "1.2 K"},
      {1299, "1.2 K"},
      {99'999, "99.9 K"},
      {100'000, "100 K"},
      {999'999, "999 K"},
      {2'000'000, "2.0 M"},
      {61'706, "61.7 K"},
      {3'000'000'000, "3.0 B"},
      {4'100'000'000'000, "4.1 T"},
      {std::numeric_limits<std::int64_t>::max(), "9223372 T"}};
  for (const auto& [n, expected] : cases) CHECK(readable_count(n) == expected);
}

TEST_CASE("a summary has a line for each child of the root, totals of all parameters and the modes") {
  Net net(kRoot);
  net.drop.eval();
  net.fc2.requires_grad_(false);
  CHECK(summarize(net) ==
        "  | Name | Type    | Params | Mode\n"
        "-----------------------------------\n"
        "0 | fc1  | Linear  | 48     | train\n"
        "1 | drop | Dropout | 0      | eval\n"
        "2 | fc2  | Linear  | 17     | train\n"
        "-----------------------------------\n"
        "48 trainable parameters\n"
        "17 non-trainable parameters\n"
        "65 parameters in all, 260 bytes\n"
        "3 modules in train mode, 1 in eval mode\n");
}

TEST_CASE("max_depth decides which modules have a line, and the root's own parameters have one too") {
  const Deep deep(kRoot);
  const std::string one = summarize(deep);
  CHECK(one.find("0 | (own) | Deep   | 7      | train\n") != std::string::npos);
  CHECK(one.find("1 | first | Block  | 1.0 M  | train\n") != std::string::npos);
  CHECK(one.find("first.in") == std::string::npos);
  CHECK(one.find("1.0 M parameters in all, 4.016 MB\n") != std::string::npos);
  const std::string all = summarize(deep, {.max_depth = -1});
  CHECK(all == summarize(deep, {.max_depth = 2}));
  CHECK(all.find("2 | first.in  | Linear | 1.0 M  | train\n") != std::string::npos);
  CHECK(all.find("3 | first.act | ReLU   | 0      | train\n") != std::string::npos);
  CHECK(summarize(deep, {.max_depth = 0}).starts_with("1.0 M trainable parameters\n"));
  CHECK_THROWS_AS((void)summarize(deep, {.max_depth = -2}), ConfigError);
  CHECK_THROWS_AS(ModelSummary({.max_depth = -2}), ConfigError);
}

TEST_CASE("the callback summarizes the model of a fit before its first batch") {
  Net net(kRoot);
  optim::SGD opt(net.parameters(), {.lr = 0.1});
  auto summary = std::make_shared<ModelSummary>();
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.callbacks = {summary};
  Trainer trainer(std::move(options));
  data::DataLoader train = loader();
  std::string at_first_batch;
  trainer.fit(opt, train, [&](const Batch& b) {
    if (at_first_batch.empty()) at_first_batch = summary->text();
    return squared_error(net(b[0]), b[1]);
  });
  CHECK(at_first_batch == summarize(net));
}

TEST_CASE("a forward pass of an example fills in sizes and FLOPs") {
  Net net(kRoot);
  net.drop.eval();
  const std::string expected =
      "  | Name | Type    | Params | Mode  | In sizes | Out sizes | FLOPs\n"
      "------------------------------------------------------------------\n"
      "0 | fc1  | Linear  | 48     | train | [4, 2]   | [4, 16]   | 256\n"
      "1 | drop | Dropout | 0      | eval  | [4, 16]  | [4, 16]   | 0\n"
      "2 | fc2  | Linear  | 17     | train | [4, 16]  | [4, 1]    | 128\n"
      "------------------------------------------------------------------\n"
      "65 trainable parameters\n"
      "0 non-trainable parameters\n"
      "65 parameters in all, 260 bytes\n"
      "384 FLOPs in a forward pass of the example\n"
      "3 modules in train mode, 1 in eval mode\n";
  CHECK(summarize(net, {}, [&] { (void)net(shape_of({4, 2})); }) == expected);
  CHECK(summarize(net, {.max_depth = 0}, [&] {
          (void)net(shape_of({4, 2}));
        }) == expected.substr(expected.find("65 trainable")));
  CHECK_THROWS_AS((void)summarize(net, {.max_depth = -2}, [] {}), ConfigError);
  // FLOPs of the root after its last module are its own.
  const std::string more = summarize(net, {}, [&] {
    (void)net(shape_of({4, 2}));
    (void)matmul(shape_of({2, 4}), shape_of({4, 3}));
  });
  CHECK(cells_of(more, "(own)") == "Net 0 train ? ? 48");
  CHECK(more.find("\n432 FLOPs in a forward pass of the example\n") != std::string::npos);
}

TEST_CASE("FLOPs count for the module that was called, and for those around it") {
  Nested net(kRoot);
  const auto forward = [&] { (void)net(shape_of({5, 1, 6, 4})); };
  const std::string one = summarize(net, {}, forward);
  // [5, 2, 8] and [5, 1, 8] through two products with an 8 by 8 matrix, once more without the first's call.
  const std::int64_t product = 2 * 8 * 8;
  CHECK(cells_of(one, "conv") == "Conv2d 20 train [5, 1, 6, 4] [5, 2, 4, 2] " + readable_count(2 * 5 * 2 * 8 * 9));
  CHECK(cells_of(one, "told") == "ToldBlock 72 train [5, 2, 8] [5, 2, 8] " + readable_count((10 + 5) * 2 * product));
  CHECK(cells_of(one, "silent") == "SilentBlock 72 train ? ? " + readable_count(10 * product));
  CHECK(cells_of(one, "(own)") == "Nested 0 train ? ? " + readable_count(10 * product));
  CHECK(cells_of(one, "unused") == "Linear 72 train ? ? 0");
  // In and out projections, scores and their product with the values: 4 positions, 2 heads of 4 numbers.
  const std::int64_t attention = 20 * 4 * product + 2 * (5 * 2 * 4 * 4) * (4 + 4);
  CHECK(cells_of(one, "attention") ==
        "MultiheadAttention 288 train [[5, 4, 8], [5, 4, 8], [5, 4, 8]] [5, 4, 8] " + readable_count(attention));
  // Four gates: once for all steps from x, then five times from the hidden state of 4 sequences.
  CHECK(cells_of(one, "lstm") == "LSTM 156 train [5, 4, 8] [[5, 4, 3], [1, 4, 3], [1, 4, 3]] " +
                                     readable_count(2 * 20 * 12 * 8 + 5 * 2 * 4 * 12 * 3));
  const std::int64_t lstm = 2 * 20 * 12 * 8 + 5 * 2 * 4 * 12 * 3;
  const std::int64_t all = 2 * 5 * 2 * 8 * 9 + 30 * product + 20 * product + attention + lstm;
  CHECK(one.find("\n" + readable_count(all) + " FLOPs in a forward pass of the example\n") != std::string::npos);

  const std::string deep = summarize(net, {.max_depth = -1}, forward);
  CHECK(cells_of(deep, "told") == cells_of(one, "told"));
  CHECK(cells_of(deep, "told.in") == "Linear 72 train [5, 2, 8] [5, 2, 8] " + readable_count(15 * product));
  CHECK(cells_of(deep, "silent.in") == "Linear 72 train [5, 2, 8] [5, 2, 8] " + readable_count(10 * product));
  CHECK(cells_of(deep, "attention.out_proj") == "Linear 72 train [5, 4, 8] [5, 4, 8] " + readable_count(20 * product));
}

TEST_CASE("a look at the shapes leaves the module as it was, also one that ends by an exception") {
  Disturbed net(kRoot);
  backward(sum(net(ones({8, 2}, Device::cpu()))));
  net.norm.eval();
  const StateOf before(net);
  REQUIRE(before.gradients.size() > 0);
  const std::string table = summarize(net);
  CHECK(net.forwards == 1);
  CHECK_FALSE(net.recorded);
  CHECK_FALSE(net.trained);
  CHECK(grad_mode());
  CHECK(cells_of(table, "fc1") == "Linear 900 train [4, 2] [4, 300] 4.8 K");
  CHECK(cells_of(table, "norm") == "BatchNorm1d 600 eval [4, 300] [4, 300] 0");
  before.check_equal(StateOf(net));
  net.throws = true;
  CHECK_THROWS_AS((void)summarize(net), UnsupportedError);
  CHECK(grad_mode());
  before.check_equal(StateOf(net));
  net.example = false;
  CHECK(summarize(net) == summarize(static_cast<const nn::Module&>(net)));
  CHECK(net.forwards == 2);
}

TEST_CASE("a fit shows the sizes of the module's example and trains as without") {
  Disturbed plain(kRoot), shown(kRoot), wrong(kRoot);
  plain.example = false;
  const Fitted without = fitted(plain), with = fitted(shown);
  CHECK(std::isfinite(without.weights[0]));
  CHECK(without.weights == with.weights);
  CHECK(cells_of(without.summary, "fc2") == "Linear 301 train");
  CHECK(cells_of(with.summary, "fc2") == "Linear 301 train [4, 300] [4, 1] 2.4 K");
  CHECK(with.warnings.empty());

  wrong.throws = true;
  const Fitted warned = fitted(wrong);
  CHECK(warned.weights == without.weights);
  CHECK(warned.summary == without.summary);
  REQUIRE(warned.warnings.size() == 1);
  CHECK(warned.warnings[0].find("the example of Disturbed can not be run on shapes alone: ") != std::string::npos);
  CHECK(warned.warnings[0].find("meta") != std::string::npos);
}

TEST_CASE("an example goes through the transfer hooks and the precision of the run") {
  struct Wide : TrainModuleOf<Wide, Disturbed> {
    using TrainModuleOf::TrainModuleOf;
    DType seen = DType::f32;
    Batch example_input() override { return {.fields = {ones({6, 1}, Device::cpu())}}; }
    void example_forward(const Batch& b) override { seen = (*this)(b[0]).dtype(); }
    Batch on_after_batch_transfer(Batch b) override {
      if (b[0].size(1) == 1) b.fields[0] = cat({b[0], b[0]}, 1);
      return b;
    }
  };
  Wide mixed(kRoot), pure(kRoot);
  CHECK(cells_of(fitted(mixed, "bf16-mixed").summary, "fc1") == "Linear 900 train [6, 2] [6, 300] 7.2 K");
  CHECK(mixed.seen == DType::bf16);
  CHECK(cells_of(fitted(pure, "64-true").summary, "fc1") == "Linear 900 train [6, 2] [6, 300] 7.2 K");
  CHECK(pure.seen == DType::f64);
}
