// The part of NCCL's interface that Levin calls, so that no build needs nccl.h and no program needs libnccl.so.2.
//
// Source: nccl.h of NCCL 2.27 to 2.29. The values and layouts are NCCL's binary interface, which keeps them: a library
// takes a shorter Config with an older version and gives the rest its defaults. A build with CUDA compares them with
// the toolkit's nccl.h (nccl_header.cpp).
#pragma once

#include <climits>
#include <cstddef>

namespace levin::dist::nccl {

enum class Result : int {
  success = 0,
  cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,  // another rank failed
  in_progress = 7,
};
enum class Type : int { u8 = 1, i32 = 2, i64 = 4, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };
enum class Reduce : int { sum = 0, max = 2, min = 3, average = 4 };

struct Id {
  char bytes[128];
};

inline constexpr unsigned kMagic = 0xcafebeef;
inline constexpr int kOldest = 22700;  // 2.27.0, and the layout below
inline constexpr int kMajor = 2;
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = kMagic;
  unsigned version = kOldest;
  int blocking = INT_MIN;  // INT_MIN and null: NCCL's default
  int cluster_size = INT_MIN;
  int min_blocks = INT_MIN, max_blocks = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;
  const char* name = nullptr;
  int collnet = INT_MIN;
  int policy = INT_MIN;
  int shrink_share = INT_MIN;
  int nvls_blocks = INT_MIN;
};

using Comm = void*;    // ncclComm_t
using Stream = void*;  // cudaStream_t

// A pointer for each function of libnccl.so.2.
struct Library {
  int version = 0;
  Result (*ncclGetVersion)(int* version) = nullptr;
  Result (*ncclGetUniqueId)(Id* id) = nullptr;
  Result (*ncclCommInitRankConfig)(Comm* comm, int size, Id id, int rank, Config* config) = nullptr;
  Result (*ncclCommFinalize)(Comm comm) = nullptr;
  Result (*ncclCommDestroy)(Comm comm) = nullptr;
  Result (*ncclCommAbort)(Comm comm) = nullptr;
  Result (*ncclCommGetAsyncError)(Comm comm, Result* state) = nullptr;
  const char* (*ncclGetErrorString)(Result result) = nullptr;
  const char* (*ncclGetLastError)(Comm comm) = nullptr;
  Result (*ncclAllReduce)(const void* in, void* out, std::size_t count, Type type, Reduce op, Comm comm,
                          Stream stream) = nullptr;
  Result (*ncclBroadcast)(const void* in, void* out, std::size_t count, Type type, int root, Comm comm,
                          Stream stream) = nullptr;
  Result (*ncclAllGather)(const void* in, void* out, std::size_t count, Type type, Comm comm, Stream stream) = nullptr;
  Result (*ncclReduceScatter)(const void* in, void* out, std::size_t count, Type type, Reduce op, Comm comm,
                              Stream stream) = nullptr;
  Result (*ncclSend)(const void* in, std::size_t count, Type type, int to, Comm comm, Stream stream) = nullptr;
  Result (*ncclRecv)(void* out, std::size_t count, Type type, int from, Comm comm, Stream stream) = nullptr;
  Result (*ncclGroupStart)() = nullptr;
  Result (*ncclGroupEnd)() = nullptr;

  // visit(name, pointer) for each.
  template <class Visit>
  void each(const Visit& visit) {
#define LEVIN_NCCL_VISIT(name) visit(#name, name)
    LEVIN_NCCL_VISIT(ncclGetVersion);
    LEVIN_NCCL_VISIT(ncclGetUniqueId);
    LEVIN_NCCL_VISIT(ncclCommInitRankConfig);
    LEVIN_NCCL_VISIT(ncclCommFinalize);
    LEVIN_NCCL_VISIT(ncclCommDestroy);
    LEVIN_NCCL_VISIT(ncclCommAbort);
    LEVIN_NCCL_VISIT(ncclCommGetAsyncError);
    LEVIN_NCCL_VISIT(ncclGetErrorString);
    LEVIN_NCCL_VISIT(ncclGetLastError);
    LEVIN_NCCL_VISIT(ncclAllReduce);
    LEVIN_NCCL_VISIT(ncclBroadcast);
    LEVIN_NCCL_VISIT(ncclAllGather);
    LEVIN_NCCL_VISIT(ncclReduceScatter);
    LEVIN_NCCL_VISIT(ncclSend);
    LEVIN_NCCL_VISIT(ncclRecv);
    LEVIN_NCCL_VISIT(ncclGroupStart);
    LEVIN_NCCL_VISIT(ncclGroupEnd);
#undef LEVIN_NCCL_VISIT
  }
};

// libnccl.so.2, or what LEVIN_NCCL_LIBRARY names, which stays loaded. Throws ConfigError where it is missing, lacks a
// function, or is older than kOldest or of another major version.
[[nodiscard]] const Library& library();

}  // namespace levin::dist::nccl
