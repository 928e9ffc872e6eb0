// Folders that appear whole or not at all: a checkpoint of several files.
#pragma once

#include <string>
#include <string_view>

namespace levin::detail {

// Note [Folders that appear whole]
//
// Files are written into `NAME.tmp-<pid>-<n>` beside the folder. The file kIndex is written last, then the folder takes
// its name, in one step with what had the name before (RENAME_EXCHANGE). So a folder without kIndex is one whose writer
// was killed, under a name that no reader opens. The writer keeps a lock on the folder, by which a later save knows the
// folders of the dead and removes them (Note [Temporary files of the dead]).
inline constexpr const char* kIndex = "index.json";

class NewFolder {
 public:
  // Makes the temporary folder. Throws FileError: also where `path` is neither a link nor a folder of this kind, whose
  // content commit() would remove.
  explicit NewFolder(std::string path);
  ~NewFolder();  // removes it, unless commit() gave it its name
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  [[nodiscard]] const std::string& temporary() const { return temporary_; }
  // Gives the folder its name, in place of a link or an older folder. Throws FileError, which leaves what was there.
  void commit();

 private:
  std::string path_, temporary_;
  int lock_ = -1;
};

// Whether a file may lie in such a folder: kIndex, or rank-*.safetensors, or the temporary file of one.
[[nodiscard]] bool is_of_folder(std::string_view name);
// Removes kIndex, then the other files of the kind, then the folder. Other files stay, and the folder with them.
void remove_folder(const std::string& path) noexcept;

}  // namespace levin::detail
