#include <lzma.h>

#include "data/readers/unpack.h"

namespace levin::data {
namespace {

class Unxz final : public Unpacked {
 public:
  Unxz(detail::Source& source, std::uint64_t memory) : blocks_(source), memory_(memory) {
    if (lzma_stream_decoder(&stream_, memory, 0) != LZMA_OK)
      fail<OutOfMemoryError>(source.name(), ": no memory to unpack it");
  }
  Unxz(const Unxz&) = delete;
  Unxz& operator=(const Unxz&) = delete;
  ~Unxz() override { lzma_end(&stream_); }

  std::size_t read(void* out, std::size_t n) override {
    stream_.next_out = static_cast<std::uint8_t*>(out);
    stream_.avail_out = n;
    while (stream_.avail_out > 0 && !ended_) {
      if (stream_.avail_in == 0) {
        const auto block = blocks_.next();
        stream_.next_in = block.data();
        stream_.avail_in = block.size();
      }
      check(lzma_code(&stream_, blocks_.left() == 0 ? LZMA_FINISH : LZMA_RUN));
    }
    return n - stream_.avail_out;
  }
  void finish() override {
    const std::uint64_t after = blocks_.left() + stream_.avail_in;
    if (after != 0) {
      fail<FormatError>(blocks_.source().name(), ": ", after, " bytes follow the xz stream, expected none");
    }
  }

 private:
  void check(lzma_ret rc) {
    const std::string& file = blocks_.source().name();
    const char* what = "its bytes contradict each other";
    switch (rc) {
      case LZMA_OK: return;
      case LZMA_STREAM_END: ended_ = true; return;
      case LZMA_MEM_ERROR: fail<OutOfMemoryError>(file, ": no memory to unpack it");
      case LZMA_MEMLIMIT_ERROR:
        fail<FormatError>(file, ": takes ", std::uint64_t{lzma_memusage(&stream_)}, " bytes of memory to unpack, ",
                          memory_, " are allowed; pack it again with `xz -9` or less");
      case LZMA_BUF_ERROR: fail<FormatError>(file, ": the xz stream is cut off after ", blocks_.at(), " bytes");
      case LZMA_OPTIONS_ERROR: what = "it has a filter or option that liblzma lacks"; break;
      case LZMA_FORMAT_ERROR: what = "it does not begin as xz"; break;
      default: break;
    }
    fail<FormatError>(file, ": the xz stream is damaged near byte ", blocks_.at() - stream_.avail_in, ": ", what);
  }

  Blocks blocks_;
  std::uint64_t memory_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool ended_ = false;
};

}  // namespace

bool has_lzma() { return true; }
std::unique_ptr<Unpacked> unxz(detail::Source& source, std::uint64_t memory) {
  return std::make_unique<Unxz>(source, memory);
}

}  // namespace levin::data
