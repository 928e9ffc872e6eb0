#include "kernels/lib/cudnn_graph.h"

#include <cuda_runtime.h>

#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <source_location>
#include <string>

#include "levin/error.h"
#include "levin/tensor.h"
#include "tensor/device/runtime.h"

namespace levin::kernels::lib::cudnn {
namespace {

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

constexpr std::int64_t kAlignment = 16;  // bytes: a plan serves all operands of its shapes

Descriptor tensor(std::int64_t uid, cudnnDataType_t type, std::span<const std::int64_t> sizes,
                  std::span<const std::int64_t> strides) {
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, sizes)
      .set(CUDNN_ATTR_TENSOR_STRIDES, strides);
  return d;
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
// engine says in notes where it differs: sums whose order varies, inputs rounded before they are multiplied (tensor
// cores do that to f32 numbers, to TF32: taken where the process allowed it), partial sums in less than f32, and
// Winograd's large tiles, whose error grows with the tile.
bool taken(const Descriptor& config, const Call& call) {
  const Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  (void)config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  const std::int64_t n =
      engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
  return std::none_of(notes, notes + n, [&](cudnnBackendNumericalNote_t note) {
    return (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && call.dtype == DType::f32 && !call.tf32) ||
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

std::string last_error() {
  char text[2048] = {};
  cudnnGetLastErrorString(text, sizeof text);
  return text;
}

// Up to `most` plans, best first as the heuristics have it. `report` may be null.
std::vector<Plan> make_plans(const Call& call, const Target& target, std::size_t most, CudnnPlans* report) {
  constexpr std::int64_t kAsked = 64;
  constexpr std::int64_t kMostWorkspace = std::int64_t{1} << 30;
  const Descriptor graph = call.graph(target);
  std::vector<Plan> plans;
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    if (!plans.empty() || (report && report->unloaded > 0)) break;  // fallbacks are slow
    std::vector<Descriptor> configs;
    try {
      configs = candidates(graph, target, mode, kAsked);
    } catch (const Refused&) {}
    for (const Descriptor& config : configs) {
      if (plans.size() + std::size_t(report ? report->unloaded : 0) == most) break;
      if (report) ++report->engines;
      try {
        if (!taken(config, call)) {
          if (report) ++report->refused;
          continue;
        }
        Plan plan{Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)};
        target.put(plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
        plan.descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config).finish();
        (void)plan.descriptor.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &plan.workspace);
        if (plan.workspace <= kMostWorkspace) plans.push_back(std::move(plan));
      } catch (const Refused&) {  // a candidate need not work
        if (report && last_error().find("cuLibraryLoadData") != std::string::npos) ++report->unloaded;
      }
    }
  }
  return plans;
}

// ---- Running

void execute(cudnnHandle_t handle, const Plan& plan, const Call& call, void* workspace) {
  const auto n = static_cast<std::int64_t>(call.uids.size());
  try {
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, call.uids.data())
        .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, call.data.data())
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
float time_of(cudnnHandle_t handle, const Plan& plan, const Call& call, Stream stream) {
  float best = std::numeric_limits<float>::infinity();
  Tensor workspace;
  try {
    workspace = workspace_of(plan, stream.device());
  } catch (const OutOfMemoryError&) { return best; }
  execute(handle, plan, call, begin_of(workspace));  // loads the kernels
  for (int i = 0; i < 3; ++i) {
    Event start(stream.device(), EnableTiming::yes), end(stream.device(), EnableTiming::yes);
    start.record(stream);
    execute(handle, plan, call, begin_of(workspace));
    end.record(stream);
    end.synchronize();
    best = std::min(best, static_cast<float>(end.milliseconds_since(start)));
  }
  return best;
}

// A later candidate must be clearly faster: what is close is decided by the heuristic, the same in every process.
constexpr float kClearly = 0.95f;

Plan choose(const Call& call, cudnnHandle_t handle, Stream stream, EngineChoice by) {
  constexpr std::size_t kTimed = 4;
  std::vector<Plan> plans;
  try {
    plans = make_plans(call, {.handle = handle}, by == EngineChoice::timed ? kTimed : 1, nullptr);
  } catch (const Refused&) {}
  if (plans.empty()) return {};
  std::size_t best = 0;
  if (plans.size() > 1) {
    float least = time_of(handle, plans[0], call, stream);
    for (std::size_t i = 1; i < plans.size(); ++i) {
      const float time = time_of(handle, plans[i], call, stream);
      if (time < kClearly * least) least = time, best = i;
    }
  }
  return std::move(plans[best]);
}

// Made on first use and kept until the process ends: the CUDA runtime may be gone before static objects are.
struct Cache {
  std::mutex mutex;
  std::map<int, cudnnHandle_t> handles;
  PlansByShape<Plan> plans;
};
Cache& cache() {
  static Cache* const c = new Cache;
  return *c;
}

}  // namespace

cudnnDataType_t type_of(DType dtype) {
  if (dtype == DType::f16) return CUDNN_DATA_HALF;
  if (dtype == DType::bf16) return CUDNN_DATA_BFLOAT16;
  return CUDNN_DATA_FLOAT;
}

Descriptor memory(std::int64_t uid, cudnnDataType_t type, std::span<const std::int64_t> sizes,
                  std::span<const std::int64_t> strides) {
  return tensor(uid, type, sizes, strides).finish();
}
Descriptor passing(std::int64_t uid, cudnnDataType_t type, std::span<const std::int64_t> sizes,
                   std::span<const std::int64_t> strides) {
  return tensor(uid, type, sizes, strides).set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true).finish();
}
Descriptor number(std::int64_t uid, int rank) {
  const std::array<std::int64_t, kMaxRank> ones{1, 1, 1, 1, 1, 1, 1, 1};
  const auto dims = std::span(ones).first(static_cast<std::size_t>(rank));
  return tensor(uid, CUDNN_DATA_FLOAT, dims, dims)
      .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true)
      .finish();
}

