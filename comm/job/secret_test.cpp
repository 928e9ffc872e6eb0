#include "comm/job/secret.h"

#include <doctest/doctest.h>

#include "levin/error.h"
#include "tests/skip.h"

namespace levin::dist {
namespace {

std::string hex(const Digest& digest) {
  std::string out;
  for (const std::uint8_t byte : digest) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

TEST_CASE("HMAC-SHA256 gives the values of RFC 4231") {
  if (!can_prove()) return test::skip("no libcrypto in this build");
  CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("a build without libcrypto refuses a secret by the package's name") {
  if (can_prove()) return test::skip("libcrypto is in this build");
  CHECK_THROWS_WITH_AS((void)hmac_sha256("key", ""), doctest::Contains("libssl-dev"), ConfigError);
}

TEST_CASE("a proof depends on the secret, both nonces, the rank and the card, and on who proves") {
  if (!can_prove()) return test::skip("no libcrypto in this build");
  const std::optional<std::string> key("secret");
  const Digest a = random_digest(), b = random_digest();
  CHECK_FALSE(same(a, b));
  const Digest proof = rank_proof(key, a, b, 1, "card");
  CHECK(same(proof, rank_proof(key, a, b, 1, "card")));
  CHECK_FALSE(same(proof, rank_proof("other", a, b, 1, "card")));
  CHECK_FALSE(same(proof, rank_proof(key, b, a, 1, "card")));
  CHECK_FALSE(same(proof, rank_proof(key, a, b, 2, "card")));
  CHECK_FALSE(same(proof, rank_proof(key, a, b, 1, "cards")));
  CHECK_FALSE(same(store_proof(key, a, b, 1), rank_proof(key, a, b, 1, "")));
  CHECK(same(rank_proof(std::nullopt, a, b, 1, "card"), Digest{}));
}

}  // namespace
}  // namespace levin::dist
