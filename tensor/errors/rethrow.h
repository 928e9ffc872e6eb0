// An error in flight, rethrown with a longer message.
#pragma once

#include <string>
#include <type_traits>

#include "levin/error.h"
#include "tensor/device/launching.h"

namespace levin::detail {

// Rethrows the error in flight with `prefix` before its message. The error keeps its type, place and module path; an
// error without a path takes the thread's path. An error of an unlisted type is rethrown unchanged.
template <class... E>
[[noreturn]] void rethrow_named(const std::string& prefix) {
  const auto renamed = [&]<class T>(std::type_identity<T>) {
    try {
      throw;
    } catch (const T& e) {
      const std::uint32_t path = path_id(std::string(e.module_path()));
      const InModule in(path ? path : module_path_id());
      throw T(prefix + std::string(e.message()), e.where());
    } catch (const Error&) {}
  };
  (renamed(std::type_identity<E>{}), ...);
  throw;
}

}  // namespace levin::detail
