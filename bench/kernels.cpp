// Benchmarks of single ops: an op's fixed cost, then kernels (rows_*.cpp) over sizes and dtypes, each beside the bound
// that this machine's own copy bandwidth and matrix product set. Flags are in bench/main.h. A row is called
// op/dtype/shape; bench/compare_torch.py runs PyTorch on the same rows.
//
//   real_time  median of the warm samples; low_us, high_us hold four fifths of them; cold_us: with empty caches
//   bytes, flops  the op's minimum: reads and writes of its operands, multiplications and additions
//   of_bound   max(bytes / copy bandwidth, flops / rate of products) / real_time; launch-bound rows stay far below 1.
//              The bandwidth is that of the faster copy, by the runtime or by our kernel; the head has both
//   copies     of a recorded graph that a sample replayed, and call_us: the time of a call; 0: the op was called
//   sm_mhz_before, sm_mhz_after, watts  of a GPU, where its driver reports them
//
// A row that fails gives its reason ("error_message"), the others continue, and the program ends with status 1.
#include <optional>

#include "bench/facts.h"
#include "bench/rows.h"
#include "bench/stopwatch.h"

namespace levin::bench {
namespace {

// ---- Overhead: one element, by the host's clock.
void add_1(benchmark::State& state) {
  const Tensor a = ones({1}, device()), b = ones({1}, device());
  for (auto _ : state) benchmark::DoNotOptimize(add(a, b));
}
void add_1_recorded(benchmark::State& state) {
  Tensor a = ones({1}, device()), b = ones({1}, device());
  a.requires_grad_();
  for (auto _ : state) benchmark::DoNotOptimize(add(a, b));
}
void view_1(benchmark::State& state) {
  const Tensor a = ones({1, 1}, device());
  for (auto _ : state) benchmark::DoNotOptimize(transpose(a, 0, 1));
}
// One backward over a chain of 1000 nodes; the chain is rebuilt outside the timing.
template <bool kMultiply>
void backward_chain(benchmark::State& state) {
  constexpr int kNodes = 1000;
  Tensor x = ones({1}, device());
  const Tensor b = ones({1}, device());
  x.requires_grad_();
  for (auto _ : state) {
    state.PauseTiming();
    Tensor y = x;
    for (int i = 0; i < kNodes; ++i) y = kMultiply ? mul(y, b) : add(y, b);
    x.set_grad({});
    state.ResumeTiming();
    backward(y);
    state.PauseTiming();
    y = Tensor();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * kNodes);
}

std::vector<Kernel> all_kernels() {
  std::vector<Kernel> k;
  pointwise_rows(k);
  norm_rows(k);
  index_rows(k);
  product_rows(k);
  graph_rows(k);
  image_rows(k);
  linalg_rows(k);
  sequence_rows(k);
  list_rows(k);
  return k;
}

// ---- Registration: every kernel at every size that suits the device

// Bytes of the largest tensor, and the largest work of a product. A GPU is for large tensors. On simt, which has no
// speed, the smallest shapes show that the kernels run.
struct Limits {
  double bytes, flops, sweep;  // sweep: of a matrix of few or many columns
};
Limits limits() {
  const Device d = device();
  Limits l = no_speed()    ? Limits{0x1p10, 1e5, 0x1p13}
             : d.is_cuda() ? Limits{0x1p31, 1e14, 0x1p28}
                           : Limits{0x1p24, 1e11, 0x1p24};
  if (settings().max_bytes > 0) l.bytes = settings().max_bytes, l.sweep = std::min(l.sweep, l.bytes);
  return l;
}

std::vector<Shape> sweep(Sizes sizes, DType dtype, const Limits& most) {
  std::vector<Shape> out;
  if (sizes == Sizes::own) return out;
  const auto numbers = [&](double bytes) {
    return static_cast<std::int64_t>(bytes) / static_cast<std::int64_t>(itemsize(dtype));
  };
  for (const double bytes : {0x1p10, 0x1p16, 0x1p20, 0x1p24, 0x1p28, 0x1p31}) {
    if (bytes > most.bytes) break;
    const std::int64_t n = numbers(bytes), columns = std::min<std::int64_t>(n, 1024);
    out.push_back(sizes == Sizes::flat ? Shape{n} : Shape{n / columns, columns});
  }
  if (sizes != Sizes::columns) return out;
  const std::int64_t n = numbers(most.sweep);
  for (const std::int64_t columns : {256, 1024, 4096, 16384, 65536, 262144}) {
    if (columns <= n) out.push_back({n / columns, columns});
  }
  return out;
}

std::vector<Shape> shapes_of(const Kernel& kernel, DType dtype) {
  const Limits most = limits();
  std::vector<Shape> shapes = sweep(kernel.sizes, dtype, most);
  for (const Shape& s : kernel.shapes) {
    if (kernel.flops ? kernel.flops(s) <= most.flops : 4.0 * double(s.numel()) <= 8 * most.bytes) shapes.push_back(s);
  }
  std::vector<Shape> once;
  for (const Shape& s : shapes) {
    if (std::find(once.begin(), once.end(), s) == once.end()) once.push_back(s);
  }
  // f16 is computed as bf16: one size shows whether it is as fast.
  if (dtype == DType::f16 && !settings().every_dtype && once.size() > 1)
    once = {*std::max_element(once.begin(), once.end(),
                              [](const Shape& a, const Shape& b) { return a.numel() < b.numel(); })};
  return once;
}

std::string joined(const Shape& s) {
  std::string out;
  for (int i = 0; i < s.rank(); ++i) out += (i ? "x" : "") + std::to_string(s[i]);
  return out;
}

void measure(benchmark::State& state, const Kernel& kernel, const Shape& shape, DType dtype, const Ceilings& ceilings) {
  const Work work = kernel.make(shape, dtype);
  const Clocks before = clocks(device());
  Stopwatch watch(device());
  const Spread warm = watch.warm(work.run);
  for (auto _ : state) state.SetIterationTime(warm.median);
  const double flops = kernel.flops ? kernel.flops(shape) : 0;
  state.counters["bytes"] = work.bytes;
  state.counters["flops"] = flops;
  tell(state, warm, ceilings.least_seconds(work.bytes, flops, dtype));
  if (settings().cold) state.counters["cold_us"] = watch.cold(work.run).median * 1e6;
  if (before.sm_mhz <= 0) return;
  const Clocks after = clocks(device());
  state.counters["sm_mhz_before"] = before.sm_mhz;
  state.counters["sm_mhz_after"] = after.sm_mhz;
  state.counters["watts"] = after.watts;
}

void prepare() {
  const Device d = device();
  static const Ceilings ceilings = settings().listing ? Ceilings{} : measure_ceilings(d);
  if (!settings().listing) tell(ceilings);
  const auto overhead = [](const char* name, void (*f)(benchmark::State&)) {
    auto* row = add_row(name, f);
    if (no_speed()) row->Iterations(1);
  };
  overhead("add_1", add_1);
  overhead("add_1_recorded", add_1_recorded);
  overhead("view_1", view_1);
  overhead("backward_chain/add_1000", backward_chain<false>);
  overhead("backward_chain/mul_1000", backward_chain<true>);
  static const std::vector<Kernel> kernels = all_kernels();
  for (const Kernel& kernel : kernels) {
    for (const DType dtype : kernel.dtypes) {
      if (settings().in_bf16) {
        if (dtype != DType::bf16) continue;
      } else if (d.is_cpu() && dtype != DType::f32 && settings().max_bytes <= 0 && !settings().every_dtype) {
        continue;  // the CPU is fast in f32
      }
      for (const Shape& s : shapes_of(kernel, dtype)) {
        add_row(kernel.op + "/" + text(dtype) + "/" + joined(s),
                [&kernel, s, dtype](benchmark::State& state) { measure(state, kernel, s, dtype, ceilings); })
            ->UseManualTime()
            ->Iterations(1)
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace
}  // namespace levin::bench

LEVIN_BENCHMARK_MAIN(levin::bench::prepare)
