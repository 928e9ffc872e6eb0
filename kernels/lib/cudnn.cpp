// Convolutions by cuDNN's graphs. Written against its C interface; cudnn_graph.h calls a graph's nodes operations.
#include <cuda_runtime.h>
#include <cudnn_graph.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <source_location>
#include <span>
#include <utility>
#include <vector>

#include "kernels/conv_library.h"
#include "levin/error.h"
#include "tensor/runtime.h"

namespace levin::kernels::lib {
namespace {

// ---- Descriptors

// What cuDNN does not take. Never leaves this file: the caller has kernels of its own.
struct Refused {
  cudnnStatus_t status;
};
void need(cudnnStatus_t status) {
  if (status != CUDNN_STATUS_SUCCESS) throw Refused{status};
}
void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) [[likely]]
    return;
  fail<CudaError>("cudnn: ", call, " failed: ", cudnnGetErrorString(status));
}
void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) [[likely]]
    return;
  (void)cudaGetLastError();
  fail<CudaError>("cudnn: ", call, " failed: ", cudaGetErrorString(code));
}

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type) { need(cudnnBackendCreateDescriptor(type, &raw_)); }
  Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Descriptor() {
    if (raw_) (void)cudnnBackendDestroyDescriptor(raw_);
  }

  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t n, const void* v) {
    need(cudnnBackendSetAttribute(raw_, name, type, n, v));
    return *this;
  }
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const auto& value) {
    return set(name, type, 1, &value);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, std::span<const std::int64_t> values) {
    return set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& part) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, part.raw_);
  }
  Descriptor&& finish() {
    need(cudnnBackendFinalize(raw_));
    return std::move(*this);
  }
  // How many values were read, at most n.
  std::int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t n, void* v) const {
    std::int64_t count = 0;
    need(cudnnBackendGetAttribute(raw_, name, type, n, &count, v));
    return std::min(n, count);
  }
  [[nodiscard]] cudnnBackendDescriptor_t raw() const { return raw_; }

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
};

// Who compiles plans: a handle of a device, or the description of one that need not be here.
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* described = nullptr;

  void put(Descriptor& into, cudnnBackendAttributeName_t handle_name,
           cudnnBackendAttributeName_t described_name) const {
    if (described)
      into.set(described_name, *described);
    else
      into.set(handle_name, CUDNN_TYPE_HANDLE, handle);
  }
};

// ---- The graph of a convolution

enum Uid : std::int64_t { kX = 1, kW, kY, kBias, kProduct };

cudnnDataType_t type_of(DType dtype) {
  if (dtype == DType::f16) return CUDNN_DATA_HALF;
  if (dtype == DType::bf16) return CUDNN_DATA_BFLOAT16;
  return CUDNN_DATA_FLOAT;
}

Descriptor tensor(Uid uid, cudnnDataType_t type, std::span<const std::int64_t> sizes,
                  std::span<const std::int64_t> strides) {
  constexpr std::int64_t kAlignment = 16;
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, std::int64_t{uid})
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, sizes)
      .set(CUDNN_ATTR_TENSOR_STRIDES, strides);
  return d;
}
Descriptor tensor(Uid uid, const LibraryConv& c, const LibraryConv::Operand& o) {
  return tensor(uid, type_of(c.dtype), o.sizes, o.strides).finish();
}

// The names of an operation's attributes, which differ from pass to pass.
struct Names {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t form, x, w, y, alpha, beta;
};
Names names_of(ConvPass pass) {
  switch (pass) {
    case ConvPass::input_gradient:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case ConvPass::weight_gradient:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
    case ConvPass::forward: break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
}

Descriptor graph_of(const LibraryConv& c, const Target& target) {
  Descriptor form(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  form.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION)
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, c.padding)
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, c.padding)
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, c.dilation)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, c.stride)
      .finish();
  const Descriptor x = tensor(kX, c, c.x), w = tensor(kW, c, c.w), y = tensor(kY, c, c.y);
  Descriptor product;  // what a bias is added to: in f32 and never in memory
  if (c.bias) {
    product = tensor(kProduct, CUDNN_DATA_FLOAT, c.y.sizes, c.y.strides);
    product.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true).finish();
  }
  const Names names = names_of(c.pass);
  const float one = 1, zero = 0;
  Descriptor conv(names.type);
  conv.set(names.form, form)
      .set(names.x, x)
      .set(names.w, w)
      .set(names.y, c.bias ? product : y)
      .set(names.alpha, CUDNN_TYPE_FLOAT, one)
      .set(names.beta, CUDNN_TYPE_FLOAT, zero)
      .finish();
  std::vector<cudnnBackendDescriptor_t> operations{conv.raw()};
  Descriptor bias, sum, add;
  if (c.bias) {
    const std::int64_t channels = c.y.sizes[1];
    bias = tensor(kBias, type_of(c.dtype), std::array<std::int64_t, 4>{1, channels, 1, 1},
                  std::array<std::int64_t, 4>{channels, 1, channels, channels})
               .finish();
    sum = Descriptor(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    sum.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, CUDNN_POINTWISE_ADD)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .finish();
    add = Descriptor(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    add.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, sum)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, product)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, bias)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y)
        .finish();
    operations.push_back(add.raw());
  }
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::int64_t(operations.size()),
            operations.data());
  if (target.handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  return graph.finish();
}

