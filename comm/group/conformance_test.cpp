#include "comm/group/conformance_test.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "levin/error.h"
#include "levin/serialize.h"

namespace levin::test {
namespace {

using namespace levin::dist;
using std::int64_t;

constexpr DType kAll[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32,
                          DType::i64, DType::u8,  DType::i8,  DType::i16};

void require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

// A value of element i of rank r: an exact multiple of 1/8 where `exact`, so that sums of any order are equal.
double value(int rank, int64_t i, bool exact) {
  const auto mixed = static_cast<std::uint64_t>(i) * 2654435761u + static_cast<std::uint64_t>(rank) * 40503u + 7;
  const auto small = static_cast<double>(mixed >> 5 & 15);
  return exact ? small / 8 : std::sin(static_cast<double>(mixed % 1000003)) * std::exp2(small - 8);
}
template <class T>
std::vector<T> values(int rank, int64_t n, bool exact = true) {
  std::vector<T> out(static_cast<std::size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const double v = value(rank, i, exact);
    out[static_cast<std::size_t>(i)] = std::is_integral_v<T> ? static_cast<T>(v * 8) : static_cast<T>(v);
  }
  return out;
}
template <class T>
double real(T x) {
  return static_cast<double>(x);
}

template <class T>
void expect(const Tensor& got, const std::vector<T>& want, const std::string& what) {
  const std::vector<T> have = got.to_vector<T>();
  require(have.size() == want.size(), what + ": size");
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::memcmp(&have[i], &want[i], sizeof(T)) != 0) {
      throw std::runtime_error(what + ": element " + std::to_string(i) + " is " + std::to_string(real(have[i])) +
                               ", not " + std::to_string(real(want[i])));
    }
  }
}

// Exact in 16 bits: sums of at most four ranks are below 8 and multiples of 1/8.
template <class T>
std::vector<T> reduced(int ranks, int64_t n, ReduceOp op) {
  std::vector<T> out(static_cast<std::size_t>(n));
  std::vector<std::vector<T>> all;
  for (int r = 0; r < ranks; ++r) all.push_back(values<T>(r, n));
  for (std::size_t i = 0; i < out.size(); ++i) {
    double sum = real(all[0][i]);
    for (int r = 1; r < ranks; ++r) {
      const double v = real(all[static_cast<std::size_t>(r)][i]);
      sum = op == ReduceOp::min ? std::min(sum, v) : op == ReduceOp::max ? std::max(sum, v) : sum + v;
    }
    if constexpr (std::is_same_v<T, float>) {
      out[i] = op == ReduceOp::average ? static_cast<float>(sum) / static_cast<float>(ranks) : static_cast<float>(sum);
    } else if constexpr (std::is_integral_v<T>) {
      out[i] = static_cast<T>(static_cast<int64_t>(sum));
    } else if constexpr (std::is_same_v<T, double>) {
      out[i] = op == ReduceOp::average ? sum / ranks : sum;
    } else {
      out[i] =
          T(op == ReduceOp::average ? static_cast<float>(sum) / static_cast<float>(ranks) : static_cast<float>(sum));
    }
  }
  return out;
}

