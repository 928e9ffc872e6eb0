// How fast neighbourhoods are sampled: fanouts [15, 10] from 1,024 seeds in a graph of 1,048,576 nodes and 25 M edges
// (a planted partition), on 1 and 2 threads; and whole batches of a NeighborLoader, with 64 features a node.
// items_per_second counts sampled edges, bytes_per_second gathered features. bench/compare_sampling.py adds Python.
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "bench/main.h"
#include "levin/data.h"
#include "levin/data/graph.h"
#include "levin/data/neighbor.h"

using namespace levin;
using namespace levin::gnn;

namespace {

constexpr std::int64_t kSeeds = 1024;

std::int64_t nodes() { return bench::settings().quick ? 1 << 12 : 1 << 20; }
const NodeData& data_of_nodes() {
  static const NodeData made = planted_partition({.num_nodes = nodes()});
  return made;
}
const std::vector<std::int64_t>& order() {
  static const std::vector<std::int64_t> all = data::random_sampler(nodes(), Generator(42))->indices(0);
  return all;
}

// `threads` threads of this program, each with its own batches.
void sample(benchmark::State& state, const NeighborSampler& sampler, int threads) {
  const std::int64_t batches = nodes() / kSeeds, each = bench::settings().quick ? 1 : 32;
  std::vector<SampledSubgraph> memory(static_cast<std::size_t>(threads));
  std::int64_t next = 0;
  std::atomic<std::int64_t> edges = 0;
  for (auto _ : state) {
    std::vector<std::thread> running;
    for (int t = 0; t < threads; ++t) {
      running.emplace_back([&, t, first = next + t * each] {
        SampledSubgraph& s = memory[static_cast<std::size_t>(t)];
        for (std::int64_t b = first; b < first + each; ++b) {
          const std::int64_t* const seeds = order().data() + b % batches * kSeeds;
          sampler.sample_into({seeds, static_cast<std::size_t>(kSeeds)}, 0, b, s);
          edges += s.src.numel();
        }
      });
    }
    for (std::thread& t : running) t.join();
    next += threads * each;
  }
  state.SetItemsProcessed(edges);
}

void load(benchmark::State& state, int workers) {
  const NodeData& d = data_of_nodes();
  NeighborLoader loader({d.graph, {.fanouts = {15, 10}, .seed = 42}}, {.x = d.x, .y = d.y},
                        {.loader = {.batch_size = kSeeds, .shuffle = true, .num_workers = workers}});
  std::int64_t edges = 0, bytes = 0;
  for (auto _ : state) {
    std::int64_t left = bench::settings().quick ? 1 : 128;
    for (const Batch& batch : loader) {
      const NeighborBatch b = unpack(batch);
      edges += b.graph.src.numel();
      bytes += b.x.numel() * 4;
      if (--left == 0) break;
    }
  }
  state.SetItemsProcessed(edges);
  state.SetBytesProcessed(bytes);
}

void add_rows() {
  for (const bool hashed : {false, true}) {
    for (const int threads : {1, 2}) {
      const std::string name =
          std::string("sample/15,10") + (hashed ? "/hash" : "/marker") + "/threads:" + std::to_string(threads);
      bench::add_row(name,
                     [hashed, threads](benchmark::State& state) {
                       NeighborSamplerOptions o{.fanouts = {15, 10}, .seed = 42};
                       if (hashed) o.marker_bytes = 0;
                       sample(state, NeighborSampler(data_of_nodes().graph, o), threads);
                     })
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond)
          ->MinTime(bench::settings().seconds);
    }
  }
  for (const int workers : {0, 1, 2}) {
    bench::add_row("NeighborLoader/15,10/workers:" + std::to_string(workers),
                   [workers](benchmark::State& state) { load(state, workers); })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond)
        ->MinTime(bench::settings().seconds);
  }
}

}  // namespace

LEVIN_BENCHMARK_MAIN(add_rows)