Descriptor pointwise(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor* b, const Descriptor& y) {
  Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .finish();
  Descriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  if (b) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  return std::move(op).finish();
}

Descriptor graph_of(std::span<const Descriptor> operations, const Target& target) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& d : operations) raw.push_back(d.raw());
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::int64_t(raw.size()), raw.data());
  if (target.handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  return graph.finish();
}

bool run(const Call& call, EngineChoice by, Stream stream) {
  if (by == EngineChoice::own) return false;
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

  std::vector<std::int64_t> key = call.key;
  key.insert(key.end(), {std::int64_t(by), std::int64_t(call.tf32), std::int64_t(device)});
  const auto handle_on_stream = [&] {
    cudnnHandle_t& handle = c.handles[device];
    if (!handle) check(cudnnCreate(&handle), "cudnnCreate");
    check(cudnnSetStream(handle, static_cast<cudaStream_t>(stream.handle())), "cudnnSetStream");
    return handle;
  };
  const auto make = [&] { return choose(call, handle_on_stream(), stream, by); };
  const Plan* const plan = c.plans.plan_for(key, is_capturing(stream.device()), make, call.said);
  if (!plan) return false;
  const Tensor workspace = workspace_of(*plan, stream.device());
  try {
    execute(handle_on_stream(), *plan, call, begin_of(workspace));
  } catch (const CudaError& e) {
    if (!is_capturing(stream.device())) throw;
    fail<CaptureError>(e.what());
  }
  levin::detail::launched(stream, std::source_location::current());
  return true;
}

CudnnPlans plans_for(const Call& call, std::string_view device, std::size_t most) {
  CudnnPlans report;
  try {
    Descriptor described(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    described
        .set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, std::int64_t(device.size()), device.data())
        .finish();
    const std::vector<Plan> plans = make_plans(call, {.described = &described}, most, &report);
    report.plans = static_cast<int>(plans.size());
    if (!plans.empty()) report.workspace = plans.front().workspace;
  } catch (const Refused& refused) { report.why = cudnnGetErrorString(refused.status); }
  if (report.plans + report.unloaded == 0) report.why += last_error();
  return report;
}

}  // namespace levin::kernels::lib::cudnn
