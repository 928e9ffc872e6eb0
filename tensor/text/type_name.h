// A type's name for people.
#pragma once

#include <string>
#include <typeinfo>

namespace levin::detail {

// Without namespaces: "Linear", "Repeat<int>", "ModuleList<TransformerEncoderLayer>".
[[nodiscard]] std::string type_name(const std::type_info& type);

}  // namespace levin::detail