template <class T>
void check_type(ProcessGroup& g, Device device, const std::vector<int64_t>& sizes) {
  const int me = g.rank(), ranks = g.size();
  const bool power = std::has_single_bit(static_cast<unsigned>(ranks));
  const std::string type = name(dtype_of<T>);
  constexpr bool combines = !is_storage(dtype_of<T>);  // the others are moved alone
  for (const int64_t n : sizes) {
    const std::string size = " " + type + "[" + std::to_string(n) + "]";
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max}) {
      if (!combines || (op == ReduceOp::average && std::is_integral_v<T>)) continue;
      if (op != ReduceOp::sum && n > 10000) continue;
      for (const ReduceOrder order : {ReduceOrder::fast, ReduceOrder::tree}) {
        if (order == ReduceOrder::tree && !power) continue;
        const std::string what =
            size + " op " + std::to_string(static_cast<int>(op)) + " order " + std::to_string(static_cast<int>(order));
        const Tensor t = from_data(values<T>(me, n), {n}, device);
        g.all_reduce(t, op, order).wait();
        expect(t, reduced<T>(ranks, n, op), "all_reduce" + what);
        // Behind one that may still be under way, of the same values.
        const Tensor first = from_data(values<T>(me, n), {n}, device), second = first.clone();
        const Work earlier = g.all_reduce(first, op, order);
        g.all_reduce_now(second, op, order);
        expect(second, reduced<T>(ranks, n, op), "all_reduce_now" + what);
        earlier.wait();
        expect(first, reduced<T>(ranks, n, op), "all_reduce before all_reduce_now" + what);
        const Tensor in = from_data(values<T>(me, n * ranks), {n * ranks}, device);
        const Tensor out = empty({n}, device, dtype_of<T>);
        g.reduce_scatter(out, in, op, order).wait();
        const std::vector<T> whole = reduced<T>(ranks, n * ranks, op);
        expect(out, std::vector<T>(whole.begin() + me * n, whole.begin() + (me + 1) * n), "reduce_scatter" + what);
        expect(in, values<T>(me, n * ranks), "reduce_scatter's input" + what);
      }
    }
    for (int root = 0; root < ranks; ++root) {
      const Tensor t = from_data(values<T>(me, n), {n}, device);
      g.broadcast(t, root).wait();
      expect(t, values<T>(root, n), "broadcast" + size);
    }
    const Tensor out = empty({ranks, n}, device, dtype_of<T>);
    g.all_gather(out, from_data(values<T>(me, n), {n}, device)).wait();
    std::vector<T> all;
    for (int r = 0; r < ranks; ++r) {
      const std::vector<T> part = values<T>(r, n);
      all.insert(all.end(), part.begin(), part.end());
    }
    expect(out, all, "all_gather" + size);
    // In place: in is this rank's slice of out.
    std::vector<T> start(static_cast<std::size_t>(n * ranks));
    const std::vector<T> mine = values<T>(me, n);
    std::copy(mine.begin(), mine.end(), start.begin() + me * n);
    const Tensor place = from_data(start, {ranks, n}, device);
    g.all_gather(place, as_strided(place, {n}, {1}, me * n)).wait();
    expect(place, all, "all_gather in place" + size);
    if (combines) {
      const Tensor scattered = from_data(values<T>(me, n * ranks), {n * ranks}, device);
      g.reduce_scatter(as_strided(scattered, {n}, {1}, me * n), scattered).wait();
      const std::vector<T> whole = reduced<T>(ranks, n * ranks, ReduceOp::sum);
      expect(as_strided(scattered, {n}, {1}, me * n).clone(),
             std::vector<T>(whole.begin() + me * n, whole.begin() + (me + 1) * n), "reduce_scatter in place" + size);
    }
    const Tensor to = empty({n * ranks}, device, dtype_of<T>);
    g.all_to_all(to, from_data(values<T>(me, n * ranks), {n * ranks}, device)).wait();
    std::vector<T> crossed;
    for (int r = 0; r < ranks; ++r) {
      const std::vector<T> theirs = values<T>(r, n * ranks);
      crossed.insert(crossed.end(), theirs.begin() + me * n, theirs.begin() + (me + 1) * n);
    }
    expect(to, crossed, "all_to_all" + size);
  }
}

// The tree over ranks, written as its definition says.
float tree_sum(const std::vector<float>& x, std::size_t begin, std::size_t end) {
  if (end - begin == 1) return x[begin];
  const std::size_t middle = begin + (end - begin) / 2;
  return tree_sum(x, begin, middle) + tree_sum(x, middle, end);
}

