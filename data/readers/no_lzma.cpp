// In place of unxz.cpp in a build without liblzma.
#include "data/readers/unpack.h"

namespace levin::data {

bool has_lzma() { return false; }
std::unique_ptr<Unpacked> unxz(detail::Source& source, std::uint64_t) {
  fail<UnsupportedError>(source.name(),
                         ": is packed by xz, and this build has no liblzma; unpack it with `xz -d`, or install "
                         "liblzma-dev and build Levin again with -Dlzma=enabled");
}

}  // namespace levin::data
