#include "comm/job/secret.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "levin/error.h"

namespace levin::dist {

bool can_prove() { return true; }

Digest hmac_sha256(std::string_view key, std::string_view message) {
  Digest out{};
  unsigned int bytes = 0;
  const auto* result = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                            reinterpret_cast<const unsigned char*>(message.data()), message.size(), out.data(), &bytes);
  if (result == nullptr || bytes != out.size())
    fail<CommError>("init_process_group: libcrypto computes no HMAC-SHA256; LEVIN_JOB_SECRET cannot be proven");
  return out;
}

}  // namespace levin::dist
