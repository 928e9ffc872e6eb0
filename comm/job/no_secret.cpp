// In place of secret.cpp in a build without libcrypto.
#include "comm/job/secret.h"
#include "levin/error.h"

namespace levin::dist {

bool can_prove() { return false; }

Digest hmac_sha256(std::string_view, std::string_view) {
  fail<ConfigError>(
      "init_process_group: LEVIN_JOB_SECRET is set, and this build has no libcrypto to prove it; install libssl-dev "
      "and "
      "build Levin again with -Dopenssl=enabled, or unset LEVIN_JOB_SECRET where all ranks are on this machine");
}

}  // namespace levin::dist
