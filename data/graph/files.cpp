#include "data/graph/files.h"

#include <filesystem>

#include "levin/error.h"

namespace levin::gnn {

std::unique_ptr<levin::detail::Source> Files::need(const std::string& name, const std::string& why) const {
  auto source = open(name);
  if (!source) fail<FileError>(place, ": has no ", name, "; ", why);
  return source;
}

Files files_of(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) fail<FileError>(folder, ": is no folder that can be read");
  return {.open = [folder](const std::string& name) -> std::unique_ptr<levin::detail::Source> {
            const fs::path path = fs::path(folder) / name;
            std::error_code error;
            if (!fs::exists(path, error)) return nullptr;
            return std::make_unique<levin::detail::FileSource>(path.string());
          },
          .place = folder};
}

}  // namespace levin::gnn
