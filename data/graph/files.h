// The files of a graph data set, by name: a folder, or bytes in memory (tests, fuzzing).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tensor/files/file.h"

namespace levin::gnn {

struct Files {
  std::function<std::unique_ptr<levin::detail::Source>(const std::string& name)>
      open;           // null where there is no such file
  std::string place;  // for messages: the folder

  // Throws FileError where there is no such file; `why` ends the message.
  [[nodiscard]] std::unique_ptr<levin::detail::Source> need(const std::string& name, const std::string& why) const;
};
[[nodiscard]] Files files_of(const std::string& folder);

}  // namespace levin::gnn
