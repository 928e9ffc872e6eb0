#include <zlib.h>

#include <algorithm>
#include <array>

#include "data/readers/unpack.h"

namespace levin::data {
namespace {

class Gunzip final : public Unpacked {
 public:
  explicit Gunzip(detail::Source& source) : blocks_(source) {
    // 16: gzip framing, with its check sum.
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) fail<OutOfMemoryError>(source.name(), ": no memory to unpack it");
  }
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;
  ~Gunzip() override { inflateEnd(&stream_); }

  std::size_t read(void* out, std::size_t n) override {
    const std::string& file = blocks_.source().name();
    auto* to = static_cast<Bytef*>(out);
    std::size_t got = 0;
    while (got < n && !ended_) {
      if (stream_.avail_in == 0) {
        const auto block = blocks_.next();
        if (block.empty()) fail<FormatError>(file, ": the gzip stream is cut off after ", blocks_.at(), " bytes");
        stream_.next_in = block.data();
        stream_.avail_in = static_cast<uInt>(block.size());
      }
      stream_.next_out = to + got;
      const auto room = static_cast<uInt>(std::min<std::size_t>(n - got, std::size_t{1} << 30));
      stream_.avail_out = room;
      const int rc = inflate(&stream_, Z_NO_FLUSH);
      got += room - stream_.avail_out;
      if (rc == Z_STREAM_END) {
        ended_ = true;
      } else if (rc == Z_MEM_ERROR) {
        fail<OutOfMemoryError>(file, ": no memory to unpack it");
      } else if (rc != Z_OK) {
        fail<FormatError>(file, ": the gzip stream is damaged near byte ", blocks_.at() - stream_.avail_in, ": ",
                          stream_.msg ? stream_.msg : "it ends too early");
      }
    }
    return got;
  }
  void finish() override {
    const std::uint64_t after = blocks_.left() + stream_.avail_in;
    if (after != 0) {
      fail<FormatError>(blocks_.source().name(), ": ", after, " bytes follow the gzip stream, expected none");
    }
  }

 private:
  Blocks blocks_;
  z_stream stream_{};
  bool ended_ = false;
};

}  // namespace

Blocks::Blocks(detail::Source& source)
    : source_(source), buffer_(static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), 1 << 16))) {}

std::span<std::uint8_t> Blocks::next() {
  const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left(), buffer_.size()));
  source_.read(at_, buffer_.data(), n);
  at_ += n;
  return std::span(buffer_).first(n);
}

bool is_gzip(detail::Source& source) {
  std::array<unsigned char, 2> first{};
  if (source.size() >= first.size()) source.read(0, first.data(), first.size());
  return first[0] == 0x1f && first[1] == 0x8b;
}

std::unique_ptr<Unpacked> gunzip(detail::Source& source) { return std::make_unique<Gunzip>(source); }

}  // namespace levin::data
