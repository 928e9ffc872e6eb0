// Tensors in files: NumPy's .npy and safetensors, readable by Python's packages; files written whole or not at all.
//
// Readers check everything against the file's size before they allocate: a file costs at most twenty times its own size
// (a safetensors header of names alone; with data twice, as uint16 becomes i32). A file with other content than
// expected throws FormatError with file, tensor, actual and expected value; one that cannot be opened, read or written
// throws FileError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/tensor.h"

namespace levin {

// ---- .npy: one array. Versions 1 to 3, both byte orders, C and Fortran order (result: dense, row-major, on cpu).
// uint16 is read as i32, uint32 as i64; uint64, complex, text, object and structured arrays throw.
[[nodiscard]] LEVIN_API Tensor load_npy(const std::string& path);
// Version 1.0, byte for byte what numpy.save writes. Throws DTypeError for bf16, which NumPy does not have.
LEVIN_API void save_npy(const std::string& path, const Tensor& x);

// ---- safetensors: named tensors and a map of strings. Names are PyTorch's: "fc1.weight".
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
using Metadata = std::vector<std::pair<std::string, std::string>>;
struct TensorFile {
  NamedTensors tensors;  // in the order of the file's header
  Metadata metadata;
};
struct SafetensorsLimits {
  std::size_t header_bytes = 100'000'000;  // the format's limit, which save_safetensors keeps; ConfigError beyond
};
// All tensors on cpu. uint16 and uint32 are widened as by load_npy. Throws FormatError unless names are unique, valid
// UTF-8 of at most 512 bytes, and the tensors' bytes lie end to end, without gap or overlap, up to the end of the file.
[[nodiscard]] LEVIN_API TensorFile load_safetensors(const std::string& path, SafetensorsLimits limits = {});
// Written by write_file_atomically; tensors ordered as the reference implementation does (dtype, then name).
// Throws ConfigError for a name or key that is given twice, too long or not UTF-8; UnsupportedError for meta tensors.
LEVIN_API void save_safetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata = {});

// XXH3 (128 bits, as 32 hex digits) of a text, or of a tensor's name, dtype, shape and values.
[[nodiscard]] LEVIN_API std::string content_hash(std::string_view content);
[[nodiscard]] LEVIN_API std::string content_hash(std::string_view name, const Tensor& x);

// ---- Files

// After a crash, a kill or a full disk `path` holds the old content or the new, never a part: the bytes go to
// `path`.tmp-<pid>-<n>, are synced, read back and compared, renamed, and the directory is synced. A symbolic link
// stays: its target is written, with the temporary file beside the target. A file that exists keeps its mode and, where
// the process may set it, its owner; hard links to it keep the old content. A file that is not regular (a pipe,
// /dev/stdout) is written directly. Throws FileError with the bytes needed and free, and leaves nothing then. A killed
// process leaves the temporary file, without its writer's lock (flock).
LEVIN_API void write_file_atomically(const std::string& path, std::string_view content);
LEVIN_API void write_file_atomically(const std::string& path, std::span<const std::span<const std::byte>> parts);
// The whole file. Throws FormatError when it is larger than max_bytes.
[[nodiscard]] LEVIN_API std::string read_file(const std::string& path, std::size_t max_bytes);

}  // namespace levin
