#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/ops.h"
#include "levin/train/options.h"
#include "levin/warning.h"
#include "tests/fuzz/target.h"
#include "train/callbacks/checkpoint_name.h"
#include "train/logs/csv.h"
#if __has_include(<CLI/CLI.hpp>)
#include "examples/flags.h"
#endif

namespace levin::fuzz {
namespace {

std::string_view text_of(Bytes in) { return {reinterpret_cast<const char*>(in.data()), in.size()}; }

// "name=value" on each line; values that the environment cannot hold are left out.
Metadata settings(std::string_view lines) {
  Metadata out;
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string_view line = lines.substr(at, end - at);
    at = end + 1;
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos && line.find('\0') == std::string_view::npos)
      out.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  return out;
}

// The environment's variables for these options, while it lives.
class Environment {
 public:
  explicit Environment(const Metadata& of) {
    for (const auto& [name, value] : of) {
      std::string variable = "LEVIN_TRAINER_";
      for (const char c : name) variable += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      if (setenv(variable.c_str(), value.c_str(), 1) == 0) names_.push_back(variable);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

// Drops warnings while it lives.
class Quiet {
 public:
  Quiet() : before_(set_warning_handler([](const Warning&) {})) {}
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  ~Quiet() { set_warning_handler(std::move(before_)); }

 private:
  Function<void(const Warning&)> before_;
};

void durations(std::string_view in) {
  const Duration read(in);
  expect(read.seconds() >= 0, "a length of time is negative");
}

void equations(std::string_view in) {
  Generator gen(1);
  const Tensor all[] = {rand({2, 3}, gen, Device::cpu()), rand({3, 2}, gen, Device::cpu()),
                        rand({2, 1, 3}, gen, Device::cpu())};
  bool taken = false;
  for (std::size_t n = 1; n <= std::size(all); ++n) {
    taken = !refused([&] { (void)einsum(in, std::span(all, n)); }) || taken;
  }
  if (!taken) fail<ShapeError>("einsum: no operands have this form");
}

void file_names(std::string_view in) {
  const Metrics metrics{{"val_loss", 0.25}, {"a/b", -1e300}};
  for (const auto insert : {train::InsertNames::yes, train::InsertNames::no}) {
    const std::string name = train::checkpoint_name(in, insert, 3, 1'000'000'007, metrics);
    expect(name.find('/') == std::string::npos, "the name of a checkpoint has a slash");
  }
}

void tables(std::string_view in) {
  const train::CsvText csv = train::read_csv("metrics.csv", in);
  for (const std::string_view line : csv.lines) {
    (void)refused([&] { (void)train::step_of("metrics.csv", line); });
    expect(train::cells_of("metrics.csv", csv, line).size() == csv.names.size() + 2, "a line has too few cells");
  }
}

void flags([[maybe_unused]] std::string_view in) {
#if __has_include(<CLI/CLI.hpp>)
  std::string value(in);
  (void)examples::at_least(0)(value);
  (void)examples::above(0)(value);
  (void)refused([&] { (void)examples::device(value); });
  (void)refused([&] { (void)examples::portion("--limit", value).of(10, "--limit"); });
#endif
}

}  // namespace

bool options(Bytes in) {
  const Quiet quiet;
  const Metadata given = settings(text_of(in));
  const bool taken = !refused([&] {
    const Environment set(given);
    (void)TrainerOptions::from_env({});
  });
  return !refused([&] { (void)TrainerOptions::from_legacy(given); }) || taken;
}

// The first byte chooses the kind of text; the other bytes are the text.
bool text(Bytes in) {
  if (in.empty()) return false;
  const std::string_view rest = text_of(in).substr(1);
  return !refused([&] {
    switch (in[0]) {
      case 'c': return tables(rest);
      case 'd': return durations(rest);
      case 'e': return equations(rest);
      case 'f': return file_names(rest);
      case 'n': return flags(rest);
      default: return;
    }
  });
}

}  // namespace levin::fuzz
