// The secret of a job, and the proofs that both ends of a connection know it.
//
// Note [Proofs of the job's secret]: the store sends 32 random bytes to each connection. A rank answers with 32 bytes
// of its own and HMAC-SHA256 of both, of its rank and of its card, under LEVIN_JOB_SECRET; the store sends nothing more
// to a connection without that proof. With its welcome the store proves itself by the HMAC of the same bytes in the
// other order, so that no rank joins a stranger's job. What follows is not encrypted.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace levin::dist {

using Digest = std::array<std::uint8_t, 32>;

// Whether this build can prove a secret (Meson's option `openssl`).
[[nodiscard]] bool can_prove();
// HMAC-SHA256. Throws ConfigError, with the package's name, in a build without libcrypto.
[[nodiscard]] Digest hmac_sha256(std::string_view key, std::string_view message);

// What LEVIN_JOB_SECRET says.
struct JobSecret {
  std::optional<std::string> key{};  // unset or "none": no proofs
  bool refused = false;              // "none": the user accepts a network without proofs
};
[[nodiscard]] JobSecret job_secret();

[[nodiscard]] Digest random_digest();
// In a time that does not depend on the bytes.
[[nodiscard]] bool same(const Digest& a, const Digest& b);

// The proofs; zeros without a secret.
[[nodiscard]] Digest rank_proof(const std::optional<std::string>& key, const Digest& store, const Digest& rank_nonce,
                                std::uint32_t rank, std::string_view card);
[[nodiscard]] Digest store_proof(const std::optional<std::string>& key, const Digest& store, const Digest& rank_nonce,
                                 std::uint32_t rank);

}  // namespace levin::dist
