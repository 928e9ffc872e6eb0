// Checkpoints that are folders, to which each rank writes its part.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/serialize.h"
#include "levin/train/strategy.h"

namespace levin::train {

// Note [Checkpoint folders]
// A checkpoint whose name ends in ".levin" is a folder:
//   rank-00002-of-00004.safetensors   what rank 2 of 4 wrote: NAME@BEGIN:END, elements of a tensor as one dimension,
//                                     and NAME, a whole tensor
//   index.json                        written last: version, the bytes and the hash of each rank's file, dtype, shape
//                                     and place of each tensor, and the text levin.state of Note [Checkpoint files],
//                                     whose names the tensors have; its last member is the hash of all before it
// Each rank writes its pieces of parameters, of the optimizer's state and of the gradients of an open window, and what
// its strategy has of its own. Rank 0 writes what is whole on every rank. So no rank ever has the whole model. Where
// several ranks have the same piece, the first one writes it.
//
// The folder appears whole: Note [Folders that appear whole]. All ranks need a file system that all of them see; rank 0
// checks that it finds all files before it writes the index.
//
// A resume may have any number of ranks and any strategy. Weights are read whole, because each rank has the whole
// module until it is sharded; of the rest a rank reads the bytes of its pieces, when they are needed. The hash of a
// rank's file is that of the whole file, so the ranks of a resume share the comparison: each compares every R-th file.
inline constexpr std::string_view kFolderEnding = ".levin", kFileEnding = ".safetensors";
[[nodiscard]] inline bool names_folder(std::string_view path) { return path.ends_with(kFolderEnding); }
[[nodiscard]] inline bool is_checkpoint_name(std::string_view path) {
  return path.ends_with(kFileEnding) || names_folder(path);
}

struct FolderIndex {
  struct Piece {
    std::int64_t rank = 0, begin = 0, end = 0;
  };
  struct Entry {
    std::string name;
    DType dtype = DType::f32;
    Shape shape;
    std::int64_t rank = 0;        // whose file has all of it
    bool in_pieces = false;       // instead: pieces, in ascending order without gap or overlap
    std::vector<Piece> pieces{};  // none of them is empty
  };
  struct File {
    std::int64_t bytes = 0;
    std::string hash;
  };
  std::vector<File> files;     // by rank
  std::vector<Entry> tensors;  // sorted by name
  std::string state;           // empty: weights alone
};

// A folder that is read. Errors are FileError, and FormatError for a damaged folder.
class CheckpointFolder {
 public:
  // Reads the index, and looks whether each rank's file is there with its size.
  explicit CheckpointFolder(std::string path);
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const FolderIndex& index() const { return index_; }
  [[nodiscard]] const FolderIndex::Entry& entry(std::string_view name) const;
  // Compares the hashes of the files of ranks first, first + step, ...
  void verify(std::int64_t first = 0, std::int64_t step = 1) const;
  // Files that differ from their hash, with what differs.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> damage() const;
  [[nodiscard]] Tensor read(const FolderIndex::Entry& entry) const;
  // Elements [begin, end), in one dimension.
  [[nodiscard]] Tensor read(const FolderIndex::Entry& entry, std::int64_t begin, std::int64_t end) const;

 private:
  struct Place {
    DType dtype = DType::f32;
    Shape shape;
    std::uint64_t at = 0;
  };
  using Places = std::map<std::string, Place, std::less<>>;
  [[nodiscard]] std::string file_of(std::int64_t rank) const;
  [[nodiscard]] std::string difference(std::int64_t rank) const;  // from the hash; empty: none
  [[nodiscard]] const Place& place(std::int64_t rank, const std::string& name, DType dtype, const Shape& shape) const;
  std::string path_;
  FolderIndex index_;
  mutable std::map<std::int64_t, Places> places_;  // of files that were opened
};
[[nodiscard]] std::string index_text(const FolderIndex& index);
// Throws FormatError for a text that is not what it should be.
[[nodiscard]] FolderIndex read_index_text(const std::string& path, const std::string& text);

// A tensor of a checkpoint as this rank has it.
struct PartOfCheckpoint {
  std::string name;
  Tensor value;
  bool piece = false;      // elements from `begin` on of a tensor of `shape`; else all of it
  bool own = false;        // whole, and of this rank alone; other whole tensors are rank 0's
  Shape shape{};           // of a piece
  std::int64_t begin = 0;  // of a piece
};
// Writes the folder. Every rank calls it with its parts, and every error is one of all ranks: FileError, StateError for
// ranks whose parts do not fit each other. An error leaves what was at `path`.
void write_folder(Strategy& strategy, const std::string& path, const std::vector<PartOfCheckpoint>& parts,
                  const std::string& state);

}  // namespace levin::train
