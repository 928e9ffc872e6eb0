// Data that is kept close: one copy in memory for all processes of a machine (SharedStore), whole datasets in memory
// (in_memory), results of expensive preprocessing in a file (cached).
//
// Views of stores are read-only. A write through mutable_data or by copy_, fill_, add_ and mul_ throws StateError, and
// any other write to them ends the process by SIGSEGV: the memory itself is protected. A file that another program cuts
// short while it is mapped ends the process by SIGBUS at the next read behind its new end: replace files by renaming.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "levin/data.h"
#include "levin/function.h"
#include "levin/serialize.h"
#include "levin/tensor.h"

namespace levin::data {

// How a named store is shared.
struct SharedStoreOptions {
  double timeout = 60;  // seconds to wait for the process that makes the store
  // How many processes open the store. The last of so many openings removes the name, so that nothing stays after the
  // processes. Openings count: a process that opens the store twice, or again after a crash, counts twice. A process
  // that opens the name after its removal makes a store of its own. 0: the name stays until SharedStore::remove.
  int processes = 0;
};

// Tensors in one mapping with one descriptor, which all processes of a machine share: their memory counts once. Copies
// of the handle and views keep the mapping.
//
//   auto store = data::SharedStore::create({images, labels});   // before fork, or in the parent of spawned children
//   auto train = data::tensor_dataset({store.view(0), store.view(1)});
//
// Unrelated processes use a name: SharedStore::open_or_create("mnist", [] { return load_tensors(); }).
class LEVIN_API SharedStore {
 public:
  // A copy of `tensors` (dense, on cpu afterwards) in memory without a name. Throws UnsupportedError for meta tensors,
  // OutOfMemoryError where the system has not enough.
  [[nodiscard]] static SharedStore create(const Tensors& tensors);
  // The store of this name. The first process makes it from make()'s tensors, the others wait for that one; a store
  // whose maker died is made anew. Throws ConfigError for a name that is empty, longer than 200 bytes or has a '/',
  // DataError when the timeout passes, FormatError for a store of another version or content, FileError where the
  // system refuses; errors of make() as they are, and the next process makes the store.
  [[nodiscard]] static SharedStore open_or_create(const std::string& name, const Function<Tensors()>& make,
                                                  SharedStoreOptions options = {});
  // The store behind the handle of a parent. Takes the descriptor. Throws FormatError for a descriptor of
  // anything but a store, FileError for a descriptor that is not open.
  [[nodiscard]] static SharedStore attach(int handle);
  // Removes a name; processes that opened the store keep it. False where there is none.
  static bool remove(const std::string& name);

  [[nodiscard]] std::int64_t size() const;  // tensors
  // Tensor i without a copy, read-only. Throws IndexError.
  [[nodiscard]] Tensor view(std::int64_t i) const;
  [[nodiscard]] Tensors views() const;
  // The store's descriptor, for attach() in a child that is started by fork and exec or posix_spawn: this call lets
  // children inherit it. A forked child needs no handle: it has the store.
  [[nodiscard]] int handle() const;
  [[nodiscard]] std::int64_t bytes() const;  // of the mapping
  // Compares every tensor with its hash, and bool with 0 and 1. Throws FormatError with the tensor that differs.
  void verify() const;

 private:
  struct Impl;
  explicit SharedStore(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

// ---- Whole datasets

// The samples of `base` as they are in epoch 0 of `generator`, loaded once by this call and kept in memory: random
// transforms of `base` do not change from epoch to epoch, so put those behind it. Samples of one shape lie in one
// tensor a field.
[[nodiscard]] LEVIN_API DatasetRef in_memory(const DatasetRef& base, const Generator& generator = Generator(0));

// ---- Files in memory

// "/dev/shm/levin-" and the number of the process's user: users of a machine do not share files.
[[nodiscard]] LEVIN_API std::string preload_target();

struct PreloadOptions {
  std::string target = preload_target();  // a folder of a file system in memory
  enum class Verify : std::uint8_t { size, hash };
  Verify verify = Verify::size;  // by what a file that is there already counts as equal
  // false: removed when the last process that preloaded them exits, unless any process asked to keep them.
  bool keep = true;
};
// Copies files and folders into memory and returns their new paths, in the order of `paths`. The first process of a
// machine copies, the others wait for it; what is there already and equal is not copied, and what the source does not
// have is removed from the copy. A link to a file becomes the file; a folder that links lead to again becomes a link to
// its first copy. Without room for what is missing and a tenth more, and where the target can not be made or locked
// (another user's), a warning (W-DATA-PRELOAD) has the numbers or the reason, and `paths` are returned. Each file
// appears whole or not at all. Throws FileError for a path that is absent and where the system refuses, ConfigError for
// an empty target.
[[nodiscard]] LEVIN_API std::vector<std::string> preload_to_ram(const std::vector<std::string>& paths,
                                                                const PreloadOptions& options = {});

// ---- Record files: samples in chunks, with the hash of each, read where they lie. Bytes: data/store/layout.h

// The samples of a file that write_records made, mapped read-only. Several threads may read. A chunk is compared with
// its hash at its first use.
class LEVIN_API RecordFile {
 public:
  // Throws FileError for a file that cannot be read, FormatError for other content than write_records makes.
  explicit RecordFile(const std::string& path);
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] const std::string& key() const;
  // Sample i as read-only views. Throws IndexError, FormatError for a damaged chunk.
  [[nodiscard]] Sample sample(std::int64_t i) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// Writes the samples of `dataset` as they are in epoch 0 of `generator`. `path` then holds all or what it held before:
// bytes go to a temporary file, which is renamed. Throws FileError where the system refuses, DataError for samples
// without fields, and errors of the dataset.
LEVIN_API void write_records(const std::string& path, const Dataset& dataset, const std::string& key,
                             const Generator& generator = Generator(0));

// What a cache depends on.
struct CacheKey {
  std::string transform;               // name and version of the preprocessing: change it with the code
  std::vector<std::string> sources{};  // files, known by size and time of their last change
};
// The samples of `dataset` from the record file `path`, which is written at first and where its key or number of
// samples differs from what is asked for. Samples are copies. Several processes may begin at once: each writes, and one
// file remains. Throws as RecordFile and write_records, FileError for a source that is absent, ConfigError for a null
// dataset and an empty transform.
[[nodiscard]] LEVIN_API DatasetRef cached(const DatasetRef& dataset, const std::string& path, const CacheKey& key,
                                          const Generator& generator = Generator(0));

}  // namespace levin::data
