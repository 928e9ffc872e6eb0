// Where a tensor's memory lies and its ops run: a closed enum, never a default.
#pragma once

#include <cstdint>
#include <string>

#include "levin/error.h"
#include "levin/export.h"

namespace levin {

enum class DeviceType : std::uint8_t { cpu, cuda, simt, meta };

// A value. `meta` tensors have no data: ops check and run no kernel. `simt` runs CUDA kernels on the host and watches
// them (-Dsimt=true). cpu(k) is the CPU as device k: ops mix no tensors of two, memory is counted together. A tensor on
// a device that the build lacks throws UnsupportedError, on one that the machine lacks DeviceError.
class Device {
 public:
  static constexpr Device cpu(int index = 0) { return Device(DeviceType::cpu, index); }
  static constexpr Device cuda(int index = 0) { return Device(DeviceType::cuda, index); }
  static constexpr Device simt() { return Device(DeviceType::simt, 0); }
  static constexpr Device meta() { return Device(DeviceType::meta, 0); }
  [[nodiscard]] constexpr DeviceType type() const { return type_; }
  [[nodiscard]] constexpr int index() const { return index_; }
  [[nodiscard]] constexpr bool is_cpu() const { return type_ == DeviceType::cpu; }
  [[nodiscard]] constexpr bool is_cuda() const { return type_ == DeviceType::cuda; }
  [[nodiscard]] constexpr bool is_meta() const { return type_ == DeviceType::meta; }
  // Whether ops launch kernels there: cuda and simt.
  [[nodiscard]] constexpr bool launches() const { return type_ == DeviceType::cuda || type_ == DeviceType::simt; }
  friend constexpr bool operator==(Device, Device) = default;

 private:
  // An index out of range becomes -1: it must not wrap to an index that exists.
  constexpr Device(DeviceType type, int index)
      : type_(type), index_(static_cast<std::int16_t>(index < 0 || index > 0x7fff ? -1 : index)) {}
  DeviceType type_;
  std::int16_t index_;
};
[[nodiscard]] LEVIN_API std::string text(Device d);  // "cpu", "cpu:1", "cuda:1", "simt", "meta"

// How many devices of a type this process can use: 1 for cpu and meta; for cuda what the driver shows, 0 without a
// driver or in a build without CUDA; for simt 1 or 0. Never throws.
[[nodiscard]] LEVIN_API int device_count(DeviceType type);

// The number of threads that CPU kernels may use (default: LEVIN_NUM_THREADS or OMP_NUM_THREADS of the environment,
// else the cores this process may run on). Never changes a result. Throws ConfigError outside of 1 to 4096.
LEVIN_API void set_num_threads(int n);
[[nodiscard]] LEVIN_API int num_threads();

// What Levin's own allocator holds on a device: bytes in live tensors, the highest such sum since start or
// reset_peak_memory, and bytes kept for reuse. Page-locked memory and, on cpu, tensors of at most 512 bytes are not
// counted: the latter are the system's. These three functions throw DeviceError or UnsupportedError for a device that
// is not there.
struct MemoryStats {
  std::int64_t in_use = 0;
  std::int64_t peak = 0;
  std::int64_t cached = 0;
};
[[nodiscard]] LEVIN_API MemoryStats memory_stats(Device d);
LEVIN_API void reset_peak_memory(Device d);
// Returns cached blocks to the system, on cpu page-locked ones too; while a Graph is recorded, pageable ones alone.
LEVIN_API void release_cached_memory(Device d);

}  // namespace levin
