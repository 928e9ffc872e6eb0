#include <sys/random.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "comm/job/secret.h"
#include "levin/error.h"

namespace levin::dist {
namespace {

std::string_view bytes_of(const Digest& d) { return {reinterpret_cast<const char*>(d.data()), d.size()}; }

std::string rank_text(std::uint32_t rank) { return " " + text(rank) + "\n"; }

}  // namespace

JobSecret job_secret() {
  const char* value = std::getenv("LEVIN_JOB_SECRET");
  if (value == nullptr || *value == 0) return {};
  if (std::strcmp(value, "none") == 0) return {.refused = true};
  return {.key = std::string(value)};
}

Digest random_digest() {
  Digest out{};
  std::size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t n = ::getrandom(out.data() + filled, out.size() - filled, 0);
    if (n > 0) {
      filled += static_cast<std::size_t>(n);
    } else if (errno != EINTR) {
      fail<CommError>("init_process_group: the system gives no random bytes: ", std::strerror(errno));
    }
  }
  return out;
}

bool same(const Digest& a, const Digest& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

Digest rank_proof(const std::optional<std::string>& key, const Digest& store, const Digest& rank_nonce,
                  std::uint32_t rank, std::string_view card) {
  if (!key) return {};
  std::string message = "levin rank" + rank_text(rank);
  message.append(bytes_of(store)).append(bytes_of(rank_nonce)).append(card);
  return hmac_sha256(*key, message);
}

Digest store_proof(const std::optional<std::string>& key, const Digest& store, const Digest& rank_nonce,
                   std::uint32_t rank) {
  if (!key) return {};
  std::string message = "levin store" + rank_text(rank);
  message.append(bytes_of(rank_nonce)).append(bytes_of(store));
  return hmac_sha256(*key, message);
}

}  // namespace levin::dist
