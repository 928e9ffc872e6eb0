// What a loader allocates, and the memory of its batches.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/loader_fixture_test.h"
#include "levin/autograd.h"
#include "levin/data.h"
#include "levin/ops.h"
#include "tests/allocations.h"
using namespace levin;
using namespace levin::data;
using namespace levin::data::testing;

namespace {

DatasetRef images(std::int64_t n) {
  Tensor pictures = empty({n, 1, 6, 6}, Device::cpu(), DType::u8), labels = empty({n}, Device::cpu(), DType::u8);
  for (std::int64_t i = 0; i < pictures.numel(); ++i)
    pictures.mutable_data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i / 36);
  for (std::int64_t i = 0; i < n; ++i) labels.mutable_data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i);
  return image_dataset(pictures, labels);
}
DatasetRef rows(std::int64_t n) {
  Tensor numbers = empty({n, 300}, Device::cpu(), DType::i64), one = empty({n}, Device::cpu());
  for (std::int64_t i = 0; i < n * 300; ++i) numbers.mutable_data<std::int64_t>()[i] = i / 300;
  for (std::int64_t i = 0; i < n; ++i) one.mutable_data<float>()[i] = static_cast<float>(i);
  return tensor_dataset({numbers, one});
}

// Workers load the first batch, and the others after open(). wait_for() then waits until a number of batches is loaded.
class Gated final : public Dataset {
 public:
  explicit Gated(DatasetRef base) : base_(std::move(base)) {}
  std::int64_t size() const override { return base_->size(); }
  Sample get(std::int64_t index, Generator& rng) const override { return base_->get(index, rng); }
  Tensors gather_into(std::span<const std::int64_t> indices, const EpochRandom& random, Tensors spare) const override {
    if (indices.front() != 0 && std::this_thread::get_id() != consumer_) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::seconds(20), [&] { return open_; });
    }
    Tensors batch = base_->gather_into(indices, random, std::move(spare));
    const std::lock_guard lock(mutex_);
    ++loaded_;
    changed_.notify_all();
    return batch;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] bool wait_for(std::int64_t batches) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return loaded_ >= batches; });
  }

 private:
  const std::thread::id consumer_ = std::this_thread::get_id();
  DatasetRef base_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::int64_t loaded_ = 0;
  bool open_ = false;
};

// Allocations in the last half of an epoch of 60 batches, of all threads where there are workers. At the first batch
// the consumer lets the workers fill the ring: one batch is handed out then, and a full ring is ahead, which is the
// most that ever exists. The least of three epochs counts: a thread that an earlier test left may allocate in one.
std::int64_t steady_allocations(const DatasetRef& base, DataLoaderOptions options) {
  const std::int64_t ring = options.num_workers * 2, batches = base->size() / 4;
  REQUIRE(batches == 60);
  const auto allocations = ring > 0 ? &levin::test::allocations_of_all_threads : &levin::test::allocations;
  options.batch_size = 4;
  std::int64_t least = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    const auto dataset = std::make_shared<Gated>(base);
    DataLoader loader(dataset, options);
    std::int64_t from = 0, to = 0, n = 0;
    for (const Batch& b : loader) {
      CHECK(b.size() == 4);
      ++n;
      if (n == 30) from = allocations();
      if (n == 60) to = allocations();
      if (n > 1 || ring == 0) continue;
      dataset->open();
      CHECK(dataset->wait_for(1 + ring));
    }
    CHECK(n == 60);
    least = epoch == 0 ? to - from : std::min(least, to - from);
    if (least == 0) break;
  }
  return least;
}

}  // namespace

TEST_CASE("a batch of tensors or images in memory allocates nothing in the steady state, workers or not") {
  if (!levin::test::counts_allocations()) return levin::test::skip_allocations();
  std::vector<std::int64_t> turned;
  for (std::int64_t i = 0; i < 240; ++i) turned.push_back(239 - i);
  for (const DatasetRef& base :
       {rows(240), images(240), subset(rows(240), turned), subset(subset(images(240), turned), turned)}) {
    for (const int workers : {0, 1, 2}) {
      for (const bool in_order : {true, false}) {
        CAPTURE(workers);
        CAPTURE(in_order);
        CHECK(steady_allocations(base, {.num_workers = workers, .in_order = in_order}) == 0);
      }
    }
  }
}

