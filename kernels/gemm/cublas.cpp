// Matrix products by cuBLASLt.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <source_location>
#include <vector>

#include "kernels/gemm/gemm_library.h"
#include "levin/engines.h"
#include "levin/error.h"
#include "levin/stream.h"
#include "tensor/device/runtime.h"

namespace levin::kernels::lib {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  fail<CudaError>("cublas: ", call, " failed: ", cublasLtGetStatusString(status));
}

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::f64) return CUDA_R_64F;
  if (dtype == DType::f16) return CUDA_R_16F;
  if (dtype == DType::bf16) return CUDA_R_16BF;
  return CUDA_R_32F;
}

// One shape's descriptors and algorithm.
struct Plan {
  cublasLtMatmulDesc_t form = nullptr;
  cublasLtMatrixLayout_t x = nullptr, y = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;
};

cublasLtEpilogue_t epilogue_of(const LibraryProduct& p) {
  switch (p.epilogue) {
    case LibraryProduct::Epilogue::bias: return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case LibraryProduct::Epilogue::gelu:
      if (p.aux) return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
      return p.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case LibraryProduct::Epilogue::y_sums: return CUBLASLT_EPILOGUE_BGRADB;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

template <class V>
void set(cublasLtMatmulDesc_t form, cublasLtMatmulDescAttributes_t what, const V& value) {
  check(cublasLtMatmulDescSetAttribute(form, what, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}

// What an epilogue adds, or the sums that it makes, go by one name in the library.
void set_pointers(cublasLtMatmulDesc_t form, const LibraryProduct& p) {
  if (p.bias || p.sums) set(form, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.sums ? p.sums : p.bias);
  if (p.aux) set(form, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux);
}

cublasLtMatrixLayout_t layout(const LibraryProduct& p, int64_t rows, int64_t cols, int64_t ld, int64_t apart) {
  cublasLtMatrixLayout_t l = nullptr;
  check(cublasLtMatrixLayoutCreate(&l, type_of(p.dtype), uint64_t(rows), uint64_t(cols), ld),
        "cublasLtMatrixLayoutCreate");
  const auto batches = int32_t(p.batches);
  check(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof batches),
        "cublasLtMatrixLayoutSetAttribute");
  check(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &apart, sizeof apart),
        "cublasLtMatrixLayoutSetAttribute");
  return l;
}

// Sums are f32. f32 numbers are multiplied as they are unless the process allowed TF32: what PyTorch does by default.
cublasComputeType_t compute_type(const LibraryProduct& p) {
  if (p.dtype == DType::f64) return CUBLAS_COMPUTE_64F;
  const bool rounded = p.dtype == DType::f32 && allow_tf32(EngineFamily::product) == AllowTf32::yes;
  return rounded ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// Note [Sums of a cut product]
// The library cuts a product with few tiles and a long depth, such as a weight's gradient, along its depth and adds the
// parts. It knows three ways: in d itself, and from the workspace in the type of the sums or in that of d. In d and in
// d's type the sums of 16-bit numbers would be rounded to 16 bits once a part, and leave f16's range where the product
// does not. Levin promises sums of 16-bit numbers in f32, so the parts lie in the workspace in the type of the sums,
// and a step of its own adds them in one order: results repeat. A product of f32 or f64 loses nothing, because there
// both types are one; Levin asks for the same there, since the library does not specify in which order it adds in d.
constexpr std::uint32_t kSumsOfParts = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

// What the heuristic may choose from.
class Wishes {
 public:
  // The bytes that divide the addresses of x, y and d. A plan serves other tensors of its shape as well, so its key
  // holds them.
  using Alignments = std::array<int64_t, 3>;

  explicit Wishes(const Alignments& a) {
    check(cublasLtMatmulPreferenceCreate(&raw_), "cublasLtMatmulPreferenceCreate");
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(kCublasWorkspace));
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kSumsOfParts);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(a[0]));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(a[1]));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(a[2]));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(a[2]));
  }
  Wishes(const Wishes&) = delete;
  Wishes& operator=(const Wishes&) = delete;
  ~Wishes() { (void)cublasLtMatmulPreferenceDestroy(raw_); }
  [[nodiscard]] cublasLtMatmulPreference_t raw() const { return raw_; }

 private:
  template <class V>
  void set(cublasLtMatmulPreferenceAttributes_t what, V value) {
    check(cublasLtMatmulPreferenceSetAttribute(raw_, what, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  }
  cublasLtMatmulPreference_t raw_ = nullptr;
};

Wishes::Alignments alignments_of(const LibraryProduct& p) {
  return {library_alignment(p.x.data, p.x.ld, p.x.apart, p.dtype),
          library_alignment(p.y.data, p.y.ld, p.y.apart, p.dtype), library_alignment(p.d, p.ld, p.apart, p.dtype)};
}

// A plan without algorithm.
Plan describe(const LibraryProduct& p, cublasComputeType_t type) {
  Plan plan;
  check(cublasLtMatmulDescCreate(&plan.form, type, p.dtype == DType::f64 ? CUDA_R_64F : CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  set(plan.form, CUBLASLT_MATMUL_DESC_TRANSA, p.x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.form, CUBLASLT_MATMUL_DESC_TRANSB, p.y.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.form, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p));
  if (p.aux) set(plan.form, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.aux_ld);
  set_pointers(plan.form, p);
  plan.x = layout(p, p.x.rows, p.x.cols, p.x.ld, p.x.apart);
  plan.y = layout(p, p.y.rows, p.y.cols, p.y.ld, p.y.apart);
  plan.d = layout(p, p.rows, p.cols, p.ld, p.apart);
  return plan;
}

// Up to `most` algorithms, the one first that the heuristic takes for the fastest.
std::vector<cublasLtMatmulAlgo_t> algorithms_of(cublasLtHandle_t handle, const Plan& plan, const LibraryProduct& p,
                                                int most) {
  const Wishes wishes(alignments_of(p));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan.form, plan.x, plan.y, plan.d, plan.d,
                                                               wishes.raw(), most, found.data(), &count);
  // An epilogue that it does not have for a dtype may also be called an invalid value.
  const bool refused = status == CUBLAS_STATUS_NOT_SUPPORTED ||
                       (status == CUBLAS_STATUS_INVALID_VALUE && p.epilogue != LibraryProduct::Epilogue::bias);
  if (refused) return {};
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < count; ++i) {
    if (found[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      algorithms.push_back(found[static_cast<size_t>(i)].algo);
  }
  return algorithms;
}

// One call of the library.
struct Run {
  cublasLtHandle_t handle;
  void* workspace;
  Stream stream;

  [[nodiscard]] cublasStatus_t operator()(const LibraryProduct& p, const Plan& plan,
                                          const cublasLtMatmulAlgo_t& algorithm) const {
    const float one = 1, zero = 0;
    const double wide_one = 1, wide_zero = 0;
    const bool wide = p.dtype == DType::f64;
    return cublasLtMatmul(handle, plan.form, wide ? static_cast<const void*>(&wide_one) : &one, p.x.data, plan.x,
                          p.y.data, plan.y, wide ? static_cast<const void*>(&wide_zero) : &zero, p.d, plan.d, p.d,
                          plan.d, &algorithm, workspace, size_t(kCublasWorkspace),
                          static_cast<cudaStream_t>(stream.handle()));
  }
  // The shortest of a few runs, in ms; infinity where the library refuses. Waits for the device.
  [[nodiscard]] double time_of(const LibraryProduct& p, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const {
    double best = std::numeric_limits<double>::infinity();
    if ((*this)(p, plan, algorithm) != CUBLAS_STATUS_SUCCESS) return best;  // and loads the kernel
    for (int i = 0; i < 3; ++i) {
      Event start(stream.device(), EnableTiming::yes), end(stream.device(), EnableTiming::yes);
      start.record(stream);
      if ((*this)(p, plan, algorithm) != CUBLAS_STATUS_SUCCESS) return best;
      end.record(stream);
      end.synchronize();
      best = std::min(best, end.milliseconds_since(start));
    }
    return best;
  }
};

Plan make_plan(const Run& run, const LibraryProduct& p, cublasComputeType_t type, EngineChoice by) {
  constexpr int kTimed = 8;
  // A later algorithm must be clearly faster: what is close the heuristic decides, the same in every process.
  constexpr double kClearly = 0.95;
  Plan plan = describe(p, type);
  const auto algorithms = algorithms_of(run.handle, plan, p, by == EngineChoice::timed ? kTimed : 1);
  plan.found = !algorithms.empty();
  if (!plan.found) return plan;
  plan.algorithm = algorithms[0];
  if (algorithms.size() == 1) return plan;
  double least = run.time_of(p, plan, algorithms[0]);
  for (size_t i = 1; i < algorithms.size(); ++i) {
    const double time = run.time_of(p, plan, algorithms[i]);
    if (time < kClearly * least) least = time, plan.algorithm = algorithms[i];
  }
  return plan;
}

// Made on first use and kept until the process ends: the CUDA runtime may be gone before static objects are.
struct Cache {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<std::array<int64_t, 25>, Plan> plans;

  cublasLtHandle_t handle_of(Device device) {
    cublasLtHandle_t& handle = handles[device.index()];
    if (!handle) check(cublasLtCreate(&handle), "cublasLtCreate");
    return handle;
  }
  // The device is current, the mutex held.
  const Plan& plan_of(const LibraryProduct& p, const Run& run, EngineChoice by) {
    const Device device = run.stream.device();
    const cublasComputeType_t type = compute_type(p);
    const auto [x_bytes, y_bytes, d_bytes] = alignments_of(p);
    const std::array<int64_t, 25> key{
        device.index(), int64_t(p.dtype), type,      p.rows,   p.cols,  p.depth,        p.ld,       p.apart,  p.batches,
        epilogue_of(p), p.aux_ld,         p.x.rows,  p.x.cols, p.x.ld,  p.x.transposed, p.x.apart,  p.y.rows, p.y.cols,
        p.y.ld,         p.y.transposed,   p.y.apart, x_bytes,  y_bytes, d_bytes,        int64_t(by)};
    auto at = plans.find(key);
    if (at == plans.end()) at = plans.emplace(key, make_plan(run, p, type, by)).first;
    return at->second;
  }
};
Cache& cache() {
  static Cache* const c = new Cache;
  return *c;
}

// While it lives, the device is the CUDA runtime's current one.
class OnDevice {
 public:
  explicit OnDevice(Device device) : now_(device.index()) {
    (void)cudaGetDevice(&before_);
    if (before_ != now_) (void)cudaSetDevice(now_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    if (before_ != now_) (void)cudaSetDevice(before_);
  }

 private:
  int before_ = 0, now_;
};

}  // namespace

bool cublas_multiply(const LibraryProduct& p, void* workspace, Stream stream) {
  const OnDevice on(stream.device());
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);  // also of the plan's pointers
  const Run run{c.handle_of(stream.device()), workspace, stream};
  // What is recorded does not run, so that nothing can be timed.
  const bool times = engine_choice(EngineFamily::product) == EngineChoice::timed && !is_capturing(stream.device());
  const Plan& plan = c.plan_of(p, run, times ? EngineChoice::timed : EngineChoice::first);
  if (!plan.found) return false;
  set_pointers(plan.form, p);
  const cublasStatus_t status = run(p, plan, plan.algorithm);
  if (status != CUBLAS_STATUS_SUCCESS && is_capturing(stream.device()))
    fail<CaptureError>("cublas: cublasLtMatmul failed in a recording: ", cublasLtGetStatusString(status));
  check(status, "cublasLtMatmul");
  levin::detail::launched(stream, std::source_location::current());
  return true;
}

std::uint32_t cublas_sums_of_parts() {
  const Wishes wishes({kLibraryAlignment, kLibraryAlignment, kLibraryAlignment});
  std::uint32_t mask = 0;
  size_t written = 0;
  check(cublasLtMatmulPreferenceGetAttribute(wishes.raw(), CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask,
                                             sizeof mask, &written),
        "cublasLtMatmulPreferenceGetAttribute");
  return mask;
}

std::optional<CublasParts> cublas_parts(const LibraryProduct& p, Device device) {
  const OnDevice on(device);
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  const Plan& plan = c.plan_of(p, {c.handle_of(device), nullptr, Stream::current(device)}, EngineChoice::first);
  if (!plan.found) return {};
  CublasParts parts{};
  const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t what, auto& value) {
    size_t written = 0;
    check(cublasLtMatmulAlgoConfigGetAttribute(&plan.algorithm, what, &value, sizeof value, &written),
          "cublasLtMatmulAlgoConfigGetAttribute");
  };
  get(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts.count);
  get(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, parts.sums);
  return parts;
}

}  // namespace levin::kernels::lib
