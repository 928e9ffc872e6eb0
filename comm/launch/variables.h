// Variables of the environment, read with errors that name the variable, its value and the launcher that should have
// set it.
#pragma once

#include <string>
#include <string_view>

namespace levin::dist {

// Whether the variable is set to a text that is not empty.
[[nodiscard]] bool has_variable(const char* name);
// Its text; empty without it.
[[nodiscard]] std::string variable(const char* name);

// The variables of one launcher.
class Variables {
 public:
  explicit Variables(std::string_view launcher) : launcher_(launcher) {}
  // Throws ConfigError where the variable is missing.
  [[nodiscard]] std::string text(const char* name) const;
  // A whole number in [least, most]. Throws ConfigError for another text, and where it is missing.
  [[nodiscard]] int number(const char* name, int least, int most = 0x7fffffff) const;
  // The same; `otherwise` where it is missing.
  [[nodiscard]] int number_or(const char* name, int otherwise, int least, int most = 0x7fffffff) const;

 private:
  std::string launcher_;
};

// Names of variables that Levin's own launchers set.
inline constexpr const char* kLauncher = "LEVIN_LAUNCHER";  // "script", "spawn", "levin-run"
inline constexpr const char* kRunId = "LEVIN_RUN_ID";
inline constexpr const char* kRestartCount = "LEVIN_RESTART_COUNT";
inline constexpr const char* kSecret = "LEVIN_JOB_SECRET";
inline constexpr int kMostRanks = 1 << 20, kMostPort = 65535;

}  // namespace levin::dist