TEST_CASE("the counter of allocations sees those of workers") {
  if (!levin::test::counts_allocations()) return levin::test::skip_allocations();
  const DatasetRef one_by_one = transform(rows(240), [](Sample s, Generator&) { return s; });
  CHECK(steady_allocations(one_by_one, {.num_workers = 1}) > 100);
}

TEST_CASE("a combination of loaders allocates nothing either") {
  if (!levin::test::counts_allocations()) return levin::test::skip_allocations();
  DataLoader a(rows(240), {.batch_size = 4}), b(images(240), {.batch_size = 4});
  DataLoader both = combine({{"a", &a}, {"b", &b}});
  std::int64_t from = 0, to = 0, n = 0;
  for (const Batch& batch : both) {
    CHECK(batch.part("b").size() == 2);
    ++n;
    if (n == 30) from = levin::test::allocations();
    if (n == 60) to = levin::test::allocations();
  }
  CHECK(n == 60);
  CHECK(to == from);
}

TEST_CASE("batches that a consumer keeps, moves or views are never written again") {
  for (const int workers : {0, 2}) {
    for (const bool keeps_views : {false, true}) {
      DataLoader loader(rows(40), {.batch_size = 4, .shuffle = true, .num_workers = workers});
      Tensors kept;
      std::vector<std::vector<std::int64_t>> expected;
      for (Batch& b : loader) {
        expected.push_back(b.indices);
        if (keeps_views)
          kept.push_back(narrow(b[0], 1, 5, 1));
        else if (b.position % 2 == 0)
          kept.push_back(b[0]);
        else
          kept.push_back(std::exchange(b, Batch{}).fields[0]);
      }
      REQUIRE(kept.size() == 10);
      for (std::size_t k = 0; k < kept.size(); ++k) {
        for (std::int64_t i = 0; i < 4; ++i)
          CHECK(narrow(narrow(kept[k], 0, i, 1), 1, 0, 1).item<std::int64_t>() ==
                expected[k][static_cast<std::size_t>(i)]);
      }
    }
  }
}

TEST_CASE("what a consumer writes into its batch, or puts there, reaches no later batch") {
  std::vector<float> foreign(4, -1);
  DataLoader loader(rows(40), {.batch_size = 4});
  for (Batch& b : loader) {
    const float first = static_cast<float>(b.position * 4);
    CHECK(b[1].to_vector<float>() == std::vector<float>{first, first + 1, first + 2, first + 3});
    if (b.position % 2 == 0) {
      b.fields[1].mutable_data<float>()[0] = -7;
      b.fields[1].requires_grad_();
    } else {
      b.fields[1] = from_blob(foreign.data(), {4}, DType::f32, nullptr, "the test");
    }
  }
  CHECK(foreign == std::vector<float>(4, -1));
}

TEST_CASE("recycled memory is the spare's own, or new where another tensor shares it or it does not fit") {
  const Device cpu = Device::cpu();
  const auto address = [](const Tensor& t) { return t.data<float>(); };
  for (const std::int64_t n : {3, 5000}) {
    Tensor x = zeros({n}, cpu);
    const float* const at = address(x);
    x = recycled(std::move(x), {n}, DType::f32);
    CHECK(address(x) == at);
    CHECK_FALSE(recycled(x, {n}, DType::f32).shares_storage(x));  // x itself is the second handle
    const Tensor view = narrow(x, 0, 0, 1);
    x = recycled(std::move(x), {n}, DType::f32);
    CHECK_FALSE(x.shares_storage(view));
    CHECK(recycled(std::move(x), {n, 1}, DType::f32).shape() == Shape{n, 1});
    CHECK(recycled(zeros({n}, cpu), {n}, DType::i64).dtype() == DType::i64);
    CHECK(recycled({}, {n}, DType::u8).numel() == n);
    std::vector<float> foreign(static_cast<std::size_t>(n), 2);
    Tensor wrapped = from_blob(foreign.data(), {n}, DType::f32, nullptr, "the test");
    CHECK(address(recycled(std::move(wrapped), {n}, DType::f32)) != foreign.data());
  }
}
