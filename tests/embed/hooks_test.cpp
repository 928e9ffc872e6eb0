// A compiler's messages on modules and callbacks whose functions hide a hook instead of overriding it.
#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/temporary.h"
#include "tests/where.h"

namespace {

// The compiler's output for a program of these lines.
std::string compiled(const std::string& lines) {
  const levin::test::TemporaryFolder folder;
  const std::string file = folder / "main.cpp";
  std::ofstream(file) << "#include <levin/train.h>\nusing namespace levin;\n" << lines;
  const std::string include = (std::filesystem::path(levin::test::source_dir()) / "include").string();
  FILE* const pipe = popen(("c++ -std=c++20 -fsyntax-only -I'" + include + "' '" + file + "' 2>&1").c_str(), "r");
  if (pipe == nullptr) return "no compiler";
  std::string output;
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, n);
  const int status = pclose(pipe);
  return status == 0 ? output : output + "refused";
}

}  // namespace

TEST_CASE("modules and callbacks that override, overload privately or leave out hooks compile") {
  CHECK(compiled(R"(
struct Net : TrainModuleOf<Net> {
  using TrainModuleOf::TrainModuleOf;
  StepOutput training_step(const Batch&, std::int64_t) override { return {}; }
  void on_fit_start() noexcept override {}
  void on_after_backward() override {}
  [[nodiscard]] bool automatic_optimization() const override { return false; }
  void train_step(int);
 private:
  void setup(int);
};
struct Deeper : TrainModuleOf<Deeper, Net> {
  using TrainModuleOf::TrainModuleOf;
};
struct Mine : Callback {
  void on_train_batch_end(const StepInfo&) override {}
  void on_train_batch_end(int) {}
};
void use(const nn::Options& options) {
  Net net(options);
  Deeper deeper(options);
  TrainerOptions how{.callbacks = {std::make_shared<Mine>(), std::make_shared<Timer>("00:00:00:01")}};
  how.callbacks.push_back(std::make_shared<Mine>());
}
)")
            .empty());
}

TEST_CASE("a function with a hook's name and another signature does not compile, and the error names the hook") {
  const std::string output = compiled(R"(
struct Net : TrainModuleOf<Net> {
  using TrainModuleOf::TrainModuleOf;
  Tensor training_step(const Batch&);
  void validation_step(const Batch&, std::int64_t);
  bool automatic_optimization() { return false; }
  void on_train_epoch_end(int);
  int on_fit_end = 0;
};
struct Misspelled : TrainModuleOf<Misspelled> {
  using TrainModuleOf::TrainModuleOf;
  StepOutput train_step(const Batch&, std::int64_t);
};
struct Mine : Callback {
  void on_train_batch_end(const Batch&) {}
  void on_exception(std::exception&) {}
};
void use(const nn::Options& options) {
  Net net(options);
  Misspelled other(options);
  TrainerOptions how{.callbacks = {std::make_shared<Mine>()}};
}
)");
  INFO(output);
  CHECK(output.ends_with("refused"));
  for (const char* const name : {"training_step", "validation_step", "automatic_optimization"})
    CHECK(output.find("a member named " + std::string(name) + " hides the function of TrainModule") !=
          std::string::npos);
  for (const char* const name : {"on_train_epoch_end", "on_fit_end", "on_train_batch_end", "on_exception"})
    CHECK(output.find("a member named " + std::string(name) + " hides the hook instead of overriding it") !=
          std::string::npos);
  CHECK(output.find("its signature has to be void on_train_batch_end(const StepInfo&)") != std::string::npos);
  CHECK(output.find("a member named train_step is called by nobody; the function of TrainModule is training_step") !=
        std::string::npos);
}
