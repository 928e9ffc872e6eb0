// The folder of a program's data set: searched, then downloaded; SHA-256 checks its files.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "levin/levin.h"

extern char** environ;  // for the curl process

namespace levin::examples {

// FIPS 180-4, as 64 hex digits.
inline std::string sha256(std::string_view data) {
  // The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
  static constexpr std::array<std::uint32_t, 64> k = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  std::array<std::uint32_t, 8> h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded(data);
  padded += '\x80';
  padded.append((64 + 56 - padded.size() % 64) % 64, '\0');
  const std::uint64_t bits = std::uint64_t{data.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bits >> shift);
  for (std::size_t block = 0; block < padded.size(); block += 64) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 64; ++i) {
      if (i < 16) {
        for (std::size_t b = 0; b < 4; ++b) w[i] = w[i] << 8 | static_cast<unsigned char>(padded[block + 4 * i + b]);
      } else {
        const std::uint32_t a = w[i - 15], c = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
               (std::rotr(c, 17) ^ std::rotr(c, 19) ^ (c >> 10));
      }
    }
    std::array<std::uint32_t, 8> v = h;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t t1 = v[7] + (std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25)) +
                               ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
      const std::uint32_t t2 = (std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22)) +
                               ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      v = {t1 + t2, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) h[i] += v[i];
  }
  std::string hex;
  for (const std::uint32_t word : h) {
    std::array<char, 9> digits{};
    std::snprintf(digits.data(), digits.size(), "%08x", word);
    hex += digits.data();
  }
  return hex;
}

inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The user's cache directory for Levin; empty when there is no home.
inline std::string cache_dir() {
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/levin";
  if (const std::string home = environment("HOME"); !home.empty()) return home + "/.cache/levin";
  return {};
}

struct RemoteFile {
  const char* name;
  const char* sha256;
};

// curl's exit code; -1 when curl could not start. Short timeouts: a machine without a network must not wait.
inline int curl(const std::string& url, const std::string& to) {
  std::vector<std::string> words = {"curl",
                                    "--fail",
                                    "--silent",
                                    "--location",
                                    "--connect-timeout",
                                    "5",
                                    "--speed-limit",
                                    "1000",
                                    "--speed-time",
                                    "10",
                                    "--max-time",
                                    "120",
                                    "--output",
                                    to,
                                    url};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  if (posix_spawnp(&child, "curl", nullptr, nullptr, argv.data(), environ) != 0) return -1;
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Downloads the missing files into `dir`. Either all get their final names or none. Returns the reason for a failure,
// or "".
inline std::string download(const std::string& base_url, std::span<const RemoteFile> files, const std::string& dir) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return "can not make " + dir + ": " + error.message();
  for (const RemoteFile& file : files) {
    const std::string path = dir + "/" + file.name, part = path + ".part-" + std::to_string(getpid());
    if (fs::exists(path, error)) continue;
    if (const int code = curl(base_url + file.name, part); code != 0) {
      fs::remove(part, error);
      return code == -1 ? std::string("curl is not installed")
                        : "no download from " + base_url + " (curl exit code " + std::to_string(code) + ")";
    }
    const std::string found = sha256(read_file(part, std::size_t{1} << 30));
    if (found != file.sha256) {
      fs::remove(part, error);
      return std::string(file.name) + " from " + base_url + " has SHA-256 " + found + ", expected " + file.sha256;
    }
    fs::rename(part, path, error);
    if (error) return "can not rename " + part + ": " + error.message();
  }
  return {};
}

}  // namespace levin::examples
