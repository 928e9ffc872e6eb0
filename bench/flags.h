// The command line of the programs in bench/: a table of flags. An unknown flag is refused by name.
#pragma once

#include <charconv>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "levin/error.h"

namespace levin::bench {

struct Flag {
  std::string name, value, help;  // value: its name in the help; empty: a switch
  std::function<void(const std::string&)> take;
};

// A number of at least `least`, for a flag that sets it.
template <class T>
Flag number_flag(const std::string& name, const std::string& value, const std::string& help, T least,
                 std::function<void(T)> take) {
  return {name, value, help, [=](const std::string& text_of) {
            T x{};
            const char* const end = text_of.data() + text_of.size();
            const auto [at, error] = std::from_chars(text_of.data(), end, x);
            if (text_of.empty() || at != end || error != std::errc() || !(x >= least))
              fail<ConfigError>(name, ": \"", text_of, "\" is not a ",
                                std::is_integral_v<T> ? "whole number" : "number", " of at least ", least);
            take(x);
          }};
}

// Passes its value to each flag. Words that begin with `passed` (if not empty) are returned. The exit status is set
// where the program should end: 0 after --help, 2 with a message on stderr for a bad argument.
struct Parsed {
  std::optional<int> ended{};
  std::vector<std::string> passed{};
};
inline Parsed parse(int argc, char** argv, const char* about, const std::vector<Flag>& flags,
                    const std::string& passed = {}) {
  Parsed out;
  const auto refuse = [&](const std::string& why) {
    std::string known;
    for (const Flag& f : flags) known += (known.empty() ? "" : ", ") + f.name;
    std::fprintf(stderr, "bench: %s\nbench: it has %s; --help says what they do\n", why.c_str(), known.c_str());
    out.ended = 2;
  };
  for (int i = 1; i < argc && !out.ended; ++i) {
    const std::string word = argv[i];
    if (word == "--help" || word == "-h") {
      std::printf("%s\n\n", about);
      for (const Flag& f : flags)
        std::printf("  %-28s %s\n", (f.name + (f.value.empty() ? "" : " ") + f.value).c_str(), f.help.c_str());
      out.ended = 0;
      continue;
    }
    if (!passed.empty() && word.starts_with(passed)) {
      out.passed.push_back(word);
      continue;
    }
    const Flag* flag = nullptr;
    for (const Flag& f : flags) flag = f.name == word ? &f : flag;
    if (!flag) {
      refuse("unknown flag " + word);
    } else if (!flag->value.empty() && i + 1 == argc) {
      refuse(word + " lacks its " + flag->value);
    } else {
      try {
        flag->take(flag->value.empty() ? std::string() : argv[++i]);
      } catch (const ConfigError& e) { refuse(e.what()); }
    }
  }
  return out;
}

}  // namespace levin::bench