// ---- Engines and plans

// The heuristic's candidates, best first.
std::vector<Descriptor> candidates(const Descriptor& graph, const Target& target, cudnnBackendHeurMode_t mode,
                                   std::int64_t most) {
  Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (target.described) heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.described);
  heuristic.finish();
  std::vector<Descriptor> found;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < most; ++i) {
    found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(found.back().raw());
  }
  const std::int64_t n = heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, raw.data());
  found.resize(static_cast<std::size_t>(n));
  return found;
}

// Note [Engines that are taken]
// Levin's promise is the same bits each run, f32 numbers multiplied as they are, and sums of 16-bit numbers in f32. An
// engine says in notes where it differs: sums whose order varies, inputs rounded before they are multiplied (tensor cores
// do that to f32 numbers, to TF32), partial sums in less than f32, and Winograd's large tiles, whose error grows with the
// tile.
bool taken(const Descriptor& config, DType dtype) {
  const Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  (void)config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  const std::int64_t n =
      engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
  return std::none_of(notes, notes + n, [&](cudnnBackendNumericalNote_t note) {
    return (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && dtype == DType::f32) ||
           note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC || note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
           note == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION || note == CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 ||
           note == CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
  });
}

struct Plan {
  Descriptor descriptor;
  std::int64_t workspace = 0;
  [[nodiscard]] bool made() const { return descriptor.raw() != nullptr; }
};

// Up to `most` plans, best first as the heuristics have it. `report` may be null.
std::vector<Plan> make_plans(const LibraryConv& c, const Target& target, std::size_t most, CudnnPlans* report) {
  constexpr std::int64_t kAsked = 64;
  constexpr std::int64_t kMostWorkspace = std::int64_t{1} << 30;
  const Descriptor graph = graph_of(c, target);
  std::vector<Plan> plans;
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    if (!plans.empty()) break;  // fallbacks are slow
    std::vector<Descriptor> configs;
    try {
      configs = candidates(graph, target, mode, kAsked);
    } catch (const Refused&) {}
    for (const Descriptor& config : configs) {
      if (plans.size() == most) break;
      if (report) ++report->engines;
      try {
        if (!taken(config, c.dtype)) {
          if (report) ++report->refused;
          continue;
        }
        Plan plan{Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)};
        target.put(plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
        plan.descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config).finish();
        (void)plan.descriptor.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &plan.workspace);
        if (plan.workspace <= kMostWorkspace) plans.push_back(std::move(plan));
      } catch (const Refused&) {}  // a candidate need not work
    }
  }
  return plans;
}

// ---- Running

void run(cudnnHandle_t handle, const Plan& plan, const LibraryConv& c, void* workspace) {
  const std::int64_t uids[] = {kX, kW, kY, kBias};
  void* const data[] = {c.x.data, c.w.data, c.y.data, const_cast<void*>(c.bias)};
  const std::int64_t n = c.bias ? 4 : 3;
  try {
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids)
        .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data)
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
        .finish();
    check(cudnnBackendExecute(handle, plan.descriptor.raw(), pack.raw()), "cudnnBackendExecute");
  } catch (const Refused& refused) { check(refused.status, "the variant pack"); }
}

// Memory of the stream that is current: it may be given to later work as soon as this call returns.
Tensor workspace_of(const Plan& plan, Device device) {
  return plan.workspace > 0 ? empty({plan.workspace}, device, DType::u8) : Tensor();
}
void* begin_of(const Tensor& workspace) { return workspace.defined() ? workspace.get().storage->data : nullptr; }

