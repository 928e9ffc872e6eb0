// The flags of Levin's programs: one vocabulary, so a person who knows one program knows all. A program names the flags
// that have a meaning for it and refuses every other. Exit codes and the JSON result are here, too.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "levin/levin.h"

namespace levin::examples {

enum ExitCode : int { kDone = 0, kUsage = 2, kBadData = 65, kInternal = 70, kCannotWrite = 73, kTryAgain = 75 };

struct FlagText {
  const char* name;
  const char* value;  // "" for a switch
  const char* help;
};
inline constexpr FlagText kVocabulary[] = {
    // Data
    {"--data", "DIR", "where the data lies (default: $LEVIN_DATA/NAME, the cache, a download, built-in data)"},
    {"--batch-size", "N", "samples in a batch"},
    {"--workers", "N", "threads that load data; 0: the training thread does it"},
    {"--limit-train-batches", "X", "batches of an epoch: an integer is a count, a decimal a fraction"},
    {"--limit-val-batches", "X", "the same for validation"},
    // Model and training
    {"--model", "NAME", "which model"},
    {"--epochs", "N", "passes over the training data"},
    {"--max-steps", "N", "optimizer steps at most; -1: no limit"},
    {"--max-time", "DD:HH:MM:SS", "training time at most"},
    {"--lr", "X", "learning rate"},
    {"--optimizer", "NAME", "which optimizer"},
    {"--scheduler", "NAME", "which learning-rate schedule"},
    {"--seed", "N", "of everything random"},
    {"--accumulate", "N", "batches an optimizer step"},
    {"--clip", "X", "limit of the gradients; 0: off"},
    {"--clip-algorithm", "NAME", "norm or value"},
    {"--ema", "DECAY", "average the weights exponentially"},
    {"--swa", "EPOCH", "average the weights from this epoch on, counted from 1, at a tenth of --lr"},
    {"--early-stop", "METRIC", "stop when it no longer improves: val_loss, val_accuracy or train_loss"},
    {"--val-check-interval", "X", "batches between validations"},
    {"--check-val-every-n-epoch", "N", "epochs between validations"},
    {"--fast-dev-run", "N", "N batches of everything and no files; 1 where N is left out, off without the flag"},
    {"--overfit-batches", "X", "train and validate on the same few batches"},
    {"--find-lr", "", "search a learning rate first"},
    {"--find-batch-size", "NAME", "search a batch size first: power or binsearch"},
    {"--memory-limit", "BYTES", "of the device"},
    {"--memory", "BYTES", "of a device: the largest batch for it"},
    {"--sampler", "NAME", "full or neighbor"},
    {"--fanout", "LIST", "neighbours a layer"},
    {"--runs", "K", "repeat with other seeds"},
    {"--augment", "LIST", "changes of training pictures: crop, flip, cutout, mixup; or none"},
    // Machine
    {"--device", "NAME", "auto, cpu, cuda, cuda:I, simt"},
    {"--devices", "LIST", "how many, or which"},
    {"--nodes", "N", "machines"},
    {"--strategy", "NAME", "how a step spans devices"},
    {"--virtual-ranks", "N", "ddp whose results depend on N and not on the number of processes, which divides N"},
    {"--balance", "LIST", "layers of each pipeline stage (default: by the sizes of the layers)"},
    {"--microbatches", "N", "parts of a batch that follow each other through a pipeline"},
    {"--schedule", "NAME", "order of a pipeline's passes: gpipe or 1f1b"},
    {"--tokens", "N", "of a step, over all devices"},
    {"--tflops", "X", "10^12 operations a second that a device achieves"},
    {"--busbw", "X", "GB a second of a device's collectives in a node"},
    {"--net", "X", "GB a second of a device's collectives between nodes"},
    {"--alpha", "X", "microseconds of a collective without data in a node"},
    {"--net-alpha", "X", "microseconds of a collective without data between nodes"},
    {"--calibration", "FILE", "measured figures in JSON, in place of the flags' defaults"},
    {"--sbatch", "FILE", "writes a batch script for SLURM"},
    {"--command", "TEXT", "the program that the script starts"},
    {"--precision", "NAME", "32-true, bf16-mixed, 16-mixed, bf16-true, 16-true, 16-o2 or 64-true"},
    {"--capture", "NAME", "record the step and replay it: step, off, or auto (step on cuda)"},
    {"--threads", "N", "CPU threads; 0: all cores"},
    // Results
    {"--out", "DIR", "where result files go; none without it"},
    {"--json", "FILE", "the results as JSON"},
    {"--logger", "LIST", "csv, tensorboard"},
    {"--profile", "NAME", "simple or trace"},
    {"--checkpoint-every", "N", "optimizer steps between checkpoints, the last three of which stay; 0: every epoch"},
    {"--resume", "FILE", "go on from a checkpoint: a file, last or best (in --out)"},
    {"--quiet", "", "no progress"},
};

// The number of single-character edits from one word to the other.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

// The name that was meant, with at most one wrong letter in three; else empty.
inline std::string nearest(std::string_view given, const std::vector<std::string>& names) {
  const auto far = [&](const std::string& name) { return edit_distance(given, name); };
  const auto best = std::min_element(names.begin(), names.end(),
                                     [&](const std::string& a, const std::string& b) { return far(a) < far(b); });
  return best != names.end() && far(*best) <= given.size() / 3 ? *best : std::string();
}

// Checks of a number; the message of each says what the number is not. Every number has the first check: CLI11 would
// clamp a number that does not fit.
template <class T>
CLI::Validator is_number() {
  return {[](std::string& value) {
            T x{};
            const char *begin = value.data(), *const end = begin + value.size();
            const auto [at, error] = std::from_chars(begin, end, x);
            const bool whole = begin != end && at == end;
            if constexpr (std::is_integral_v<T>) {
              if (whole && error == std::errc()) return std::string();
              return "\"" + value + "\" is not a whole number from " + text(std::numeric_limits<T>::min()) + " to " +
                     text(std::numeric_limits<T>::max());
            } else {
              if (whole && error == std::errc() && std::isfinite(x)) return std::string();
              return "\"" + value + "\" is not a number" + (whole ? " that can be held" : "");
            }
          },
          ""};
}
inline CLI::Validator at_least(double low) {
  return {[low](std::string& value) {
            char* end = nullptr;
            const double x = std::strtod(value.c_str(), &end);
            if (!value.empty() && *end == '\0' && x >= low) return std::string();
            return "\"" + value + "\" is not a number of at least " + text(low);
          },
          ""};
}
inline CLI::Validator above(double low) {
  return {[low](std::string& value) {
            char* end = nullptr;
            const double x = std::strtod(value.c_str(), &end);
            if (!value.empty() && *end == '\0' && x > low) return std::string();
            return "\"" + value + "\" is not a number above " + text(low);
          },
          ""};
}

class Flags {
 public:
  Flags(std::string program, const std::string& about) : app_(about, program), program_(std::move(program)) {
    app_.allow_extras();
    app_.set_help_flag("--help,-h", "this text");
  }
  // A flag with a value; its default is what `value` holds.
  template <class T>
  CLI::Option* add(const char* name, T& value) {
    const FlagText& text = find(name);
    CLI::Option* option = app_.add_option(name, value, text.help)->type_name(text.value);
    if constexpr (std::is_arithmetic_v<T>) option->check(is_number<T>());
    option->capture_default_str();
    names_.emplace_back(name);
    return option;
  }
  // A flag that takes these values alone, which the help names.
  CLI::Option* add_choice(const char* name, std::string& value, const std::vector<std::string>& values) {
    std::string listed;
    for (std::size_t i = 0; i < values.size(); ++i)
      listed += (i == 0 ? "" : i + 1 < values.size() ? ", " : " or ") + values[i];
    const auto one_of = [values, listed](const std::string& given) {
      if (std::find(values.begin(), values.end(), given) != values.end()) return std::string();
      return given + " is not for this program; expected " + listed;
    };
    return add(name, value)->check(one_of)->description(listed);
  }
  // A required argument without a name.
  template <class T>
  CLI::Option* add_argument(const char* name, T& value, const char* help) {
    return app_.add_option(name, value, help)->type_name("")->required();
  }
  // Help and default of an added flag where this program's differ from the vocabulary's; empty: unchanged.
  void describe(const char* name, const std::string& default_text, const std::string& help = {}) {
    CLI::Option* const option = app_.get_option(name);
    if (!default_text.empty()) option->default_str(default_text);
    if (!help.empty()) option->description(help);
  }
  // Whether the command line has the flag; after parse.
  [[nodiscard]] bool given(const char* name) const { return app_.count(name) > 0; }
  void add_switch(const char* name, bool& value) {
    app_.add_flag(name, value, find(name).help);
    names_.emplace_back(name);
  }
  // Ends the program after --help, and with exit code 2 for an argument that it does not understand.
  void parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForHelp& help) { std::exit(app_.exit(help)); } catch (const CLI::ParseError& e) {
      refuse(e.what());
    }
    for (const std::string& extra : app_.remaining()) {
      const std::string name = extra.substr(0, extra.find('='));
      if (name.empty() || name[0] != '-') refuse("unexpected argument " + extra);
      if (std::any_of(std::begin(kVocabulary), std::end(kVocabulary),
                      [&](const FlagText& f) { return name == f.name; }))
        refuse(name + " has no meaning for this program");
      const std::string meant = nearest(name, names_);
      refuse("unknown flag " + name + (meant.empty() ? "" : "; did you mean " + meant + "?"));
    }
  }
  [[noreturn]] void refuse(const std::string& why) const {
    std::fprintf(stderr, "%s: %s\n%s: --help lists the flags\n", program_.c_str(), why.c_str(), program_.c_str());
    std::exit(kUsage);
  }

 private:
  static const FlagText& find(std::string_view name) {
    for (const FlagText& f : kVocabulary) {
      if (name == f.name) return f;
    }
    fail<InternalError>("flags: ", name, " is not in the vocabulary");
  }
  CLI::App app_;
  std::string program_;
  std::vector<std::string> names_;
};

