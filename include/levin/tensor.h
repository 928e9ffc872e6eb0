// Tensor: a counted handle to strided memory. Copying the handle shares the data; clone() copies it.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "levin/device.h"
#include "levin/dtype.h"
#include "levin/error.h"
#include "levin/export.h"
#include "levin/shape.h"

namespace levin {

class Stream;

namespace detail {

struct Block;

// Intrusive counting. dispose() runs when the last reference goes.
class LEVIN_API RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  void retain() const noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
  // True when this was the last reference; the caller must then destroy the object.
  [[nodiscard]] bool drop() const noexcept {
    // A sole owner needs no atomic subtraction: no other thread can raise the count.
    return refs_.load(std::memory_order_acquire) == 1 || refs_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }
  void release() const noexcept {
    if (drop()) const_cast<RefCounted*>(this)->dispose();
  }
  [[nodiscard]] std::uint32_t use_count() const noexcept { return refs_.load(std::memory_order_relaxed); }

 protected:
  virtual ~RefCounted() = default;
  virtual void dispose() noexcept { delete this; }

 private:
  mutable std::atomic<std::uint32_t> refs_{1};
};

// Owner of one reference to a counted object.
template <class T>
class Ref {
 public:
  Ref() = default;
  // Takes over a reference the caller holds.
  static Ref adopt(T* p) {
    Ref r;
    r.p_ = p;
    return r;
  }
  static Ref share(T* p) {
    if (p) p->retain();
    return adopt(p);
  }
  Ref(const Ref& o) noexcept : p_(o.p_) {
    if (p_) p_->retain();
  }
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  template <class U>
  requires std::is_convertible_v<U*, T*> Ref(Ref<U> o)
  noexcept : p_(o.detach()) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() {
    if (p_) p_->release();
  }
  T* get() const noexcept { return p_; }
  T* operator->() const noexcept { return p_; }
  T& operator*() const noexcept { return *p_; }
  explicit operator bool() const noexcept { return p_ != nullptr; }
  [[nodiscard]] T* detach() noexcept { return std::exchange(p_, nullptr); }
  friend bool operator==(const Ref& a, const Ref& b) { return a.p_ == b.p_; }

 private:
  T* p_ = nullptr;
};

// Note [Storage]
// Owns memory and knows no shape. The version counts writes and lives here, so all views share it; a carved child has a
// counter of its own (flat buffers of parameters). `writer` names the op that wrote last.
class LEVIN_API Storage {
 public:
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  Device device = Device::cpu();
  std::atomic<std::uint32_t> version{0};
  std::atomic<const char*> writer{nullptr};

  // Uninitialised memory, 64-byte aligned. Throws OutOfMemoryError. On meta: no memory, counted in the ledger. On a
  // device that launches kernels the memory belongs to the current stream and comes back to it.
  static Ref<Storage> allocate(std::size_t bytes, Device device);
  // Call it before work of another stream uses the memory. Does nothing on cpu and meta.
  void used_on(const Stream& stream);
  // Foreign memory, kept alive by `owner`; `source` names it in messages ("numpy array", a file).
  static Ref<Storage> wrap(void* data, std::size_t bytes, Device device, std::shared_ptr<void> owner,
                           std::string source);
  // Page-locked memory of the host. Call used_on before work of a stream reads or writes it; the block is kept until
  // that work is done. Throws UnsupportedError in a build without a device that launches kernels.
  static Ref<Storage> allocate_pinned(std::size_t bytes);
  [[nodiscard]] bool is_pinned() const;
  // Bytes [offset, offset + bytes) of `parent` with a version counter of their own. Throws ShapeError when outside.
  static Ref<Storage> carve(const Ref<Storage>& parent, std::size_t offset, std::size_t bytes);

  void wrote(const char* op) noexcept {
    writer.store(op, std::memory_order_relaxed);
    version.fetch_add(1, std::memory_order_release);
  }
  void retain() const noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
  void release() const noexcept {
    if (refs_.load(std::memory_order_acquire) == 1 || refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      destroy(const_cast<Storage*>(this));
    }
  }
  [[nodiscard]] std::uint32_t use_count() const noexcept { return refs_.load(std::memory_order_relaxed); }