// The shortest of a few runs, in ms; infinity where there is no memory for one. Waits for the device.
float time_of(cudnnHandle_t handle, const Plan& plan, const LibraryConv& c, Stream stream) {
  float best = std::numeric_limits<float>::infinity();
  Tensor workspace;
  try {
    workspace = workspace_of(plan, stream.device());
  } catch (const OutOfMemoryError&) { return best; }
  run(handle, plan, c, begin_of(workspace));  // loads the kernels
  for (int i = 0; i < 3; ++i) {
    Event start(stream.device()), end(stream.device());
    start.record(stream);
    run(handle, plan, c, begin_of(workspace));
    end.record(stream);
    end.synchronize();
    best = std::min(best, static_cast<float>(end.milliseconds_since(start)));
  }
  return best;
}

// A later candidate must be clearly faster: what is close is decided by the heuristic, the same in every process.
constexpr float kClearly = 0.95f;

Plan choose(const LibraryConv& c, cudnnHandle_t handle, Stream stream, ConvBy by) {
  constexpr std::size_t kTimed = 4;
  std::vector<Plan> plans;
  try {
    plans = make_plans(c, {.handle = handle}, by == ConvBy::timed ? kTimed : 1, nullptr);
  } catch (const Refused&) {}
  if (plans.empty()) return {};
  std::size_t best = 0;
  if (plans.size() > 1) {
    float least = time_of(handle, plans[0], c, stream);
    for (std::size_t i = 1; i < plans.size(); ++i) {
      const float time = time_of(handle, plans[i], c, stream);
      if (time < kClearly * least) least = time, best = i;
    }
  }
  return std::move(plans[best]);
}

using Key = std::array<std::int64_t, 34>;
Key key_of(const LibraryConv& c, int device, ConvBy by) {
  Key key{};
  std::size_t at = 0;
  const auto add = [&](std::span<const std::int64_t> values) {
    for (const std::int64_t v : values) key[at++] = v;
  };
  add(std::array{std::int64_t(c.pass), std::int64_t(c.dtype), std::int64_t(c.bias != nullptr), std::int64_t(device)});
  for (const auto* o : {&c.x, &c.w, &c.y}) add(o->sizes), add(o->strides);
  add(c.stride), add(c.padding), add(c.dilation);
  static_assert(4 + 3 * 8 + 6 == std::tuple_size_v<Key>);
  key[0] = key[0] * 4 + std::int64_t(by);
  return key;
}

// Made on first use and kept until the process ends: the CUDA runtime may be gone before static objects are.
struct Cache {
  std::mutex mutex;
  std::map<int, cudnnHandle_t> handles;
  std::map<Key, Plan> plans;
};
Cache& cache() {
  static Cache* const c = new Cache;
  return *c;
}

}  // namespace

bool cudnn_convolve(const LibraryConv& conv, Stream stream) {
  const ConvBy by = conv_by();
  if (by == ConvBy::own) return false;
  const int device = stream.device().index();
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);  // a handle serves one thread at a time
  int before = 0;
  check(cudaGetDevice(&before), "cudaGetDevice");
  if (before != device) check(cudaSetDevice(device), "cudaSetDevice");
  struct Back {
    int before, now;
    ~Back() {
      if (before != now) (void)cudaSetDevice(before);
    }
  } const back{before, device};

  const Key key = key_of(conv, device, by);
  auto at = c.plans.find(key);
  // Making a plan loads kernels and timing waits, which a recording forbids. Its warm-up makes the plans.
  if (at == c.plans.end() && is_capturing(stream.device())) return false;
  cudnnHandle_t& handle = c.handles[device];
  if (!handle) check(cudnnCreate(&handle), "cudnnCreate");
  check(cudnnSetStream(handle, static_cast<cudaStream_t>(stream.handle())), "cudnnSetStream");
  if (at == c.plans.end()) at = c.plans.emplace(key, choose(conv, handle, stream, by)).first;
  const Plan& plan = at->second;
  if (!plan.made()) return false;
  const Tensor workspace = workspace_of(plan, stream.device());
  run(handle, plan, conv, begin_of(workspace));
  levin::detail::launched(stream, std::source_location::current());
  return true;
}

CudnnPlans cudnn_plans(const LibraryConv& conv, std::string_view device) {
  CudnnPlans report;
  try {
    Descriptor described(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    described
        .set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, std::int64_t(device.size()), device.data())
        .finish();
    constexpr std::size_t kAll = 64;
    const std::vector<Plan> plans = make_plans(conv, {.described = &described}, kAll, &report);
    report.plans = static_cast<int>(plans.size());
    if (!plans.empty()) report.workspace = plans.front().workspace;
  } catch (const Refused& refused) { report.why = cudnnGetErrorString(refused.status); }
  if (report.plans == 0) {
    char text[2048] = {};
    cudnnGetLastErrorString(text, sizeof text);
    report.why += text;
  }
  return report;
}

}  // namespace levin::kernels::lib