void check_tree(ProcessGroup& g, Device device) {
  const auto ranks = static_cast<std::size_t>(g.size());
  if (!std::has_single_bit(ranks)) return;
  for (const int64_t n : {1, 7, 5000, 300001}) {
    std::vector<std::vector<float>> all;
    for (std::size_t r = 0; r < ranks; ++r) all.push_back(values<float>(static_cast<int>(r), n, false));
    std::vector<float> want(static_cast<std::size_t>(n));
    std::vector<bf16> narrow(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < want.size(); ++i) {
      std::vector<float> x, y;
      for (std::size_t r = 0; r < ranks; ++r) {
        x.push_back(all[r][i]);
        y.push_back(static_cast<float>(bf16(all[r][i])));
      }
      want[i] = tree_sum(x, 0, ranks);
      narrow[i] = bf16(tree_sum(y, 0, ranks));
    }
    const std::vector<float>& own = all[static_cast<std::size_t>(g.rank())];
    const Tensor t = from_data(own, {n}, device);
    g.all_reduce(t, ReduceOp::sum, ReduceOrder::tree).wait();
    expect(t, want, "the tree of f32");
    std::vector<bf16> half;
    for (const float v : own) half.emplace_back(v);
    const Tensor h = from_data(half, {n}, device);
    g.all_reduce(h, ReduceOp::sum, ReduceOrder::tree).wait();
    expect(h, narrow, "the tree of bf16");
    if (n % static_cast<int64_t>(ranks) == 0) {
      const int64_t part = n / static_cast<int64_t>(ranks);
      const Tensor out = empty({part}, device);
      g.reduce_scatter(out, from_data(own, {n}, device), ReduceOp::sum, ReduceOrder::tree).wait();
      expect(out, std::vector<float>(want.begin() + g.rank() * part, want.begin() + (g.rank() + 1) * part),
             "the tree, scattered");
    }
  }
}

}  // namespace

void check_collectives(ProcessGroup& g, Device device) {
  const std::vector<int64_t> sizes = {0, 1, 3, 1000};
  for (const DType dtype : kAll) {
    if (dtype == DType::f32) check_type<float>(g, device, {0, 1, 2, 3, 63, 64, 1000, 4099, 400001});
    if (dtype == DType::f64) check_type<double>(g, device, {0, 1, 3, 1000, 150001});
    if (dtype == DType::f16) check_type<f16>(g, device, sizes);
    if (dtype == DType::bf16) check_type<bf16>(g, device, {0, 1, 3, 1000, 600001});
    if (dtype == DType::i32) check_type<std::int32_t>(g, device, sizes);
    if (dtype == DType::i64) check_type<std::int64_t>(g, device, sizes);
    if (dtype == DType::u8) check_type<std::uint8_t>(g, device, sizes);
    if (dtype == DType::i8) check_type<std::int8_t>(g, device, sizes);
    if (dtype == DType::i16) check_type<std::int16_t>(g, device, sizes);
  }
  const Tensor any = tensor({g.rank() == 0, false, true}, device);
  g.all_reduce(any, ReduceOp::max).wait();
  require(any.to_vector<bool>() == std::vector<bool>({true, false, true}), "max of bool");
  g.all_reduce(any, ReduceOp::min).wait();
  const Tensor nan = tensor({g.rank() == 1 ? std::nan("") : 1.0, 2.0}, device);
  g.all_reduce(nan, ReduceOp::min).wait();
  require(g.size() < 2 || std::isnan(nan.to_vector<double>()[0]), "min of NaN");
  require(nan.to_vector<double>()[1] == 2, "min beside NaN");
  const Tensor wraps = tensor({std::int32_t{0x7fffffff}}, device);
  g.all_reduce(wraps).wait();
  require(wraps.item<std::int32_t>() == static_cast<std::int32_t>(0x7fffffffu * static_cast<unsigned>(g.size())),
          "integers wrap");
  check_tree(g, device);
  g.barrier();
}

