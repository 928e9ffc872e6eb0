// Data sets of graphs for tests: real ones, and files in memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/graph/files.h"
#include "levin/graph.h"

namespace levin::gnn::testing {

using Contents = std::map<std::string, std::string>;

// The map must outlive what is read.
inline Files in_memory(const Contents& contents) {
  return {.open = [&contents](const std::string& name) -> std::unique_ptr<levin::detail::Source> {
            const auto found = contents.find(name);
            if (found == contents.end()) return nullptr;
            return std::make_unique<levin::detail::MemorySource>(name,
                                                                 std::as_bytes(std::span<const char>(found->second)));
          },
          .place = "memory"};
}

inline std::vector<std::int64_t> numbers(const Tensor& x) { return x.to(DType::i64).to_vector<std::int64_t>(); }

template <class E, class F>
std::string message(const F& f) {
  try {
    f();
  } catch (const E& e) { return e.what(); }
  return "";
}
inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace levin::gnn::testing
