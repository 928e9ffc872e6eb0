#include "data/readers/npz.h"

#include "data/readers/zip.h"
#include "tensor/core/formats.h"

namespace levin::data {

NamedTensors read_npz(detail::Source& source, NpzLimits limits) {
  constexpr std::string_view kEnding = ".npy";
  const std::vector<ZipMember> members = read_zip_directory(source);
  std::uint64_t left = limits.unpacked_bytes;
  for (const ZipMember& member : members) {  // before any memory is taken
    if (!member.name.ends_with(kEnding)) {
      fail<FormatError>(source.name(), ": member '", member.name, "' is no array: its name does not end in .npy");
    }
    if (member.unpacked > left) {
      fail<FormatError>(source.name(), ": its members unpack to more than ", limits.unpacked_bytes,
                        " bytes; give load_npz a larger NpzLimits::unpacked_bytes if they should");
    }
    left -= member.unpacked;
  }
  NamedTensors tensors;
  for (const ZipMember& member : members) {
    ZipMemberSource bytes(source, member);
    Tensor x = detail::read_npy(bytes);
    bytes.finish();
    tensors.emplace_back(member.name.substr(0, member.name.size() - kEnding.size()), std::move(x));
  }
  return tensors;
}

NamedTensors load_npz(const std::string& path, NpzLimits limits) {
  detail::FileSource source(path);
  return read_npz(source, limits);
}

}  // namespace levin::data