void check_messages(ProcessGroup& g, Device device) {
  const int me = g.rank(), next = (me + 1) % g.size(), before = (me + g.size() - 1) % g.size();
  // Everyone receives first: sends do not wait for the receives issued before them.
  for (const int64_t n : {0, 1, 1000, 500000}) {
    const Tensor in = empty({n}, device), other = empty({n}, device);
    const Work a = g.recv(in, before, 7), b = g.recv(other, before, 8);
    const Work c = g.send(from_data(values<float>(me, n), {n}, device), next, 7);
    const Work d = g.send(from_data(values<float>(me + 100, n), {n}, device), next, 8);
    for (const Work& w : {a, b, c, d}) w.wait();
    expect(in, values<float>(before, n), "message");
    expect(other, values<float>(before + 100, n), "second message");
  }
  // In order for one tag; beside a collective; what a collective wrote is what the later send sends.
  const Tensor t = from_data(values<float>(me, 100), {100}, device);
  const Work sum = g.all_reduce(t);
  const Work sent = g.send(t, next, 1), again = g.send(tensor({5.f}, device), next, 1);
  const Tensor x = empty({100}, device), y = empty({1}, device);
  g.recv(x, before, 1).wait();
  g.recv(y, before, 1).wait();
  for (const Work& w : {sum, sent, again}) w.wait();
  expect(x, reduced<float>(g.size(), 100, ReduceOp::sum), "a sum that was sent");
  require(y.item() == 5, "order of messages");
  g.barrier();
  // Another size: an error of the receiver.
  if (me == 0) g.send(from_data(values<float>(0, 8), {8}, device), 1, 3).wait();
  if (me == 1) {
    try {
      g.recv(empty({4}, device), 0, 3).wait();
      require(false, "a message of another size was taken");
    } catch (const CommError& e) {
      const std::string text = e.what();
      require(text.find("f32[8]") != std::string::npos && text.find("f32[4]") != std::string::npos, text);
    }
  }
}

void check_overlap(ProcessGroup& g, Device device) {
  std::vector<Work> works;
  std::vector<Tensor> tensors;
  const int64_t sizes[] = {1000, 1, 300000, 0, 77, 4096};
  for (int round = 0; round < 4; ++round) {
    for (const int64_t n : sizes) {
      tensors.push_back(from_data(values<float>(g.rank() + round, n), {n}, device));
      works.push_back(g.all_reduce(tensors.back()));
    }
  }
  // Waited for out of order, and one not at all.
  for (std::size_t i = works.size() - 1; i > 0; --i) works[i].wait();
  g.barrier();
  require(works[0].done(), "a barrier follows earlier works");
  for (int round = 0; round < 4; ++round) {
    for (std::size_t k = 0; k < std::size(sizes); ++k) {
      std::vector<float> want(static_cast<std::size_t>(sizes[k]), 0.f);
      for (int r = 0; r < g.size(); ++r) {
        const std::vector<float> part = values<float>(r + round, sizes[k]);
        for (std::size_t i = 0; i < want.size(); ++i) want[i] += part[i];
      }
      expect(tensors[static_cast<std::size_t>(round) * std::size(sizes) + k], want, "overlapping works");
    }
  }
}

void check_split(ProcessGroup& g, Device device) {
  const int me = g.rank();
  // The even and the odd ranks, in the reverse order.
  const auto half = g.split(me % 2, -me);
  const Tensor t = tensor({static_cast<float>(me)}, device);
  half->all_reduce(t).wait();
  float want = 0;
  int members = 0, above = 0;
  for (int r = me % 2; r < g.size(); r += 2) {
    want += static_cast<float>(r);
    ++members;
    above += r > me ? 1 : 0;
  }
  require(t.item<float>() == want, "the sum of a part");
  require(half->size() == members && half->rank() == above, "the ranks of a part");
  const auto first = g.split(me == 0 ? 0 : -1, 0);
  require((first != nullptr) == (me == 0), "color -1 has no group");
  if (first) first->all_reduce(t).wait();
  // Ranks that were in no part meet the others in the next one.
  const auto again = g.split(0, me);
  require(again && again->size() == g.size(), "a part of all ranks");
  again->barrier();
  g.barrier();
}

