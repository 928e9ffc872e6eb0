#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "levin/data.h"
#include "levin/serialize.h"
#include "tests/fuzz/target.h"

namespace levin::fuzz {
namespace {

// Reads every element for the sanitizers, and compares the memory with the header's promise.
void look_at(const Tensor& x, std::uint64_t most_bytes) {
  expect(x.device().is_cpu() && x.is_contiguous() && x.offset() == 0, "a reader's tensor is not dense on cpu");
  expect(static_cast<std::uint64_t>(x.numel()) * itemsize(x.dtype()) <= most_bytes, "a reader's tensor is too large");
  (void)content_hash("", x);
}

std::vector<std::uint8_t> gzipped(Bytes in) {
  z_stream stream{};
  expect(deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 1, Z_DEFAULT_STRATEGY) == Z_OK, "no deflate");
  std::vector<std::uint8_t> out(deflateBound(&stream, static_cast<uLong>(in.size())) + 64);
  stream.next_in = const_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int rc = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  expect(rc == Z_STREAM_END, "no room to deflate");
  return out;
}

constexpr std::size_t kPngMagic = 8, kPngFrame = 12;  // of a chunk: length, type, check sum

std::uint32_t big_endian(const std::uint8_t* at) {
  return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
}

// Without it most mutations would end at a chunk's check sum.
std::vector<std::uint8_t> with_right_sums(Bytes in) {
  std::vector<std::uint8_t> out(in.begin(), in.end());
  for (std::size_t at = kPngMagic; at + kPngFrame <= out.size();) {
    const std::size_t length = big_endian(&out[at]);
    if (length > out.size() - at - kPngFrame) break;
    const auto sum =
        static_cast<std::uint32_t>(crc32(crc32(0, nullptr, 0), &out[at + 4], static_cast<uInt>(length + 4)));
    for (std::size_t k = 0; k < 4; ++k) out[at + 8 + length + k] = static_cast<std::uint8_t>(sum >> (24 - 8 * k));
    at += kPngFrame + length;
  }
  return out;
}

}  // namespace

MemoryFile::MemoryFile(Bytes content) {
  static const int fd = memfd_create("fuzz", MFD_CLOEXEC);
  expect(fd >= 0 && ftruncate(fd, 0) == 0, "no file in memory");
  expect(pwrite(fd, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()), "no file in memory");
  path_ = "/proc/self/fd/" + std::to_string(fd);
}

bool safetensors(Bytes in) {
  const MemoryFile file(in);
  return !refused([&] {
    const TensorFile read = load_safetensors(file.path());
    std::set<std::string_view> names;
    for (const auto& [name, tensor] : read.tensors) {
      expect(names.insert(name).second, "load_safetensors gave a name twice");
      look_at(tensor, 4 * in.size());
    }
  });
}

bool npy(Bytes in) {
  const MemoryFile file(in);
  return !refused([&] { look_at(load_npy(file.path()), 4 * in.size()); });
}

bool idx(Bytes in) {
  const auto read = [](Bytes content) -> std::optional<Tensor> {
    const MemoryFile file(content);
    std::optional<Tensor> x;
    (void)refused([&] { x = data::load_idx(file.path()); });
    return x;
  };
  const std::optional<Tensor> plain = read(in);
  if (plain) look_at(*plain, 4 * 1032 * in.size());  // 1032: the largest ratio of deflate
  if (in.size() < 4 || in[0] != 0 || in[1] != 0) return plain.has_value();
  const std::optional<Tensor> packed = read(gzipped(in));
  expect(plain.has_value() == packed.has_value(),
         "load_idx refuses a file and takes it gzipped, or the other way round");
  if (plain) {
    expect(content_hash("", *plain) == content_hash("", *packed), "load_idx reads a file and its gzip differently");
  }
  return plain.has_value();
}

bool png(Bytes in) {
  const std::vector<std::uint8_t> content = with_right_sums(in);
  const MemoryFile file(content);
  return !refused([&] { look_at(data::load_png(file.path()), 3 * 8 * 1032 * in.size()); });
}

}  // namespace levin::fuzz
