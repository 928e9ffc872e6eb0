#include "train/run/predictions.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "tensor/files/file.h"
#include "train/run/packed.h"

namespace levin::train {
namespace {

void pack(Packed& to, const Tensor& t) {
  const Tensor dense = detail::dense_on_host("predict", t);
  const std::span<const std::byte> bytes = detail::bytes_of(dense);
  to.add(dense.dtype()).add(static_cast<std::int64_t>(dense.rank()));
  for (std::int64_t d = 0; d < dense.rank(); ++d) to.add(dense.size(d));
  to.add(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

Tensor unpack(Unpacked& from) {
  const auto dtype = from.take<DType>();
  const auto rank = from.take<std::int64_t>();
  std::vector<std::int64_t> sizes;
  for (std::int64_t d = 0; d < rank; ++d) sizes.push_back(from.take<std::int64_t>());
  const auto bytes = from.take<std::string_view>();
  Tensor t = empty(Shape(sizes), Device::cpu(), dtype);
  const std::span<const std::byte> room = detail::bytes_of(t);
  if (room.size() != bytes.size())
    fail<CommError>("predict: another rank sent ", bytes.size(), " bytes of a prediction, expected ", room.size());
  if (!bytes.empty()) std::memcpy(const_cast<std::byte*>(room.data()), bytes.data(), bytes.size());
  return t;
}

}  // namespace

void Predictions::add(const Batch& batch, Tensor prediction) {
  One one{.keys = batch.indices, .batch = batch.position, .value = std::move(prediction)};
  if (places_) {
    const std::int64_t first = batch.position * std::max<std::int64_t>(1, batch_size_);
    for (std::size_t i = 0; i < one.keys.size(); ++i) one.keys[i] = places_->at(static_cast<std::size_t>(first) + i);
  }
  mine_.push_back(std::move(one));
}

Tensors Predictions::by_rows(const std::vector<One>& all, std::int64_t batch_size) {
  Tensors values;
  std::vector<std::int64_t> keys;
  for (const One& one : all) {
    values.push_back(one.value);
    keys.insert(keys.end(), one.keys.begin(), one.keys.end());
  }
  std::vector<std::int64_t> order(keys.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto key = [&](std::int64_t i) { return keys[static_cast<std::size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return key(a) < key(b); });
  order.erase(std::unique(order.begin(), order.end(), [&](auto a, auto b) { return key(a) == key(b); }), order.end());
  const Tensor rows = cat(values, 0);
  Tensors out;
  for (std::size_t begin = 0; begin < order.size(); begin += static_cast<std::size_t>(batch_size)) {
    const auto n = static_cast<std::int64_t>(std::min(order.size() - begin, static_cast<std::size_t>(batch_size)));
    Tensor which = empty({n}, Device::cpu(), DType::i64);
    std::copy_n(order.begin() + static_cast<std::ptrdiff_t>(begin), n, which.mutable_data<std::int64_t>());
    out.push_back(index_select(rows, 0, which));
  }
  return out;
}

Tensors Predictions::of_all_ranks(Strategy& strategy, Device there) && {
  Tensors out;
  const auto in_order = [](const One& a, const One& b) { return a.batch < b.batch; };
  if (const DataShare share = strategy.share(); share.replicas * share.shards == 1) {  // one rank reads all
    // A loader without in_order hands batches out as they finish.
    std::stable_sort(mine_.begin(), mine_.end(), in_order);
    for (One& one : mine_) out.push_back(std::move(one.value));
    return out;
  }
  const NoGrad off;
  Packed mine;
  for (const One& one : mine_) {
    mine.add(one.batch).add(static_cast<std::int64_t>(one.keys.size()));
    for (const std::int64_t k : one.keys) mine.add(k);
    pack(mine, one.value);
  }
  std::vector<One> all;
  bool rows = batch_size_ > 0;
  for (const std::string& bytes : strategy.gather(mine.bytes())) {
    for (Unpacked in(bytes); !in.empty();) {
      One one{.keys = {}, .batch = in.take<std::int64_t>(), .value = {}};
      for (auto n = in.take<std::int64_t>(); n > 0; --n) one.keys.push_back(in.take<std::int64_t>());
      one.value = unpack(in);
      rows &= one.value.rank() > 0 && one.value.size(0) == static_cast<std::int64_t>(one.keys.size());
      const One& first = all.empty() ? one : all.front();
      rows &= one.value.dtype() == first.value.dtype() && one.value.rank() == first.value.rank();
      for (std::int64_t d = 1; rows && d < one.value.rank(); ++d) rows &= one.value.size(d) == first.value.size(d);
      all.push_back(std::move(one));
    }
  }
  if (all.empty()) return out;
  if (rows) {
    out = by_rows(all, batch_size_);
  } else {
    std::stable_sort(all.begin(), all.end(), in_order);
    for (One& one : all) out.push_back(std::move(one.value));
  }
  for (Tensor& t : out) t = t.to(there);
  return out;
}

}  // namespace levin::train
