#include "data/image.h"

#include <png.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "levin/data.h"
#include "levin/serialize.h"

namespace levin::data {
namespace {

constexpr std::uint64_t kMaxRatio = 1032;  // what deflate can do, as for IDX files

// libpng's state, freed also by an exception.
struct Image {
  png_image png{};
  Image() { png.version = PNG_IMAGE_VERSION; }
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;
  ~Image() { png_image_free(&png); }
};

// Checks chunk sizes against the file: libpng allocates what some chunks claim before it reads them.
void check_chunks(const std::string& path, std::string_view content) {
  constexpr std::size_t kMagic = 8, kHead = 8, kSum = 4;  // a chunk is its length and type, content, check sum
  for (std::size_t at = kMagic; at + kHead <= content.size();) {
    std::uint64_t length = 0;
    for (std::size_t k = 0; k < 4; ++k) length = length << 8 | static_cast<unsigned char>(content[at + k]);
    const std::string_view type = content.substr(at + 4, 4);
    at += kHead;
    if (length > content.size() - at) {
      fail<FormatError>(path, ": is damaged: the chunk at byte ", at - kHead, " claims ", length,
                        " bytes, the file has ", content.size() - at, " there");
    }
    if (type == "IEND") return;  // what follows is not read
    at += static_cast<std::size_t>(length) + kSum;
  }
}

std::uint8_t* bytes_of(const Tensor& x) { return reinterpret_cast<std::uint8_t*>(x.get().storage->data) + x.offset(); }

}  // namespace

std::string encode_png(const Tensor& image, std::string_view what) {
  const bool grey = image.rank() == 2, rgb = image.rank() == 3 && image.size(2) == 3;
  if (image.dtype() != DType::u8 || !image.device().is_cpu()) {
    fail<DTypeError>(what, ": the picture is ", text(image), ", expected u8 on cpu");
  }
  if (!(grey || rgb) || image.numel() == 0 || std::max(image.size(0), image.size(1)) > PNG_USER_WIDTH_MAX) {
    fail<ShapeError>(what, ": the picture has shape ", image.shape(),
                     ", expected [H, W] or [H, W, 3] with sizes from 1 to ", PNG_USER_WIDTH_MAX);
  }
  const Tensor dense = image.detach().contiguous();
  Image out;
  out.png.width = static_cast<png_uint_32>(image.size(1));
  out.png.height = static_cast<png_uint_32>(image.size(0));
  out.png.format = grey ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(out.png);
  std::string content(size, '\0');
  if (!png_image_write_to_memory(&out.png, content.data(), &size, 0, bytes_of(dense), 0, nullptr)) {
    fail<FileError>(what, ": libpng: ", out.png.message);
  }
  content.resize(size);
  return content;
}

void save_png(const std::string& path, const Tensor& image) {
  write_file_atomically(path, encode_png(image, "save_png: " + path));
}

Tensor read_png(const std::string& path, std::string_view content) {
  if (content.starts_with("\x89PNG")) check_chunks(path, content);
  Image in;
  if (!png_image_begin_read_from_memory(&in.png, content.data(), content.size())) {
    fail<FormatError>(path, ": is no PNG file: ", in.png.message);
  }
  const bool color = (in.png.format & (PNG_FORMAT_FLAG_COLOR | PNG_FORMAT_FLAG_COLORMAP)) != 0;
  in.png.format = color ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  const std::int64_t height = in.png.height, width = in.png.width;
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(height) * static_cast<std::uint64_t>(width) * (color ? 3u : 1u);
  if (bytes > content.size() * kMaxRatio * 8) {  // a bit a pixel grows eightfold
    fail<FormatError>(path, ": the header implies ", bytes, " bytes for ", width, " x ", height,
                      " pixels, the file has ", content.size());
  }
  Tensor image = empty(color ? Shape{height, width, 3} : Shape{height, width}, Device::cpu(), DType::u8);
  constexpr png_color kBlack{0, 0, 0};  // the background of transparent pixels
  if (!png_image_finish_read(&in.png, &kBlack, bytes_of(image), 0, nullptr)) {
    fail<FormatError>(path, ": is damaged: ", in.png.message);
  }
  return image;
}

Tensor load_png(const std::string& path) { return read_png(path, read_file(path, kMostImageFile)); }

Tensor contact_sheet(const Tensor& images, std::int64_t columns, std::uint8_t gap) {
  if (images.dtype() != DType::u8) fail<DTypeError>("contact_sheet: pictures are ", images.dtype(), ", expected u8");
  if (images.rank() != 3 || images.numel() == 0) {
    fail<ShapeError>("contact_sheet: pictures have shape ", images.shape(), ", expected [N, H, W], none of them 0");
  }
  if (columns < 1) fail<ConfigError>("contact_sheet: columns is ", columns, ", expected 1 or more");
  const std::int64_t n = images.size(0), h = images.size(1), w = images.size(2);
  columns = std::min(columns, n);
  const std::int64_t rows = (n + columns - 1) / columns;
  const Tensor dense = images.detach().contiguous();
  Tensor sheet = empty({rows * (h + 1) + 1, columns * (w + 1) + 1}, Device::cpu(), DType::u8);
  std::uint8_t* to = sheet.mutable_data<std::uint8_t>();
  std::memset(to, gap, static_cast<std::size_t>(sheet.numel()));
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t y = 0; y < h; ++y) {
      const std::int64_t at = ((i / columns) * (h + 1) + 1 + y) * sheet.size(1) + (i % columns) * (w + 1) + 1;
      std::memcpy(to + at, dense.data<std::uint8_t>() + (i * h + y) * w, static_cast<std::size_t>(w));
    }
  }
  return sheet;
}

}  // namespace levin::data