void check_texts(ProcessGroup& g) {
  const auto text_of = [](int r) {
    return std::string(static_cast<std::size_t>(r) * 1000, static_cast<char>('a' + r));
  };
  const std::vector<std::string> all = g.gather_text(text_of(g.rank()));
  for (int r = 0; r < g.size(); ++r) require(all[static_cast<std::size_t>(r)] == text_of(r), "gather_text");
  for (const std::string& none : g.gather_text("")) require(none.empty(), "gather_text of nothing");
  const int root = g.size() - 1;
  require(g.broadcast_text(g.rank() == root ? "what the last\0 has" : "other", root) == "what the last",
          "broadcast_text");
  require(g.broadcast_text("", 0).empty(), "broadcast_text of nothing");
}

void check_mismatch(ProcessGroup& g, Mismatch kind) {
  const bool last = g.rank() == g.size() - 1;
  const auto cpu = Device::cpu();
  const Tensor four = from_data(values<float>(0, 4), {4}, cpu), five = from_data(values<float>(0, 5), {5}, cpu);
  const Tensor wide = from_data(values<double>(0, 4), {4}, cpu);
  const auto call = [&](const std::source_location& here) {
    switch (kind) {
      case Mismatch::count: return g.all_reduce(last ? five : four, ReduceOp::sum, ReduceOrder::fast, here).wait();
      case Mismatch::dtype: return g.all_reduce(last ? wide : four, ReduceOp::sum, ReduceOrder::fast, here).wait();
      case Mismatch::reduction:
        return g.all_reduce(four, last ? ReduceOp::max : ReduceOp::sum, ReduceOrder::fast, here).wait();
      case Mismatch::operation: return last ? g.barrier(here) : g.all_reduce(four, ReduceOp::sum, {}, here).wait();
      case Mismatch::root: return g.broadcast(four, last ? 1 : 0, here).wait();
      case Mismatch::line: return;
    }
  };
  try {
    if (kind == Mismatch::line) {
      if (last) {
        g.barrier();
      } else {
        g.barrier();
      }
    } else {
      call(std::source_location::current());
    }
  } catch (const CommError& e) {
    const std::string text = e.what();
    const auto has = [&](const char* part) {
      require(text.find(part) != std::string::npos, text + " lacks `" + part + "`");
    };
    has("conformance_test.cpp:");
    if (kind == Mismatch::count) has("f32[4]"), has("f32[5]");
    if (kind == Mismatch::dtype) has("f32[4]"), has("f64[4]");
    if (kind == Mismatch::reduction) has("sum"), has("max");
    if (kind == Mismatch::operation) has("barrier"), has("all_reduce");
    if (kind == Mismatch::root) has("rank 0"), has("from rank 1");
    return;
  }
  throw std::runtime_error("a mismatch was not found");
}

void check_abort(ProcessGroup& g, Device device) {
  if (g.rank() == g.size() - 1) {
    g.abort("the test wants it");
  } else {
    try {
      g.barrier();
      throw std::runtime_error("an aborted barrier returned");
    } catch (const CommError& e) {
      require(std::string(e.what()).find("the test wants it") != std::string::npos, e.what());
    }
  }
  try {
    g.all_reduce(tensor({1.f}, device)).wait();
  } catch (const CommError&) { return; }
  throw std::runtime_error("an aborted group was of use");
}

std::string hash_of_sums(ProcessGroup& g, DType dtype, int64_t count, ReduceOrder order) {
  std::string all;
  for (int round = 0; round < 50; ++round) {
    const Tensor t = from_data(values<float>(g.rank() + round * g.size(), count, false), {count}, Device::cpu());
    const Tensor x = t.to(dtype);
    g.all_reduce(x, ReduceOp::sum, order).wait();
    all += content_hash("t", x);
  }
  return content_hash(all);
}

}  // namespace levin::test
