// How fast batches come: pictures of MNIST's shape in memory, shuffled and normalised; pictures of CIFAR-10's shape,
// shuffled, cropped with padding, mirrored and normalised; and the hand-over alone. items_per_second counts samples in
// the first two benchmarks and batches in the last.
#include <algorithm>

#include "bench/main.h"
#include "levin/data.h"
#include "levin/data/transforms.h"

using namespace levin;
using namespace levin::data;

namespace {

DatasetRef pictures() {
  constexpr std::int64_t kSamples = 60000;
  static const DatasetRef dataset = [] {
    Tensor images = empty({kSamples, 1, 28, 28}, Device::cpu(), DType::u8);
    std::uint8_t* pixel = images.mutable_data<std::uint8_t>();
    for (std::int64_t i = 0; i < images.numel(); ++i) pixel[i] = static_cast<std::uint8_t>(i * 2654435761 >> 13);
    Tensor labels = empty({kSamples}, Device::cpu(), DType::u8);
    std::uint8_t* label = labels.mutable_data<std::uint8_t>();
    for (std::int64_t i = 0; i < kSamples; ++i) label[i] = static_cast<std::uint8_t>(i % 10);
    return image_dataset(images, labels, kMnistNormalization);
  }();
  return dataset;
}

void shuffled_epoch(benchmark::State& state) {
  DataLoader loader(pictures(), {.batch_size = state.range(0),
                                 .shuffle = true,
                                 .num_workers = static_cast<int>(state.range(1)),
                                 .generator = Generator(1)});
  for (auto _ : state) {
    for (const Batch& batch : loader) benchmark::DoNotOptimize(batch[0].data<float>()[0]);
  }
  state.SetItemsProcessed(state.iterations() * loader.dataset()->size());
}
BENCHMARK(shuffled_epoch)
    ->ArgNames({"batch", "workers"})
    ->ArgsProduct({{64, 128, 1024}, {0, 1, 2, 4}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// u8 [50000, 3, 32, 32], by rows of batches or, with `tensors`, by a tensor for each sample and transform.
void cifar_crop_flip(benchmark::State& state) {
  constexpr std::int64_t kSamples = 50000;
  static const Tensors fields = [] {
    Tensor images = empty({kSamples, 3, 32, 32}, Device::cpu(), DType::u8);
    std::uint8_t* pixel = images.mutable_data<std::uint8_t>();
    for (std::int64_t i = 0; i < images.numel(); ++i) pixel[i] = static_cast<std::uint8_t>(i * 2654435761 >> 13);
    Tensor labels = empty({kSamples}, Device::cpu(), DType::u8);
    std::fill_n(labels.mutable_data<std::uint8_t>(), kSamples, std::uint8_t{1});
    return Tensors{images, labels};
  }();
  const std::vector<Transform> transforms{random_crop({.padding = {4, 4}}), random_horizontal_flip(),
                                          normalize({{0.4914f, 0.2470f}, {0.4822f, 0.2435f}, {0.4465f, 0.2616f}})};
  const DatasetRef dataset = state.range(1) ? transform(tensor_dataset(fields), compose(transforms))
                                            : image_dataset(fields[0], fields[1], transforms);
  DataLoader loader(
      dataset,
      {.batch_size = 128, .shuffle = true, .num_workers = static_cast<int>(state.range(0)), .generator = Generator(1)});
  for (auto _ : state) {
    for (const Batch& batch : loader) benchmark::DoNotOptimize(batch[0].data<float>()[0]);
  }
  state.SetItemsProcessed(state.iterations() * kSamples);
}
BENCHMARK(cifar_crop_flip)
    ->ArgNames({"workers", "tensors"})
    ->ArgsProduct({{0, 1, 2}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Samples without content: only the queue's work remains.
class Nothing final : public Dataset {
 public:
  std::int64_t size() const override { return 100000; }
  Sample get(std::int64_t, Generator&) const override { return {}; }
  Tensors gather(std::span<const std::int64_t>, const EpochRandom&) const override { return {}; }
};
void hand_over(benchmark::State& state) {
  DataLoader loader(std::make_shared<Nothing>(), {.num_workers = static_cast<int>(state.range(0))});
  for (auto _ : state) {
    for (const Batch& batch : loader) benchmark::DoNotOptimize(batch.position);
  }
  state.SetItemsProcessed(state.iterations() * loader.size());
}
BENCHMARK(hand_over)->ArgName("workers")->Arg(0)->Arg(1)->Arg(2)->Arg(4)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace

LEVIN_BENCHMARK_MAIN([] {})
