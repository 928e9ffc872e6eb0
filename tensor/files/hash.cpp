#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "levin/serialize.h"
#include "tensor/files/file.h"

namespace levin {
namespace {

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) {
    if (!state_) fail<OutOfMemoryError>("content_hash: no memory for the state");
    XXH3_128bits_reset(state_.get());
  }
  void add(const void* data, std::size_t bytes) {
    if (bytes) XXH3_128bits_update(state_.get(), data, bytes);
  }
  // Length first: "ab" + "c" and "a" + "bc" must differ.
  void add(std::string_view text) {
    const std::uint64_t size = text.size();
    add(&size, sizeof size);
    add(text.data(), text.size());
  }
  [[nodiscard]] std::string hex() const {
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(state_.get()));
    std::string out;
    for (const unsigned char byte : digest.digest) {
      out += "0123456789abcdef"[byte >> 4];
      out += "0123456789abcdef"[byte & 15];
    }
    return out;
  }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

}  // namespace

std::string detail::content_hash_of(Source& source) {
  constexpr std::size_t kChunk = std::size_t{1} << 20;
  std::vector<std::byte> chunk(static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, source.size())));
  Hash hash;
  for (std::uint64_t at = 0; at < source.size(); at += chunk.size()) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(chunk.size(), source.size() - at));
    source.read(at, chunk.data(), n);
    hash.add(chunk.data(), n);
  }
  return hash.hex();
}

std::string content_hash(std::string_view content) {
  Hash hash;
  hash.add(content.data(), content.size());
  return hash.hex();
}

std::string content_hash(std::string_view tensor_name, const Tensor& x) {
  const Tensor dense = detail::dense_on_host("content_hash: " + std::string(tensor_name), x);
  Hash hash;
  hash.add(tensor_name);
  hash.add(name(x.dtype()));
  hash.add(text(x.shape()));
  const auto bytes = detail::bytes_of(dense);
  hash.add(bytes.data(), bytes.size());
  return hash.hex();
}

}  // namespace levin
