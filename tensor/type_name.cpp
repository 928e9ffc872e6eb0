#include "tensor/type_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace levin::detail {

std::string type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> full(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                         &std::free);
  const std::string name = status == 0 ? full.get() : type.name();
  const std::size_t arguments = name.find('<');
  const std::size_t scope = name.rfind("::", arguments);
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

}  // namespace levin::detail
