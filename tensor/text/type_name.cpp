#include "tensor/text/type_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace levin::detail {
namespace {

// Drops what precedes a "::" outside of brackets, in the name and in each argument, also "(anonymous namespace)" and
// the function of a local class.
std::string without_namespaces(const std::string& name) {
  std::string out;
  std::vector<std::size_t> begins{0};  // in `out`, of the names that are open
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == ':' && name.compare(i, 2, "::") == 0) {
      out.resize(begins.back());
      ++i;
      continue;
    }
    out += c;
    if (c == '<' || c == '(') begins.push_back(out.size());
    if ((c == '>' || c == ')') && begins.size() > 1) begins.pop_back();
    if ((c == ',' || c == ' ') && begins.size() > 1) begins.back() = out.size();
  }
  return out;
}

}  // namespace

std::string type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> full(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                         &std::free);
  return without_namespaces(status == 0 ? full.get() : type.name());
}

}  // namespace levin::detail
