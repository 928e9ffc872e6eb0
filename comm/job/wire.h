// The messages between ranks and the store: a header of 24 bytes and a body. Little endian, as all machines that Levin
// is built for.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace levin::dist {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::uint32_t kMagic = 0x314a564c;                // "LVJ1"
inline constexpr std::uint32_t kBodyLimit = 64 * 1024;             // of a message to the store
inline constexpr std::uint32_t kPlanLimit = 1024 * 1024;           // of a gather's value
inline constexpr std::uint32_t kAnswerLimit = 256u * 1024 * 1024;  // of a message to a rank
inline constexpr int kConnectionLimit = 4096;

enum class Message : std::uint16_t {
  challenge = 1,  // store: random bytes, to each connection; its number is the job's restart count
  hello,          // rank: nonce, proof, card
  welcome,        // store: proof, hosts of all ranks
  refusal,        // store: what kind of error, text
  set,            // rank: key, value; answered
  get,            // rank: key; answered when the key is set
  gather,         // rank: group, place, what, value; answered when all are there
  group,          // rank: the ranks of a group
  ends,           // rank: a group, of which its last beat has told all collectives
  answer,         // store: to the message with this number
  beat,           // rank: its note
  ack,            // store: to a beat, with rank 0's note
  ask,            // store: for a beat at once, with the last collective's words
  report,         // rank: an error that it found, and of which rank
  failed,         // rank: the text of its exception
  verdict,        // store: to all
  bye,            // rank: it leaves; answered
  farewell        // store: it closes, and all is well
};

struct Header {
  std::uint32_t magic = kMagic;
  Message op{};
  std::uint16_t flags = 0;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;    // of the body
  std::uint64_t number = 0;  // of a request, and of its answer
};
static_assert(sizeof(Header) == 24);

// Writes a body.
class Packer {
 public:
  template <class T>
  Packer& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Packer& put_text(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads a body that anybody may have sent: good() turns false where it ends early, and what is read is then zero.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  [[nodiscard]] T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (bytes_.size() < sizeof value) {
      good_ = false;
      bytes_ = {};
      return value;
    }
    std::memcpy(static_cast<void*>(&value), bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  [[nodiscard]] std::string_view get_text() {
    const auto size = get<std::uint32_t>();
    if (bytes_.size() < size) {
      good_ = false;
      bytes_ = {};
      return {};
    }
    const std::string_view out = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return out;
  }
  [[nodiscard]] std::string_view rest() const { return bytes_; }
  [[nodiscard]] bool good() const { return good_; }

 private:
  std::string_view bytes_;
  bool good_ = true;
};

[[nodiscard]] inline std::string framed(Header header, std::string_view body) {
  header.size = static_cast<std::uint32_t>(body.size());
  std::string out(reinterpret_cast<const char*>(&header), sizeof header);
  return out.append(body);
}

}  // namespace levin::dist
