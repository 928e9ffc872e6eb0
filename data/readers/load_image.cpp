#include <algorithm>
#include <cstring>

#include "data/image.h"
#include "levin/data/readers.h"
#include "levin/serialize.h"

namespace levin::data {

Tensor read_image(const std::string& path, std::string_view content) {
  if (content.starts_with("\x89PNG")) return read_png(path, content);
  if (content.starts_with("\xff\xd8")) return read_jpeg(path, content);
  std::string bytes;
  for (const char c : content.substr(0, 4)) bytes += " " + text(unsigned{static_cast<unsigned char>(c)});
  fail<FormatError>(path, ": is neither PNG nor JPEG: it begins with bytes", bytes.empty() ? " of none" : bytes,
                    ", expected 137 80 78 71 or 255 216");
}

Tensor load_jpeg(const std::string& path) { return read_jpeg(path, read_file(path, kMostImageFile)); }
Tensor load_image(const std::string& path) { return read_image(path, read_file(path, kMostImageFile)); }

Tensor load_image(const std::string& path, Colors colors) {
  const Tensor image = load_image(path);
  const bool grey = image.rank() == 2;
  if (grey == (colors == Colors::grey)) return image;
  const std::int64_t height = image.size(0), width = image.size(1);
  Tensor out = empty(grey ? Shape{height, width, 3} : Shape{height, width}, Device::cpu(), DType::u8);
  const std::uint8_t* from = image.data<std::uint8_t>();
  std::uint8_t* to = out.mutable_data<std::uint8_t>();
  for (std::int64_t i = 0; i < height * width; ++i) {
    if (grey) {
      to = std::fill_n(to, 3, *from++);
    } else {  // the luma of ITU-R BT.601 in 16 bits, rounded
      *to++ = static_cast<std::uint8_t>((from[0] * 19595u + from[1] * 38470u + from[2] * 7471u + 32768u) >> 16);
      from += 3;
    }
  }
  return out;
}

}  // namespace levin::data
