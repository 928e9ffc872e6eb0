// Keeps what is warned of while it lives, instead of printing it.
#pragma once

#include <string>
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

 private:
  std::vector<Warning> all_;
  Function<void(const Warning&)> before_;
};

}  // namespace levin::test
