#include "autograd/row_gradient.h"

#include <atomic>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/leaf.h"
#include "autograd/ops/index/dims.h"
#include "levin/ops.h"

namespace levin {
namespace detail {
namespace {

Leaf& leaf_for(const char* op, const Tensor& t) {
  Leaf* const leaf = leaf_of(t);
  if (!leaf)
    fail<AutogradError>(op, ": the tensor of shape ", t.shape(),
                        " is not a leaf that requires grad; call requires_grad_() first");
  return *leaf;
}

// Where a table of a number for each row costs less than to sort the entries.
constexpr std::int64_t kTableFactor = 32;

// On the CPU: the rows in the order in which they are first named, and the place of each entry among them.
std::pair<Tensor, Tensor> by_table(const Tensor& rows, std::int64_t count) {
  const std::int64_t n = rows.numel();
  const Tensor place = empty({n}, rows.device(), DType::i64);
  const auto* const row = ptr<const std::int64_t>(rows);
  auto* const to = ptr<std::int64_t>(place);
  std::vector<std::int64_t> places(static_cast<std::size_t>(count), -1), named;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t& at = places[static_cast<std::size_t>(row[i])];
    if (at < 0) {
      at = static_cast<std::int64_t>(named.size());
      named.push_back(row[i]);
    }
    to[i] = at;
  }
  return {from_data(named, {static_cast<std::int64_t>(named.size())}, rows.device()), place};
}

RowGradient merge(const RowGradient& gradient, std::int64_t rows) {
  const NoGrad off;
  const AutocastOff as_is;
  const std::int64_t n = gradient.rows.numel();
  if (n <= 1) return {gradient.rows.clone(), gradient.values.clone()};  // the leaf owns what it keeps
  const Device device = gradient.rows.device();
  Tensor named, place;  // the rows, and the place of each entry among them
  if (device.is_cpu() && rows <= kTableFactor * n) {
    std::tie(named, place) = by_table(gradient.rows, rows);
  } else {
    const ValuesIndices sorted = sort(gradient.rows, 0);
    const Tensor begins =
        cat({ones({1}, device, DType::b8), ne(narrow(sorted.values, 0, 1, n - 1), narrow(sorted.values, 0, 0, n - 1))});
    const Tensor group = cumsum(begins.to(DType::i64), 0) - 1;
    // The host does not wait for a device to count.
    const std::int64_t count = device.is_cpu() ? ptr<const std::int64_t>(group)[n - 1] + 1 : n;
    named = scatter(full({count}, -1, device, DType::i64), 0, group, sorted.values);
    place = scatter(group, 0, sorted.indices, group);
  }
  return {named, sum_of_rows(gradient.values.shape().with(0, named.numel()), place, gradient.values)};
}

RowGradient add_rows(const RowGradient& a, const RowGradient& b, std::int64_t rows) {
  const NoGrad off;
  return merge({cat({a.rows, b.rows}), cat({a.values, b.values})}, rows);
}

Tensor fill(const RowGradient& gradient, const Shape& shape) {
  const NoGrad off;
  const Tensor& values = gradient.values;
  const Tensor rows = values.device().is_cpu() ? gradient.rows : clamp(gradient.rows, 0, {});
  return sum_of_rows(shape, rows, values);
}

constinit std::atomic<const RowSums*> linked{nullptr};

void link_row_sums() noexcept {
  static constexpr RowSums kSums{merge, add_rows, fill};
  linked.store(&kSums, std::memory_order_release);
}

}  // namespace

const RowSums& row_sums() noexcept { return *linked.load(std::memory_order_acquire); }

RowOffer*& row_offer() noexcept {
  static thread_local constinit RowOffer* offer = nullptr;
  return offer;
}

bool takes_rows(std::size_t input) noexcept {
  const RowOffer* const offer = row_offer();
  if (!offer || input >= offer->edges.size()) return false;
  const Node* const node = offer->edges[input].node.get();
  return node && node->kind() == Node::Kind::leaf && node->wants_grad();
}

void give_rows(std::size_t input, const Tensor& rows, const Tensor& values) {
  link_row_sums();
  row_offer()->given.push_back({input, {flatten(rows), values}});
}

void Leaf::accumulate_rows(std::span<const RowGradient> parts, const void* by) {
  {
    const std::lock_guard lock(mutex);
    std::erase_if(hooks, [](const auto& h) { return h->removed.load(); });
    if (!grad.defined() && !home.defined() && hooks.empty()) return keep(parts);
  }
  Tensor gradient = dense(parts.front(), meta.shape);
  for (const RowGradient& part : parts.subspan(1)) gradient = add(gradient, dense(part, meta.shape));
  accumulate(std::move(gradient), by);
}

// Adds in the order of dense gradients: first what one pass gave, then that to what was there.
void Leaf::keep(std::span<const RowGradient> parts) {
  RowGradient all;
  const std::int64_t n = meta.shape[0];
  for (const RowGradient& part : parts) all = all.rows.defined() ? sum(all, merged(part, n), n) : merged(part, n);
  rows = rows.rows.defined() ? sum(rows, all, n) : std::move(all);
}

void Leaf::make_dense() {
  if (!rows.rows.defined()) return;
  grad = dense(rows, meta.shape);
  rows = {};
}

Tensor gradient_values(const Tensor& t) {
  RowGradient rows = row_grad(t);
  return rows.values.defined() ? std::move(rows.values) : t.grad();
}

Tensor take_rows(const Tensor& from, const Tensor& rows) {
  const NoGrad off;
  return index_select(from, 0, from.device().is_cpu() ? rows : clamp(rows, 0, {}));
}

Tensor gradient_as_dense(const Tensor& t) {
  const RowGradient rows = row_grad(t);
  return rows.rows.defined() ? dense(rows, t.shape()) : t.grad();
}

}  // namespace detail

