// Errors that cross layers: what they name, and how often.
#include <doctest/doctest.h>

#include <string>

#include "levin/data.h"
#include "levin/nn.h"
#include "levin/ops.h"

using namespace levin;

namespace {

struct Encoder : nn::Module {
  using Module::Module;
  nn::Linear fc{*this, "fc", {.in = 4, .out = 2}};
};

// A dataset that passes its samples to a module of the wrong size.
struct Encoded final : data::Dataset {
  const Encoder& encoder;
  explicit Encoded(const Encoder& e) : encoder(e) {}
  [[nodiscard]] std::int64_t size() const override { return 2; }
  [[nodiscard]] data::Sample get(std::int64_t, Generator&) const override {
    return {encoder.fc(ones({1, 3}, Device::cpu()))};
  }
};

}  // namespace

TEST_CASE("an error of a module that a dataset calls names the module once, also in a loader's worker") {
  Generator gen(1);
  const Encoder encoder({.gen = gen, .device = Device::cpu()});
  for (const int workers : {0, 1}) {
    data::DataLoader loader(std::make_shared<Encoded>(encoder), {.batch_size = 1, .num_workers = workers});
    std::string said;
    try {
      for (const Batch& batch : loader) (void)batch;
    } catch (const ShapeError& e) {
      said = e.what();
      CHECK(e.module_path() == "fc");
      CHECK(e.op() == "linear");
    }
    CAPTURE(said);
    CHECK(said.rfind("in fc: linear: ", 0) == 0);
    CHECK(said.find("in fc", 1) == std::string::npos);
    CHECK(said.find("; loading sample 0 of epoch 0") != std::string::npos);
  }
}
