#include <csetjmp>
#include <cstddef>
#include <cstdio>  // before jpeglib.h, which needs FILE

#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "data/image.h"
#include "levin/error.h"

// Note [libjpeg and its errors]
//
// libjpeg reports an error by a function that must not return. Ours jumps to the setjmp of the function that called
// libjpeg. A jump runs no destructors, so functions with a setjmp hold no C++ objects and call libjpeg alone; errors
// are thrown by their callers. `Decoder` owns the library's state.
namespace levin::data {
namespace {

// A bit may stand for a block of 8 x 8 samples, for the largest sampling factors three times as many bytes.
constexpr std::uint64_t kMostRatio = 3072;
// As many scans as libjpeg-turbo's own programs take: each costs a pass over the picture.
constexpr int kMostScans = 500;

struct ErrorManager : jpeg_error_mgr {
  std::jmp_buf where;
  std::array<char, JMSG_LENGTH_MAX> message;
};

[[noreturn]] void jump(j_common_ptr library) {
  auto* errors = static_cast<ErrorManager*>(library->err);
  errors->format_message(library, errors->message.data());
  std::longjmp(errors->where, 1);
}

// A warning says that pixels are lost, unless it is one of these.
void warned(j_common_ptr library, int level) {
  if (level >= 0) return;  // a trace
  switch (library->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
    case JWRN_BOGUS_PROGRESSION: return;
    default: jump(library);
  }
}

void passed(j_common_ptr library) {
  auto* decoder = reinterpret_cast<j_decompress_ptr>(library);
  if (decoder->input_scan_number <= kMostScans) return;
  auto* errors = static_cast<ErrorManager*>(library->err);
  std::snprintf(errors->message.data(), errors->message.size(), "it has more than %d scans", kMostScans);
  std::longjmp(errors->where, 1);
}

class Decoder {
 public:
  Decoder() {
    library_.err = jpeg_std_error(&errors_);
    errors_.error_exit = jump;
    errors_.emit_message = warned;
    errors_.message[0] = '\0';
    progress_.progress_monitor = passed;
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { jpeg_destroy_decompress(&library_); }

  [[nodiscard]] const jpeg_decompress_struct& state() const { return library_; }
  [[nodiscard]] const char* message() const { return errors_.message.data(); }

  // Each returns false after an error: Note [libjpeg and its errors].
  [[nodiscard]] bool read_header(const unsigned char* bytes, unsigned long size) noexcept {
    if (setjmp(errors_.where) != 0) return false;
    jpeg_create_decompress(&library_);
    library_.progress = &progress_;
    jpeg_mem_src(&library_, bytes, size);
    jpeg_read_header(&library_, TRUE);
    return true;
  }
  [[nodiscard]] bool start(J_COLOR_SPACE colors) noexcept {
    if (setjmp(errors_.where) != 0) return false;
    library_.out_color_space = colors;
    jpeg_start_decompress(&library_);
    return true;
  }
  [[nodiscard]] bool read_row(unsigned char* to) noexcept {
    if (setjmp(errors_.where) != 0) return false;
    jpeg_read_scanlines(&library_, &to, 1);
    return true;
  }
  [[nodiscard]] bool finish() noexcept {
    if (setjmp(errors_.where) != 0) return false;
    jpeg_finish_decompress(&library_);
    return true;
  }

 private:
  jpeg_decompress_struct library_{};
  ErrorManager errors_{};
  jpeg_progress_mgr progress_{};
};

unsigned product_of_parts(unsigned a, unsigned b) {  // of 255, rounded
  const unsigned product = a * b + 128;
  return (product + (product >> 8)) >> 8;
}

// Four inks to RGB; files of Adobe's programs have them inverted.
void to_rgb(const unsigned char* inks, std::size_t pixels, bool inverted, std::uint8_t* rgb) {
  for (std::size_t i = 0; i < pixels; ++i, inks += 4, rgb += 3) {
    const unsigned white = inverted ? inks[3] : 255u - inks[3];
    for (std::size_t c = 0; c < 3; ++c) {
      const unsigned ink = inverted ? 255u - inks[c] : inks[c];
      rgb[c] = static_cast<std::uint8_t>(white - product_of_parts(ink, white));
    }
  }
}

}  // namespace

bool has_jpeg() { return true; }

Tensor read_jpeg(const std::string& path, std::string_view content, std::uint64_t most_pixels) {
  if (!content.starts_with("\xff\xd8")) fail<FormatError>(path, ": is no JPEG file: it does not begin with FF D8");
  Decoder decoder;
  const auto check = [&](bool done, const char* where) {
    if (!done) fail<FormatError>(path, ": is damaged ", where, ": ", decoder.message());
  };
  check(decoder.read_header(reinterpret_cast<const unsigned char*>(content.data()), content.size()), "in its header");
  const jpeg_decompress_struct& state = decoder.state();
  const std::uint64_t height = state.image_height, width = state.image_width;
  const J_COLOR_SPACE stored = state.jpeg_color_space;
  const bool grey = stored == JCS_GRAYSCALE, inks = stored == JCS_CMYK || stored == JCS_YCCK;
  if (!grey && !inks && stored != JCS_YCbCr && stored != JCS_RGB) {
    fail<FormatError>(path, ": has ", state.num_components, " components of unknown color, expected grey, RGB or CMYK");
  }
  const std::uint64_t bytes = height * width * (grey ? 1u : 3u);
  if (height * width > most_pixels || bytes > content.size() * kMostRatio) {
    fail<FormatError>(path, ": the header implies ", bytes, " bytes for ", width, " x ", height,
                      " pixels, expected at most ", most_pixels, " pixels and ", content.size() * kMostRatio,
                      " bytes in a file of ", content.size());
  }
  const auto h = static_cast<std::int64_t>(height), w = static_cast<std::int64_t>(width);
  Tensor image = empty(grey ? Shape{h, w} : Shape{h, w, 3}, Device::cpu(), DType::u8);
  auto* row = reinterpret_cast<std::uint8_t*>(image.get().storage->data);
  std::vector<unsigned char> ink_row(inks ? width * 4 : 0);
  check(decoder.start(grey ? JCS_GRAYSCALE : inks ? JCS_CMYK : JCS_RGB), "before its first row");
  for (std::uint64_t y = 0; y < height; ++y, row += bytes / height) {
    if (!decoder.read_row(inks ? ink_row.data() : row)) {
      fail<FormatError>(path, ": is damaged in row ", y, " of ", height, ": ", decoder.message());
    }
    if (inks) to_rgb(ink_row.data(), static_cast<std::size_t>(width), state.saw_Adobe_marker != 0, row);
  }
  check(decoder.finish(), "after its last row");
  return image;
}

}  // namespace levin::data
