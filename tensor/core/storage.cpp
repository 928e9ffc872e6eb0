#include <cstring>
#include <new>

#include "levin/tensor.h"
#include "tensor/core/sole_owner.h"
#include "tensor/device/in_stream.h"
#include "tensor/memory/allocator.h"
#include "tensor/memory/device_allocator.h"

namespace levin::detail {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

struct Storage::External {
  std::shared_ptr<void> owner;
  std::string source;
  Ref<Storage> parent;
  // Asked of a nested type, which sees count and origin. Acquire: what another thread did before it dropped its
  // reference has happened.
  static bool is_own(const Storage& s) {
    if (s.refs_.load(std::memory_order_acquire) != 1) return false;
    const bool pinned = s.origin_ == Origin::pinned && s.block_->uses.empty();
    return pinned || s.origin_ == Origin::inlined || s.origin_ == Origin::pooled;
  }
  friend bool is_sole_with_own_memory(const Storage& s) { return is_own(s); }
};
inline bool is_sole_with_own_memory(const Storage& s);

bool is_sole_owner(const Tensor& t) {
  if (!t.defined()) return false;
  const TensorImpl& p = t.get();
  return p.refs.load(std::memory_order_acquire) == 1 && !p.meta && is_sole_with_own_memory(*p.storage);
}

Ref<Storage> Storage::allocate(std::size_t bytes, Device device) {
  if (device.is_cpu()) {
    const std::size_t inlined = bytes <= kInlineBytes ? bytes + kAlignment : 0;
    void* memory = ::operator new(sizeof(Storage) + inlined, std::nothrow);
    if (!memory) fail<OutOfMemoryError>("allocate: ", bytes, " bytes wanted on cpu, the system has no more");
    auto* s = new (memory) Storage;
    Ref<Storage> owner = Ref<Storage>::adopt(s);
    s->device = device;
    if (inlined) {
      const auto address = reinterpret_cast<std::uintptr_t>(s + 1);
      s->data = reinterpret_cast<std::byte*>((address + kAlignment - 1) / kAlignment * kAlignment);
    } else {
      s->data = host_allocate(bytes);
      s->origin_ = Origin::pooled;
    }
    s->bytes = bytes;
    return owner;
  }
  if (device.launches()) {
    DeviceAllocator& allocator = device_allocator(device);
    auto* s = new (::operator new(sizeof(Storage))) Storage;
    Ref<Storage> owner = Ref<Storage>::adopt(s);
    s->device = device;
    s->block_ = allocator.allocate(bytes, Stream::current(device).index(), Ref<Pool>::share(recording_pool(device)));
    s->origin_ = Origin::device;
    s->data = s->block_->data;
    s->bytes = bytes;
    return owner;
  }
  auto* s = new (::operator new(sizeof(Storage))) Storage;
  s->device = device;
  s->bytes = bytes;
  s->origin_ = Origin::ledger;
  meta_add(bytes);
  return Ref<Storage>::adopt(s);
}

Ref<Storage> Storage::allocate_pinned(std::size_t bytes) {
  auto* s = new (::operator new(sizeof(Storage))) Storage;
  Ref<Storage> owner = Ref<Storage>::adopt(s);
  s->block_ = pinned_allocator().allocate(bytes, 0, {});
  s->origin_ = Origin::pinned;
  s->data = s->block_->data;
  s->bytes = bytes;
  return owner;
}

bool Storage::is_pinned() const {
  return origin_ == Origin::pinned || (origin_ == Origin::carved && external_->parent->is_pinned());
}

void Storage::used_on(const Stream& stream) {
  if (origin_ == Origin::device && !(stream.index() == block_->stream && stream.device() == device)) {
    device_allocator(device).used_on(block_, stream);
  }
  if (origin_ == Origin::pinned) pinned_allocator().used_on(block_, stream);
  if (origin_ == Origin::carved) external_->parent->used_on(stream);
}

void use_in_current_stream(Storage& storage) { storage.used_on(Stream::current(storage.device)); }

Ref<Storage> Storage::wrap(void* data, std::size_t bytes, Device device, std::shared_ptr<void> owner,
                           std::string source) {
  auto external = std::make_unique<External>(External{std::move(owner), std::move(source), {}});
  auto* s = new (::operator new(sizeof(Storage))) Storage;
  s->data = static_cast<std::byte*>(data);
  s->bytes = bytes;
  s->device = device;
  s->origin_ = Origin::wrapped;
  s->external_ = external.release();
  return Ref<Storage>::adopt(s);
}

Ref<Storage> Storage::carve(const Ref<Storage>& parent, std::size_t offset, std::size_t bytes) {
  if (offset > parent->bytes || bytes > parent->bytes - offset) {
    fail<ShapeError>("carve: bytes ", offset, " to ", offset + bytes, " are asked for, the storage has ",
                     parent->bytes);
  }
  auto external = std::make_unique<External>(External{{}, {}, parent});
  auto* s = new (::operator new(sizeof(Storage))) Storage;
  s->data = parent->data ? parent->data + offset : nullptr;
  s->bytes = bytes;
  s->device = parent->device;
  s->origin_ = Origin::carved;
  s->external_ = external.release();
  return Ref<Storage>::adopt(s);
}

void Storage::destroy(Storage* s) noexcept {
  if (s->origin_ == Origin::pooled && s->data) host_release(s->data, s->bytes);
  if (s->origin_ == Origin::ledger) meta_remove(s->bytes);
  if (s->origin_ == Origin::device) device_allocator(s->device).release(s->block_);
  if (s->origin_ == Origin::pinned) pinned_allocator().release(s->block_);
  if (s->origin_ == Origin::wrapped || s->origin_ == Origin::carved) delete s->external_;
  s->~Storage();
  ::operator delete(static_cast<void*>(s));
}

}  // namespace levin::detail
