// Keeps what is warned of while it lives, instead of printing it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "levin/warning.h"

namespace levin::test {

class Warnings {
 public:
  Warnings() : before_(set_warning_handler([this](const Warning& w) { all_.push_back(w); })) {}
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  ~Warnings() { set_warning_handler(std::move(before_)); }
  [[nodiscard]] const std::vector<Warning>& all() const { return all_; }
  [[nodiscard]] std::vector<std::string> ids() const {
    std::vector<std::string> out;
    for (const Warning& w : all_) out.push_back(w.id);
    return out;
  }
  [[nodiscard]] std::int64_t count(std::string_view id) const {
    std::int64_t n = 0;
    for (const Warning& w : all_) n += w.id == id ? 1 : 0;
    return n;
  }

 private:
  std::vector<Warning> all_;
  Function<void(const Warning&)> before_;
};

}  // namespace levin::test
