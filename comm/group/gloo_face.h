// What liblevin_gloo.so offers. It is a library of its own, loaded when a job needs it, so that no program grows by
// Gloo and the five shared objects that Gloo needs. No exception crosses this face.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Texts of errors go to `error`, at most kLevinGlooError bytes with the terminating zero.
enum { kLevinGlooVersion = 1, kLevinGlooError = 512 };

struct LevinGloo {
  std::uint32_t version;
  // A context of `size` ranks that listens at `address`; null: an error.
  void* (*open)(int rank, int size, const char* address, double timeout, char* error);
  // The bytes by which the other ranks find this one; null-terminated they are not.
  const char* (*card)(void* context, std::size_t* bytes);
  // Connects all ranks; cards[rank] of this rank is ignored. 0: done.
  int (*connect)(void* context, const char* const* cards, const std::size_t* bytes, char* error);
  // A message under way; null: an error.
  void* (*send)(void* context, int to, std::uint64_t slot, const void* bytes, std::size_t n, char* error);
  void* (*recv)(void* context, int from, std::uint64_t slot, void* bytes, std::size_t n, char* error);
  // Ends the message: 0: it is done; 1: aborted; 2: an error.
  int (*wait)(void* context, void* message, double timeout, char* error);
  void (*drop)(void* context, void* message);
  void (*abort)(void* context);  // from any thread: ends all waits, closes the connections
  void (*close)(void* context);
};

const struct LevinGloo* levin_gloo();
}
