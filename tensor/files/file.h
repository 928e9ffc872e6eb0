// Sources of the readers: a file, or bytes in memory (tests, fuzzing). The size is known before the first read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "levin/function.h"
#include "levin/tensor.h"

namespace levin::detail {

// PATH.tmp-<pid>-<n>, which no other writer uses and no reader opens.
[[nodiscard]] std::string temporary_name(const std::string& path);
// Removes from `folder` the temporary files of killed writers whose final names end in `ending`: Note [Temporary files
// of the dead]. Never removes a file whose writer may live.
enum class Stale : bool { files, folders };  // folders: Note [Folders that appear whole]
void remove_stale_temporaries(const std::string& folder, std::string_view ending, Stale of = Stale::files) noexcept;

// Appends `content` to the file, and makes the file if there is none. On an error throws FileError and restores the old
// length. Not synced: a crash of the machine may lose the content, a kill of the process cannot.
void append_to_file(const std::string& path, std::string_view content);

// The bytes of a file in parts, each of which is made when it is needed: part(i) is valid until the next call, and
// gives the same bytes each time. `bytes` is the sum of all.
struct Parts {
  std::size_t bytes = 0, count = 0;
  Function<std::span<const std::byte>(std::size_t)> part;
};
// levin::write_file_atomically, without all parts in memory at once.
void write_parts_atomically(const std::string& path, const Parts& parts);

class Source {
 public:
  virtual ~Source() = default;
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  // Bytes [offset, offset + n), which must lie inside. Throws FileError where the read fails.
  virtual void read(std::uint64_t offset, void* out, std::size_t n) = 0;

 protected:
  explicit Source(std::string name) : name_(std::move(name)) {}
  std::string name_;
  std::uint64_t size_ = 0;
};

class FileSource final : public Source {
 public:
  explicit FileSource(const std::string& path);  // throws FileError unless the path is a regular, readable file
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  void read(std::uint64_t offset, void* out, std::size_t n) override;

 private:
  int fd_ = -1;
};

class MemorySource final : public Source {
 public:
  MemorySource(std::string name, std::span<const std::byte> bytes);
  void read(std::uint64_t offset, void* out, std::size_t n) override;

 private:
  std::span<const std::byte> bytes_;
};

// content_hash of all bytes of the source, read in small parts.
[[nodiscard]] std::string content_hash_of(Source& source);

// An element type of a file; 16- and 32-bit unsigned integers, which Levin lacks, are read into wider ones.
struct FileType {
  DType dtype = DType::f32;  // of the tensor
  std::uint8_t width = 4;    // bytes in the file
  [[nodiscard]] bool widened() const { return width != itemsize(dtype); }
};

enum class ByteOrder : std::uint8_t { little, big };

// `shape` as a Shape. Throws FormatError `where ...` when it breaks a limit of Shape.
[[nodiscard]] Shape checked_shape(const std::string& where, std::span<const std::int64_t> dims);

// A dense tensor on cpu from the bytes at `offset`. The caller has compared the size with the source's.
// Throws FormatError `where ...` for a bool that is neither 0 nor 1.
[[nodiscard]] Tensor read_tensor(Source& source, const std::string& where, std::uint64_t offset, const Shape& shape,
                                 FileType type, ByteOrder order = ByteOrder::little);

// x on cpu and dense: x itself where it already is, else a copy. Throws UnsupportedError for meta, with `what` in the
// message.
[[nodiscard]] Tensor dense_on_host(const std::string& what, const Tensor& x);
[[nodiscard]] std::span<const std::byte> bytes_of(const Tensor& dense);

}  // namespace levin::detail
