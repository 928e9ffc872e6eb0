// A build without a device that launches kernels: count() is 0, so nothing else here is called.
#include "levin/error.h"
#include "tensor/device/current.h"
#include "tensor/device/hardware.h"
#include "tensor/device/runtime.h"

namespace levin::detail::runtime {
namespace {

[[noreturn]] void absent() { fail<InternalError>("runtime: this build has neither cuda nor simt"); }

}  // namespace

// There is one device at most.
Current::Current(Device device) : before_(device.index()), now_(before_) {}
Current::~Current() { now_ = before_; }

int count(DeviceType) noexcept { return 0; }
std::byte* allocate(Device, std::size_t) { absent(); }
void release(Device, std::byte*, std::size_t) noexcept {}
std::byte* allocate_filled(Device, std::size_t, unsigned char) { absent(); }
std::size_t free_memory(Device) { absent(); }
bool keeps_blocks() noexcept { return true; }
std::byte* allocate_pinned(std::size_t) { absent(); }
void release_pinned(std::byte*, std::size_t) noexcept {}
void copy(void*, const void*, std::size_t, Copy, Stream) { absent(); }
void set_words(std::uint64_t*, const Words&, Stream) { absent(); }
void* make_stream(Device, std::uint32_t) { absent(); }
void free_stream(Device, void*) noexcept {}
void wait(Stream, void*) { absent(); }
void synchronize(Stream) { absent(); }
void* make_event(Device, EnableTiming) { absent(); }
void free_event(Device, void*) noexcept {}
void record(void*, Stream) { absent(); }
bool done(Device, void*) { absent(); }
void synchronize_event(Device, void*) { absent(); }
double milliseconds(void*, void*) { absent(); }
void begin_capture(Stream) { absent(); }
bool is_recorded(Stream) { absent(); }
Recorded end_capture(Stream) { absent(); }
void abandon_capture(Stream) noexcept {}
void replay(void*, Stream) { absent(); }
void free_graph(Device, void*) noexcept {}
FaultSlot* faults(Device) { absent(); }

}  // namespace levin::detail::runtime

int levin::detail::compute_capability(Device) { runtime::absent(); }
