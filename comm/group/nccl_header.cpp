// Compares nccl_api.h with the toolkit's header, in builds that have one.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "comm/group/nccl_api.h"

namespace levin::dist::nccl {
namespace {

static_assert(NCCL_MAJOR == kMajor && NCCL_VERSION_CODE >= kOldest);
static_assert(sizeof(Id) == sizeof(ncclUniqueId) && NCCL_UNIQUE_ID_BYTES == 128);
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(Config, max_blocks) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(offsetof(Config, traffic_class) == offsetof(ncclConfig_t, trafficClass));
static_assert(offsetof(Config, name) == offsetof(ncclConfig_t, commName));
static_assert(offsetof(Config, nvls_blocks) == offsetof(ncclConfig_t, nvlsCTAs));

template <class Theirs, class Ours>
constexpr bool same(Theirs theirs, Ours ours) {
  return sizeof(Theirs) == sizeof(Ours) && static_cast<int>(theirs) == static_cast<int>(ours);
}
static_assert(same(ncclSuccess, Result::success) && same(ncclInProgress, Result::in_progress));
static_assert(same(ncclRemoteError, Result::remote_error) && same(ncclInvalidUsage, Result::invalid_usage));
static_assert(same(ncclUint8, Type::u8) && same(ncclInt32, Type::i32) && same(ncclInt64, Type::i64));
static_assert(same(ncclFloat16, Type::f16) && same(ncclBfloat16, Type::bf16));
static_assert(same(ncclFloat32, Type::f32) && same(ncclFloat64, Type::f64));
static_assert(same(ncclSum, Reduce::sum) && same(ncclAvg, Reduce::average));
static_assert(same(ncclMin, Reduce::min) && same(ncclMax, Reduce::max));
static_assert(sizeof(ncclComm_t) == sizeof(Comm) && sizeof(cudaStream_t) == sizeof(Stream));

// Whether two functions take arguments of the same sizes, pointers where the other takes pointers.
template <class R, class... A, class S, class... B>
constexpr bool agree(R (*)(A...), S (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B) && sizeof(R) == sizeof(S)) {
    return ((sizeof(A) == sizeof(B)) && ...) && ((std::is_pointer_v<A> == std::is_pointer_v<B>)&&...);
  }
  return false;
}
#define LEVIN_SAME(name)                                                                                       \
  static_assert(agree(static_cast<decltype(&::name)>(nullptr), static_cast<decltype(Library::name)>(nullptr)), \
                #name " has other arguments")
LEVIN_SAME(ncclGetVersion);
LEVIN_SAME(ncclGetUniqueId);
LEVIN_SAME(ncclCommInitRankConfig);
LEVIN_SAME(ncclCommFinalize);
LEVIN_SAME(ncclCommDestroy);
LEVIN_SAME(ncclCommAbort);
LEVIN_SAME(ncclCommGetAsyncError);
LEVIN_SAME(ncclGetErrorString);
LEVIN_SAME(ncclGetLastError);
LEVIN_SAME(ncclAllReduce);
LEVIN_SAME(ncclBroadcast);
LEVIN_SAME(ncclAllGather);
LEVIN_SAME(ncclReduceScatter);
LEVIN_SAME(ncclSend);
LEVIN_SAME(ncclRecv);
LEVIN_SAME(ncclGroupStart);
LEVIN_SAME(ncclGroupEnd);
#undef LEVIN_SAME

}  // namespace
}  // namespace levin::dist::nccl