 private:
  enum class Origin : std::uint8_t { inlined, pooled, wrapped, carved, ledger, device, pinned };
  struct External;
  Storage() = default;
  ~Storage() = default;
  static void destroy(Storage* s) noexcept;
  mutable std::atomic<std::uint32_t> refs_{1};
  Origin origin_ = Origin::inlined;
  union {
    External* external_ = nullptr;  // wrapped, carved
    Block* block_;                  // device, pinned
  };
};

struct TensorImpl {
  mutable std::atomic<std::uint32_t> refs{1};
  DType dtype = DType::f32;
  bool contiguous = true;       // row-major dense; also true for any tensor of at most one element
  std::uint16_t meta_slot = 0;  // which output of the node in `meta` this is
  Ref<Storage> storage;
  std::int64_t offset = 0;  // in elements
  Shape shape;
  Strides strides;
  Ref<RefCounted> meta;  // autograd's; opened by autograd/ alone

  void retain() const noexcept { refs.fetch_add(1, std::memory_order_relaxed); }
  void release() const noexcept {
    if (refs.load(std::memory_order_acquire) == 1 || refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

// The user's call that may wait for a device, for the message of a wait that is refused; the outermost one counts.
class LEVIN_API WaitsHere {
 public:
  WaitsHere(const char* call, const std::source_location& where) noexcept;
  ~WaitsHere();
  WaitsHere(const WaitsHere&) = delete;
  WaitsHere& operator=(const WaitsHere&) = delete;

 private:
  bool outermost_;
};

}  // namespace detail

class Tensor;
namespace detail {
// to = of.detach(), without an allocation where `to` is the only handle of its tensor.
LEVIN_API void detach_into(Tensor& to, const Tensor& of);
}  // namespace detail
using Tensors = std::vector<Tensor>;

enum class NonBlocking : bool { no, yes };

// The order of a tensor's elements in memory. contiguous: row-major. channels_last, for images [N, C, H, W] and weights
// of their convolutions: [N, H, W, C] in memory, under the same shape. Convolutions read and write it faster on a GPU,
// in 16 bits above all.
//
// Note [Results in channels-last memory]
// An image in channels-last memory gives results in channels-last memory, and so do gradients. The ops that keep it:
// - pointwise ops, casts and dropout, of operands that have the result's shape and one layout or are broadcast; of
//   several layouts the first operand's counts;
// - conv2d and conv_transpose2d, also where only the weight, of more than one pixel, lies so, and batch norm, each with
//   its gradients;
// - pooling, and cat of images that all lie so;
// - clone, empty_like, zeros_like, ones_like, full_like, to(Device) and detach.
// Results of all other ops are contiguous or views, and reshape, view and flatten copy where the elements of
// their result do not lie in one order. The gradient of a convolution's weight lies as the weight. Values are those of
// contiguous memory up to the order of sums; dropout draws its mask in the order of memory. On the CPU convolutions
// copy to contiguous memory and back.
//
// An image of one channel, or of one pixel, is both contiguous and channels_last; it counts as contiguous.
enum class MemoryFormat : std::uint8_t { contiguous, channels_last };

// How a sort, or topk, orders elements.
enum class Order : std::uint8_t { ascending, descending };

// Elements begin, begin + step, ... below end along a dimension, as Python's begin:end:step; Slice{} is all of them.
struct Slice {
  std::optional<std::int64_t> begin{}, end{};
  std::int64_t step = 1;
};

struct Index;  // what Tensor::index takes for each dimension
struct ValuesIndices;

// A tensor: shape, strides, dtype, device and a reference to its memory. Copies of the handle are the same tensor.
class LEVIN_API Tensor {
 public:
  Tensor() = default;  // undefined: holds nothing; defined() and copying apart, using it throws StateError
  [[nodiscard]] bool defined() const { return bool(impl_); }

  // Metadata. Dimensions may be negative: size(-1) is the last. size and stride throw IndexError.
  [[nodiscard]] const Shape& shape() const { return get().shape; }
  [[nodiscard]] std::int64_t size(std::int64_t d) const;
  [[nodiscard]] int rank() const { return get().shape.rank(); }
  [[nodiscard]] std::int64_t numel() const { return get().shape.numel(); }
  [[nodiscard]] const Strides& strides() const { return get().strides; }
  [[nodiscard]] std::int64_t stride(std::int64_t d) const;
  [[nodiscard]] std::int64_t offset() const { return get().offset; }
  [[nodiscard]] DType dtype() const { return get().dtype; }
  [[nodiscard]] Device device() const { return get().storage->device; }
  [[nodiscard]] bool is_contiguous() const { return get().contiguous; }
  [[nodiscard]] bool is_contiguous(MemoryFormat format) const;  // channels_last: false unless 4-d
  // channels_last where this tensor is it and not contiguous as well, else contiguous.
  [[nodiscard]] MemoryFormat suggest_memory_format() const {
    return get().contiguous ? MemoryFormat::contiguous : format_of_strides();
  }
  [[nodiscard]] std::uint32_t version() const { return get().storage->version.load(std::memory_order_acquire); }
  [[nodiscard]] bool shares_storage(const Tensor& other) const { return get().storage == other.get().storage; }

  // The first element on the host. Throws DTypeError when T is not the dtype, DeviceError unless on cpu.
  // For a non-contiguous tensor step with strides().
  template <Element T>
  [[nodiscard]] const T* data() const {
    check_host_access("data", dtype_of<T>);
    return reinterpret_cast<const T*>(impl_->storage->data) + impl_->offset;
  }
  // The same for writing; counts as a write by "mutable_data", so stale saved tensors are found.
  template <Element T>
  [[nodiscard]] T* mutable_data() {
    check_host_access("mutable_data", dtype_of<T>);
    impl_->storage->wrote("mutable_data");
    return reinterpret_cast<T*>(impl_->storage->data) + impl_->offset;
  }

  // Conversions. Differentiable: to, clone, contiguous. `contiguous` returns this tensor when it lies so already, `to`
  // when nothing changes. contiguous(channels_last) throws ShapeError unless 4-d. to(Device) throws UnsupportedError
  // from meta and for a device that the build lacks, DeviceError for one that the machine lacks.
  //
  // When to(Device) returns, this tensor may be written and the result read. With NonBlocking::yes the host does not
  // wait. Until the device's current stream has passed (Stream::synchronize, Event), a pinned tensor that goes to a
  // device must then not be written, and a result on cpu, which lies in page-locked memory, not be read. Both may be
  // released at any time.
  [[nodiscard]] Tensor to(Device device, NonBlocking non_blocking = NonBlocking::no,
                          std::source_location where = std::source_location::current()) const;
  [[nodiscard]] Tensor to(DType dtype) const;
  [[nodiscard]] Tensor clone() const;
  [[nodiscard]] Tensor contiguous() const { return contiguous(MemoryFormat::contiguous); }
  [[nodiscard]] Tensor contiguous(MemoryFormat format) const;
  [[nodiscard]] Tensor detach() const;  // same storage, no history
  // A copy in page-locked memory, which devices read without staging; this tensor, detached, when it is pinned already.
  // Throws DeviceError unless on cpu, UnsupportedError in a build without devices that launch kernels.
  [[nodiscard]] Tensor pin_memory() const;
  [[nodiscard]] bool is_pinned() const { return get().storage->is_pinned(); }

  // The single element as a C++ number; an integer T gets the nearest value that fits it, and 0 for NaN. Waits for the
  // device; `where` is for the message that says so while a graph is recorded. Throws ShapeError when numel() != 1,
  // UnsupportedError on meta.
  template <class T = double>
  [[nodiscard]] T item(std::source_location where = std::source_location::current()) const {
    const Scalar s = item_scalar(where);
    if constexpr (std::integral<T>)
      return s.to<T>();
    else
      return static_cast<T>(s.real());
  }
  // All elements in row-major order, on the host. Throws DTypeError when T is not the dtype, UnsupportedError on meta.
  template <Element T>
  [[nodiscard]] std::vector<T> to_vector(std::source_location where = std::source_location::current()) const {
    const detail::WaitsHere waits("to_vector", where);
    check_copy_to_host(dtype_of<T>);
    std::vector<T> out(static_cast<std::size_t>(numel()));
    if constexpr (std::same_as<T, bool>) {
      const Tensor host = to(Device::cpu()).contiguous();
      const bool* from = host.data<bool>();
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = from[i];
    } else {
      copy_to_host(out.data(), dtype_of<T>);
    }
    return out;
  }

  // x[i] is select(x, 0, i); x[Slice{1, 3}] and index({0, kEllipsis, Slice{1, 3}}) are views as Python's x[1:3] and
  // x[0, ..., 1:3], with derivatives. Throws IndexError for more entries than dimensions and for numbers out of range.
  // x[mask], x[places] and index({places, kEllipsis, mask}) copy by the function index (levin/index_ops.h), after the
  // views of numbers and slices, as in PyTorch.
  [[nodiscard]] Tensor operator[](std::int64_t i) const;
  [[nodiscard]] Tensor operator[](const Slice& elements) const;
  [[nodiscard]] Tensor operator[](const Tensor& places) const;
  [[nodiscard]] Tensor index(std::initializer_list<Index> at) const;

  // The ops of levin/ops.h of the same names, with this tensor as x.
  [[nodiscard]] Tensor view(Dims shape) const;
  [[nodiscard]] Tensor reshape(Dims shape) const;
  [[nodiscard]] Tensor flatten(std::int64_t begin = 0, std::int64_t end = -1) const;
  [[nodiscard]] Tensor unflatten(std::int64_t dim, Dims sizes) const;
  [[nodiscard]] Tensor squeeze(Dims dims = {}) const;
  [[nodiscard]] Tensor unsqueeze(std::int64_t dim) const;
  [[nodiscard]] Tensor transpose(std::int64_t dim0, std::int64_t dim1) const;
  [[nodiscard]] Tensor t() const;
  [[nodiscard]] Tensor permute(Dims order) const;
  [[nodiscard]] Tensor movedim(Dims source, Dims destination) const;
  [[nodiscard]] Tensor expand(const Shape& shape) const;
  [[nodiscard]] Tensor select(std::int64_t dim, std::int64_t i) const;
  [[nodiscard]] Tensor slice(std::int64_t dim, std::int64_t begin, std::int64_t end, std::int64_t step = 1) const;
  [[nodiscard]] Tensor narrow(std::int64_t dim, std::int64_t begin, std::int64_t length) const;
  [[nodiscard]] Tensor diagonal(std::int64_t offset = 0, std::int64_t dim0 = 0, std::int64_t dim1 = 1) const;
  [[nodiscard]] std::vector<Tensor> split(std::int64_t size, std::int64_t dim = 0) const;
  [[nodiscard]] std::vector<Tensor> chunk(std::int64_t chunks, std::int64_t dim = 0) const;
  [[nodiscard]] std::vector<Tensor> unbind(std::int64_t dim = 0) const;
  [[nodiscard]] Tensor repeat(Dims times) const;
  [[nodiscard]] Tensor tile(Dims times) const;
  [[nodiscard]] Tensor flip(Dims dims) const;
  [[nodiscard]] Tensor roll(Dims shifts, Dims dims = {}) const;
  [[nodiscard]] Tensor tril(std::int64_t diagonal = 0) const;
  [[nodiscard]] Tensor triu(std::int64_t diagonal = 0) const;
  [[nodiscard]] Tensor gather(std::int64_t dim, const Tensor& index) const;
  [[nodiscard]] Tensor scatter(std::int64_t dim, const Tensor& index, const Tensor& src) const;
  [[nodiscard]] Tensor scatter_add(std::int64_t dim, const Tensor& index, const Tensor& src) const;
  [[nodiscard]] Tensor index_select(std::int64_t dim, const Tensor& index) const;
  [[nodiscard]] Tensor masked_fill(const Tensor& mask, Scalar value) const;
  [[nodiscard]] Tensor masked_fill(const Tensor& mask, const Tensor& value) const;
  [[nodiscard]] Tensor masked_select(const Tensor& mask) const;
  [[nodiscard]] Tensor nonzero() const;
  [[nodiscard]] ValuesIndices sort(std::int64_t dim = -1, Order order = Order::ascending) const;
  [[nodiscard]] Tensor argsort(std::int64_t dim = -1, Order order = Order::ascending) const;
  [[nodiscard]] ValuesIndices topk(std::int64_t k, std::int64_t dim = -1, Order order = Order::descending) const;
  [[nodiscard]] Tensor sum(Dims dims = {}, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor mean(Dims dims = {}, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor prod(Dims dims = {}, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor amax(Dims dims = {}, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor amin(Dims dims = {}, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor var(Dims dims = {}, double correction = 1, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor std(Dims dims = {}, double correction = 1, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor norm(double p = 2, Dims dims = {}, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor logsumexp(Dims dims = {}, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor any(Dims dims = {}, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor all(Dims dims = {}, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor argmax(std::optional<std::int64_t> dim = {}, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor argmin(std::optional<std::int64_t> dim = {}, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor max() const;
  [[nodiscard]] Tensor min() const;
  [[nodiscard]] Tensor median() const;
  [[nodiscard]] ValuesIndices max(std::int64_t dim, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] ValuesIndices min(std::int64_t dim, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] ValuesIndices median(std::int64_t dim, KeepDim keep = KeepDim::no) const;
  [[nodiscard]] Tensor cumsum(std::int64_t dim) const;
  [[nodiscard]] Tensor cumprod(std::int64_t dim) const;
  [[nodiscard]] Tensor softmax(std::int64_t dim) const;
  [[nodiscard]] Tensor log_softmax(std::int64_t dim) const;
  [[nodiscard]] Tensor matmul(const Tensor& other) const;
  [[nodiscard]] Tensor pow(const Tensor& y) const;
  [[nodiscard]] Tensor pow(Scalar y) const;
  [[nodiscard]] Tensor clamp(std::optional<Scalar> low, std::optional<Scalar> high) const;
  [[nodiscard]] Tensor abs() const;
  [[nodiscard]] Tensor sign() const;
  [[nodiscard]] Tensor square() const;
  [[nodiscard]] Tensor sqrt() const;
  [[nodiscard]] Tensor rsqrt() const;
  [[nodiscard]] Tensor reciprocal() const;
  [[nodiscard]] Tensor exp() const;
  [[nodiscard]] Tensor expm1() const;
  [[nodiscard]] Tensor log() const;
  [[nodiscard]] Tensor log1p() const;
  [[nodiscard]] Tensor log2() const;
  [[nodiscard]] Tensor sin() const;
  [[nodiscard]] Tensor cos() const;
  [[nodiscard]] Tensor tanh() const;
  [[nodiscard]] Tensor erf() const;
  [[nodiscard]] Tensor floor() const;
  [[nodiscard]] Tensor ceil() const;
  [[nodiscard]] Tensor round() const;
  [[nodiscard]] Tensor relu() const;
  [[nodiscard]] Tensor sigmoid() const;
  [[nodiscard]] Tensor isnan() const;
  [[nodiscard]] Tensor isinf() const;
  [[nodiscard]] Tensor isfinite() const;

  // Autograd (levin/autograd.h). Ops on a leaf are recorded after requires_grad_(true).
  [[nodiscard]] bool requires_grad() const;
  Tensor& requires_grad_(bool on = true);  // throws AutogradError on a non-leaf, DTypeError unless floating
  [[nodiscard]] bool is_leaf() const;
  // Of a leaf; undefined until a backward wrote it. A gradient of rows (row_grad) becomes dense.
  [[nodiscard]] Tensor grad() const;
  void set_grad(Tensor grad);  // undefined clears it; throws ShapeError, DTypeError, DeviceError on a mismatch

  // For Levin's layers and for ops written outside: the parts behind the handle.
  [[nodiscard]] detail::TensorImpl& get() const {
    if (!impl_) throw_undefined();
    return *impl_;
  }
  [[nodiscard]] detail::TensorImpl* impl() const { return impl_.get(); }
  explicit Tensor(detail::Ref<detail::TensorImpl> impl) : impl_(std::move(impl)) {}

 private:
  [[noreturn]] static void throw_undefined();
  [[nodiscard]] MemoryFormat format_of_strides() const;  // of a tensor that is not contiguous
  void check_host_access(const char* what, DType asked) const;
  [[nodiscard]] Scalar item_scalar(const std::source_location& where) const;
  void check_copy_to_host(DType asked) const;
  void copy_to_host(void* out, DType asked) const;
  detail::Ref<detail::TensorImpl> impl_;
};

// Elements, and their i64 positions along the dimension.
struct ValuesIndices {
  Tensor values, indices;
};

// What Tensor::index takes for each dimension: a number, which takes the dimension away, a Slice, or
// - a tensor: positions, i64, or a bool mask, which has the sizes of as many dimensions as it has itself;
// - kNewAxis: a new dimension of size 1 (Python's None);
// - kEllipsis: all of as many dimensions as the others leave (Python's ...), once.
struct NewAxis {};
struct Ellipsis {};
inline constexpr NewAxis kNewAxis{};
inline constexpr Ellipsis kEllipsis{};
struct Index {
  enum class Kind : std::uint8_t { number, slice, tensor, new_axis, ellipsis };
  Kind kind;
  std::int64_t number = 0;
  Slice slice{};
  Tensor tensor{};

  template <std::integral I>
  Index(I i) : kind(Kind::number), number(i) {}
  Index(const Slice& s) : kind(Kind::slice), slice(s) {}
  Index(const Tensor& t) : kind(Kind::tensor), tensor(t) {}
  Index(NewAxis) : kind(Kind::new_axis) {}
  Index(Ellipsis) : kind(Kind::ellipsis) {}
};

// A gradient that only some rows of a table [N, ...] received: that of row rows[k] is values[k], that of others is 0.
struct RowGradient {
  Tensor rows;    // i64 [n], each once; on a device there is a -1, which names no row, for each that was named again
  Tensor values;  // [n, ...], 0 beside -1
};
// The gradient of a leaf where backward gave rows (embedding with EmbeddingGrad::rows); undefined tensors where there
// is none, and where the gradient is dense. grad(), a hook of the leaf, another op's gradient and strategies of several
// ranks make it dense. optim::SGD, Adagrad and SparseAdam, clipping and loss scaling read and write the rows alone.
[[nodiscard]] LEVIN_API RowGradient row_grad(const Tensor& leaf);
// The leaf's gradient becomes `gradient`, whose rows may come in any order and more than once: their sum counts.
// Undefined tensors clear it. Throws AutogradError on a non-leaf, ShapeError, DTypeError, DeviceError, and on the CPU
// IndexError for a row outside.
LEVIN_API void set_row_grad(const Tensor& leaf, RowGradient gradient);
// Whether the leaf has a gradient, dense or of rows, which this leaves as it is.
[[nodiscard]] LEVIN_API bool has_grad(const Tensor& leaf);

// Uninitialised memory. Throws ShapeError, OutOfMemoryError.
[[nodiscard]] LEVIN_API Tensor empty(const Shape& shape, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor empty(const Shape& shape, Device device, DType dtype, MemoryFormat format);
[[nodiscard]] LEVIN_API Tensor empty_like(const Tensor& x);  // same shape, dtype, device, suggest_memory_format()
[[nodiscard]] LEVIN_API Tensor empty_like(const Tensor& x, DType dtype);
// A view of x's storage; unchecked but for the storage's end (ShapeError). For view ops and for embedders.
[[nodiscard]] LEVIN_API Tensor as_strided(const Tensor& x, const Shape& shape, const Strides& strides,
                                          std::int64_t offset);

// Host data as a tensor on cpu without a copy. `owner` is kept until the last view is gone; `source` names the memory
// in messages. Throws ShapeError when data is null and the shape is not empty, or data is not aligned to its elements.
[[nodiscard]] LEVIN_API Tensor from_blob(void* data, const Shape& shape, DType dtype, std::shared_ptr<void> owner,
                                         std::string source);
namespace detail {
Tensor empty_pinned(const Shape& shape, DType dtype,  // on cpu, in page-locked memory
                    MemoryFormat format = MemoryFormat::contiguous);
LEVIN_API Tensor copy_from_host(const void* data, std::size_t count, const Shape& shape, Device device, DType dtype,
                                const std::source_location& where);
}  // namespace detail
// A copy of host values in row-major order. Throws ShapeError when the count is not shape.numel().
template <Element T>
[[nodiscard]] Tensor from_data(std::span<const T> values, const Shape& shape, Device device,
                               std::source_location where = std::source_location::current()) {
  return detail::copy_from_host(values.data(), values.size(), shape, device, dtype_of<T>, where);
}
template <Element T>
requires(!std::same_as<T, bool>) [[nodiscard]] Tensor
    from_data(const std::vector<T>& values, const Shape& shape, Device device,
              std::source_location where = std::source_location::current()) {
  return from_data(std::span<const T>(values), shape, device, where);
}
// A short list: tensor({1.f, 2.f, 3.f}, Device::cpu()) has shape [3].
template <Element T>
[[nodiscard]] Tensor tensor(std::initializer_list<T> values, Device device,
                            std::source_location where = std::source_location::current()) {
  return from_data(std::span<const T>(values.begin(), values.size()), Shape{static_cast<std::int64_t>(values.size())},
                   device, where);
}

// For people: values in rows, long ones shortened, then shape, dtype and device. Waits for the device.
[[nodiscard]] LEVIN_API std::string to_string(const Tensor& x);
LEVIN_API std::ostream& operator<<(std::ostream& out, const Tensor& x);
// One line for messages: "f32 [2, 3] on cpu".
[[nodiscard]] LEVIN_API std::string text(const Tensor& x);

namespace detail {
[[noreturn]] LEVIN_API void fail_undefined(
    const char* op);  // the StateError of an op that was given an undefined tensor
}

// What an optimizer sees of a parameter. `value` points into its owner, so that a later to(device) is seen.
struct ParamRef {
  Tensor* value = nullptr;
  std::string name;
  const void* owner = nullptr;  // opened by nn and train alone
};

}  // namespace levin
