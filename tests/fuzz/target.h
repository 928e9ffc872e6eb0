// The fuzz targets: functions of bytes that stand for a stranger's files, texts and calls. A target returns for any
// bytes. The functions that it calls may refuse the bytes by a levin::Error that is no InternalError. Any other
// exception, and every finding of a sanitizer, is a bug.
//
// ./run fuzz NAME searches for such bytes with libFuzzer; corpus_test.cpp passes the files under corpus/NAME to each
// target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "levin/error.h"

namespace levin::fuzz {

using Bytes = std::span<const std::uint8_t>;

struct Target {
  const char* name;    // also of its folder under corpus/
  bool (*run)(Bytes);  // whether the called function accepted these bytes
};
[[nodiscard]] std::span<const Target> targets();

bool ops(Bytes in);               // bytes as calls of ops, their arguments and gradients
bool safetensors(Bytes in);       // load_safetensors
bool npy(Bytes in);               // load_npy
bool csv(Bytes in);               // load_csv by several schemas
bool idx(Bytes in);               // load_idx, plain and gzipped: both must agree
bool jpeg(Bytes in);              // load_jpeg
bool npz(Bytes in);               // load_npz, and save_npz of what it gave
bool planetoid(Bytes in);         // planetoid, from arrays in memory
bool png(Bytes in);               // load_png, with corrected check sums of its chunks
bool cifar(Bytes in);             // load_cifar10_files with corrected check sums of xz, cifar10_classes
bool checkpoint_file(Bytes in);   // the readers of checkpoints
bool checkpoint_state(Bytes in);  // the same; the bytes are the text of a run's state, and all hashes are right
bool options(Bytes in);           // trainer's options from the environment and from older flags, one a line
bool store(Bytes in);             // SharedStore, RecordFile and graphs of one file, with corrected hashes
bool text(Bytes in);              // other texts: durations, equations of einsum, numbers of the programs' flags
bool tu(Bytes in);                // tu and tu_folds, from text in memory

// True when f threw an allowed error.
template <class F>
bool refused(F&& f) {
  try {
    f();
    return false;
  } catch (const InternalError&) { throw; } catch (const Error&) {
    return true;
  }
}

// A property that must hold for every input.
inline void expect(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

// A file with this content, in memory. Only one exists at a time.
class MemoryFile {
 public:
  explicit MemoryFile(Bytes content);
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace levin::fuzz