RowGradient row_grad(const Tensor& t) {
  (void)t.get();
  detail::Leaf* const leaf = detail::leaf_of(t);
  if (!leaf) return {};
  const std::lock_guard lock(leaf->mutex);
  return leaf->rows;
}

void set_row_grad(const Tensor& t, RowGradient gradient) {
  constexpr const char* op = "set_row_grad";
  detail::Leaf& leaf = detail::leaf_for(op, t);
  const auto& [rows, values] = gradient;
  if (rows.defined() != values.defined())
    fail<AutogradError>(op, ": ", rows.defined() ? "values are" : "rows are", " undefined, expected both or none");
  if (rows.defined()) {
    if (t.rank() == 0) fail<ShapeError>(op, ": the leaf has no dimension, expected [N, ...]");
    const Shape want = t.shape().with(0, rows.numel());
    if (rows.rank() != 1) fail<ShapeError>(op, ": rows have shape ", rows.shape(), ", expected one dimension");
    if (values.shape() != want) fail<ShapeError>(op, ": values have shape ", values.shape(), ", expected ", want);
    if (rows.dtype() != DType::i64) fail<DTypeError>(op, ": rows are ", rows.dtype(), ", expected i64");
    if (values.dtype() != t.dtype()) fail<DTypeError>(op, ": values are ", values.dtype(), ", expected ", t.dtype());
    if (rows.device() != t.device() || values.device() != t.device())
      fail<DeviceError>(op, ": rows are on ", rows.device(), " and values on ", values.device(), ", expected ",
                        t.device());
    check_indices(op, rows, t.size(0), "dimension 0 of the leaf " + text(t.shape()));
  }
  RowGradient own;
  detail::link_row_sums();
  if (rows.defined()) own = detail::merged({rows.detach().contiguous(), values.detach().contiguous()}, t.size(0));
  const std::lock_guard lock(leaf.mutex);
  leaf.clear();
  leaf.rows = std::move(own);
}

bool has_grad(const Tensor& t) {
  (void)t.get();
  detail::Leaf* const leaf = detail::leaf_of(t);
  if (!leaf) return false;
  const std::lock_guard lock(leaf->mutex);
  return leaf->grad.defined() || leaf->rows.rows.defined();
}

}  // namespace levin
