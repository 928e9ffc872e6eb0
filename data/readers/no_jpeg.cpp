// In place of jpeg.cpp in a build without libjpeg.
#include "data/image.h"
#include "levin/error.h"

namespace levin::data {

bool has_jpeg() { return false; }
Tensor read_jpeg(const std::string& path, std::string_view, std::uint64_t) {
  fail<UnsupportedError>(path,
                         ": is a JPEG file, and this build has no libjpeg; save it as PNG, or install libjpeg-dev and "
                         "build Levin again with -Djpeg=enabled");
}

}  // namespace levin::data
