// Collects warnings while it lives, instead of printing them.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <map>
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

// Warnings with one of these ids are expected while it lives, each at least once; the others go to the previous sink.
class ExpectedWarnings {
 public:
  explicit ExpectedWarnings(std::initializer_list<const char*> ids) {
    for (const char* id : ids) seen_.emplace(id, 0);
    before_ = set_warning_handler([this](const Warning& w) {
      if (const auto it = seen_.find(w.id); it != seen_.end())
        ++it->second;
      else if (before_)
        before_(w);
    });
  }
  ExpectedWarnings(const ExpectedWarnings&) = delete;
  ExpectedWarnings& operator=(const ExpectedWarnings&) = delete;
  ~ExpectedWarnings() {
    set_warning_handler(std::move(before_));
    for (const auto& [id, count] : seen_) {
      INFO("expected warning ", id);
      CHECK(count > 0);
    }
  }

 private:
  std::map<std::string, std::int64_t, std::less<>> seen_;
  Function<void(const Warning&)> before_;
};

}  // namespace levin::test