// "100" is a count of batches, "0.5" a fraction.
inline Portion portion(const std::string& flag, const std::string& text) {
  std::int64_t count = 0;
  if (const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
      error == std::errc() && end == text.data() + text.size())
    return Portion(count);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || text.find_first_of(".eE") == std::string::npos)
    fail<ConfigError>(flag, ": \"", text, "\" is not a number; give a count such as 100 or a fraction such as 0.5");
  return Portion(value);
}

// auto is the first CUDA device that can be used, else the cpu.
inline Device device(const std::string& name) {
  const int gpus = device_count(DeviceType::cuda);
  if (name == "auto") return gpus > 0 ? Device::cuda() : Device::cpu();
  if (name == "cpu") return Device::cpu();
  if (name == "simt" && device_count(DeviceType::simt) > 0) return Device::simt();
  int index = name == "cuda" ? 0 : -1;
  if (name.starts_with("cuda:")) {
    const char* const end = name.data() + name.size();
    if (const auto [at, error] = std::from_chars(name.data() + 5, end, index); error != std::errc() || at != end)
      index = -1;
  }
  if (index >= 0 && index < gpus) return Device::cuda(index);
  std::string usable = "cpu";
  for (int i = 0; i < gpus; ++i) usable += ", cuda:" + std::to_string(i);
  if (device_count(DeviceType::simt) > 0) usable += ", simt";
  fail<ConfigError>("--device: \"", name, "\" can not be used here; expected auto or one of ", usable);
}

// A file name may have any bytes, and JSON is UTF-8: other bytes become U+FFFD.
inline std::string json_text(const nlohmann::ordered_json& j) {
  return j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// The JSON result of every program. NaN becomes null.
struct Result {
  std::string program, status = "done", data;
  std::uint64_t seed = 0;
  Device device = Device::cpu();
  std::string precision = "32-true", strategy = "single_device";
  int world_size = 1;
  std::int64_t epochs = 0, optimizer_steps = 0, parameters = 0;
  double train_seconds = 0, samples_per_second = 0;
  nlohmann::ordered_json more = nlohmann::ordered_json::object();  // the program's own fields

  void write(const std::string& path) const {
    nlohmann::ordered_json j = {{"program", program},
                                {"status", status},
                                {"data", data},
                                {"seed", seed},
                                {"device", text(device)},
                                {"precision", precision},
                                {"strategy", strategy},
                                {"world_size", world_size},
                                {"epochs", epochs},
                                {"optimizer_steps", optimizer_steps},
                                {"train_seconds", train_seconds},
                                {"samples_per_second", samples_per_second},
                                {"peak_bytes", memory_stats(device).peak},
                                {"parameters", parameters}};
    j.update(more);
    write_file_atomically(path, json_text(j));
  }
};

// find(), whose files are data: one that cannot be read is a DataError.
template <class Find>
auto read_data(Find&& find) {
  try {
    return find();
  } catch (const FileError& e) { fail<DataError>("--data: ", e.what()); }
}

// Runs a program's body and turns its exceptions into a message and an exit code.
template <class Body>
int run_program(const char* program, Body&& body) {
  const auto say = [&](const std::exception& e, int code) {
    std::fprintf(stderr, "%s: %s\n", program, e.what());
    return code;
  };
  try {
    return body();
  } catch (const ConfigError& e) { return say(e, kUsage); } catch (const FormatError& e) {
    return say(e, kBadData);
  } catch (const DataError& e) { return say(e, kBadData); } catch (const FileError& e) {
    return say(e, kCannotWrite);
  } catch (const CommError& e) {
    return say(e, kTryAgain);  // another rank failed
  } catch (const std::exception& e) { return say(e, kInternal); }
}

}  // namespace levin::examples
