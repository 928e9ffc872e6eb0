#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/stream.h"
#include "tests/device.h"
#include "tests/ops/harness.h"
#include "tests/skip.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Ints = std::vector<std::int64_t>;

TEST_CASE("sorting is stable, puts NaN last and takes -0 for 0, short lines and long ones alike") {
  const std::vector<double> start{kNan, 0.0, -kInf, -0.0, kInf, -kNan, 0.0, -1.0};
  const Ints rising{2, 7, 1, 3, 6, 4, 0, 5}, falling{0, 5, 4, 1, 3, 6, 7, 2};
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    CHECK(argsort(from_data(start, {8}, cpu).to(dtype)).to_vector<std::int64_t>() == rising);
    CHECK(argsort(from_data(start, {8}, cpu).to(dtype), 0, Order::descending).to_vector<std::int64_t>() == falling);
    CHECK(topk(from_data(start, {8}, cpu).to(dtype), 3).indices.to_vector<std::int64_t>() == Ints{0, 5, 4});
    // The same before 5000 larger numbers, where digits are counted instead of compared.
    std::vector<double> many = start;
    many[0] = many[4] = many[5] = -2;
    for (int i = 0; i < 5000; ++i) many.push_back(1);
    const Ints order = argsort(from_data(many, {5008}, cpu).to(dtype)).to_vector<std::int64_t>();
    const Ints first(order.begin(), order.begin() + 8);
    CHECK(first == Ints{2, 0, 4, 5, 7, 1, 3, 6});
    for (std::size_t i = 8; i < order.size(); ++i) REQUIRE(order[i] == static_cast<std::int64_t>(i));
  }
}

TEST_CASE("of equal extremes the first is chosen, and a NaN before all numbers") {
  CHECK(argmax(tensor({1.0, 3.0, 3.0}, cpu)).item<std::int64_t>() == 1);
  CHECK(argmin(tensor({1.0, kNan, -3.0, kNan}, cpu)).item<std::int64_t>() == 1);
  const Tensor columns = reshape(tensor({1.0, kNan, 5.0, 7.0, 5.0, kNan}, cpu), {3, 2});
  CHECK(max(columns, 0).indices.to_vector<std::int64_t>() == Ints{1, 0});
}

TEST_CASE("gather and scatter of more than a cache holds give what their rows give alone") {
  const std::int64_t rows = 600, cols = 9001;  // 16 bytes an element: 86 MB
  const auto modulo = [](const Tensor& n, std::int64_t m) { return remainder(n, full({}, m, cpu, DType::i64)); };
  const Tensor index = reshape(modulo(arange(0, rows * cols, 1, cpu) * 7919, cols), {rows, cols});
  Generator generator(1);
  const Tensor x = rand({rows, cols}, generator, cpu), src = rand({rows, cols}, generator, cpu);
  const Tensor gathered = gather(x, 1, index), scattered = scatter(x, 1, index, src);
  const Tensor short_rows = narrow(x, 1, 0, 3001).contiguous(), few = modulo(index, 3001);
  const Tensor onto_short = scatter(short_rows, 1, few, src);
  for (std::int64_t r = 0; r < rows; r += 37) {
    CAPTURE(r);
    const Tensor i = narrow(index, 0, r, 1), row = narrow(x, 0, r, 1), from = narrow(src, 0, r, 1);
    CHECK(testing::same_bits(narrow(gathered, 0, r, 1), gather(row, 1, i)));
    CHECK(testing::same_bits(narrow(scattered, 0, r, 1), scatter(row, 1, i, from)));
    const Tensor short_row = narrow(short_rows, 0, r, 1);
    CHECK(testing::same_bits(narrow(onto_short, 0, r, 1), scatter(short_row, 1, narrow(few, 0, r, 1), from)));
  }
}

TEST_CASE("the last of repeated writes wins, and it alone gets the gradient") {
  Tensor src = tensor({1.0, 2.0, 3.0}, cpu);
  src.requires_grad_();
  const Tensor y = scatter(zeros({2}, cpu, DType::f64), 0, tensor<std::int64_t>({1, 0, 1}, cpu), src);
  CHECK(y.to_vector<double>() == std::vector<double>{2, 3});
  CHECK(grad(sum(y), std::span(&src, 1))[0].to_vector<double>() == std::vector<double>{0, 1, 1});
}

TEST_CASE("rows that an index names twice are those of the last, by index_copy and by a scatter of each element") {
  Generator g(11);
  for (const Shape& shape : {Shape{700, 90}, Shape{3, 400, 70}, Shape{40, 1, 900}}) {
    const int dim = shape.rank() == 2 ? 0 : 1;
    const std::int64_t n = shape[dim], m = 2 * n;
    const Tensor x = randn(shape, g, cpu), src = randn(shape.with(dim, m), g, cpu), at = randint(0, n, {m}, g, cpu);
    Tensor places = at;
    for (int d = 0; d < dim; ++d) places = unsqueeze(places, 0);
    while (places.rank() < x.rank()) places = unsqueeze(places, -1);
    const Tensor each = expand(places, src.shape()).contiguous();
    CHECK(equal(index_copy(x, dim, at, src), scatter(x, dim, each, src)));
    CHECK(equal(index_copy(transpose(x, 0, 1).contiguous().transpose(0, 1), dim, at, src), scatter(x, dim, each, src)));
  }
  CHECK_THROWS_AS((void)index_copy(zeros({4, 3}, cpu), 0, full({2}, 4, cpu, DType::i64), zeros({2, 3}, cpu)),
                  IndexError);
}

TEST_CASE("columns that an index names in long runs are those that it names one by one") {
  Generator g(13);
  const Tensor x = randn({50, 300}, g, cpu), back = transpose(x, 0, 1).contiguous();
  const auto along = [](std::int64_t from, std::int64_t to) { return slice(arange(300, cpu), 0, from, to); };
  for (const Tensor& at : {cat({along(7, 8), along(0, 300), along(250, 260)}), cat({along(20, 90), along(0, 200)}),
                           along(0, 300), randint(0, 300, {400}, g, cpu), along(5, 6), along(5, 5)}) {
    const Tensor y = index_select(x, 1, at);
    CHECK(equal(y, transpose(index_select(back, 0, at), 0, 1)));
    CHECK(equal(y, gather(x, 1, expand(unsqueeze(at, 0), y.shape()))));
  }
}

TEST_CASE("an extreme that an index scatters is that of all its elements, and NaN wins") {
  Generator g(12);
  const Shape shape{50, 300};
  for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
    CAPTURE(dtype);
    Tensor x = (randn(shape, g, cpu) * 9).to(dtype), src = (randn(shape, g, cpu) * 9).to(dtype);
    if (is_float(dtype)) src = masked_fill(src, lt(rand(shape, g, cpu), 0.01), kNan);
    const Tensor at = randint(0, 40, shape, g, cpu);
    for (const IncludeSelf include : {IncludeSelf::yes, IncludeSelf::no}) {
      const auto in = x.to(DType::f64).to_vector<double>(), from = src.to(DType::f64).to_vector<double>();
      const auto index = at.to_vector<std::int64_t>();
      std::vector<double> most = in, least = in;
      std::vector<char> seen(in.size(), include == IncludeSelf::yes ? 1 : 0);
      for (std::size_t i = 0; i < from.size(); ++i) {
        const std::size_t to = i / 300 * 300 + static_cast<std::size_t>(index[i]);
        const auto better = [&](double now, double next, bool larger) {
          return std::isnan(now) ? now : std::isnan(next) || (larger ? next > now : next < now) ? next : now;
        };
        most[to] = seen[to] != 0 ? better(most[to], from[i], true) : from[i];
        least[to] = seen[to] != 0 ? better(least[to], from[i], false) : from[i];
        seen[to] = 1;
      }
      const auto same = [&](ScatterReduce how, const std::vector<double>& expected) {
        const auto got = scatter_reduce(x, 1, at, src, how, include).to(DType::f64).to_vector<double>();
        for (std::size_t i = 0; i < got.size(); ++i)
          REQUIRE((got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]))));
      };
      same(ScatterReduce::amax, most);
      same(ScatterReduce::amin, least);
    }
  }
}

TEST_CASE("parts with short lines move whole, however many there are and whichever way they run") {
  const Tensor x = reshape(arange(90000, cpu), {30000, 3}), turned = flip(x, {1}), rolled = roll(x, {1}, {1});
  const auto a = turned.to_vector<std::int64_t>(), b = rolled.to_vector<std::int64_t>();
  const auto c = slice(x, 1, 1, 2).contiguous().to_vector<std::int64_t>();
  for (std::int64_t i = 0; i < 30000; ++i) {
    for (std::int64_t k = 0; k < 3; ++k) {
      REQUIRE(a[std::size_t(3 * i + k)] == 3 * i + 2 - k);
      REQUIRE(b[std::size_t(3 * i + k)] == 3 * i + (k + 2) % 3);
    }
    REQUIRE(c[std::size_t(i)] == 3 * i + 1);
  }
  const Tensor wide = reshape(arange(90000, cpu), {3000, 30});
  CHECK(equal(flip(flip(wide, {0, 1}), {0, 1}), wide));
  CHECK(flip(wide, {1}).to_vector<std::int64_t>()[31] == 58);
}

TEST_CASE("16-bit sums by index are rounded once") {
  const Tensor index = zeros({5000}, cpu, DType::i64), src = ones({5000}, cpu, DType::f16);
  CHECK(scatter_add(zeros({1}, cpu, DType::f16), 0, index, src).item() == 5000);
  CHECK(index_add(zeros({1}, cpu, DType::f16), 0, index, src).item() == 5000);
}

TEST_CASE("the padding row of an embedding is read but gets no gradient") {
  Tensor weight = ones({3, 2}, cpu, DType::f64);
  weight.requires_grad_();
  const Tensor y = embedding(weight, tensor<std::int64_t>({2, 0, 2, 1}, cpu), -1);
  CHECK(sum(y).item() == 8);
  CHECK(grad(sum(y), std::span(&weight, 1))[0].to_vector<double>() == std::vector<double>{1, 1, 1, 1, 0, 0});
}

TEST_CASE("an op that refuses an index leaves its inputs as they were") {
  Tensor x = zeros({3}, cpu);
  const std::uint32_t before = x.version();
  CHECK_THROWS_AS((void)scatter(x, 0, tensor<std::int64_t>({0, 9}, cpu), ones({2}, cpu)), IndexError);
  CHECK(x.version() == before);
  CHECK(x.to_vector<float>() == std::vector<float>(3));
}

TEST_CASE("a device reports an index outside at the next wait, and goes on") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  const Tensor weight = ones({3, 2}, *device), good = tensor<std::int64_t>({2, 0}, *device),
               bad = tensor<std::int64_t>({0, 5}, *device), negative = tensor<std::int64_t>({-1, 1}, *device);
  const auto throws_at_wait = [&](const std::function<Tensor()>& op, const std::string& want) {
    const Tensor y = op();
    try {
      synchronize(*device);
      FAIL_CHECK("no error, expected " << want);
    } catch (const IndexError& e) { CHECK_MESSAGE(std::string(e.what()).find(want) == 0, e.what()); }
    CHECK(sum(embedding(weight.to(cpu), good.to(cpu))).item() == 4);
    CHECK(embedding(weight, good).to(cpu).to_vector<float>() == std::vector<float>(4, 1));
  };
  const std::string on = " is out of range on " + text(*device) + ", expected 0 to ";
  throws_at_wait([&] { return embedding(weight, bad); }, "embedding: index 5" + on + "2");
  throws_at_wait([&] { return index_select(weight, 1, negative); }, "index_select: index -1" + on + "1");
  throws_at_wait([&] { return index_add(weight, 0, bad, ones({2, 2}, *device)); }, "index_add: index 5" + on + "2");
  const Tensor pair = reshape(bad, {1, 2});
  throws_at_wait([&] { return gather(weight, 0, pair); }, "gather: index 5" + on + "2");
  throws_at_wait([&] { return scatter(weight, 0, pair, ones({1, 2}, *device)); }, "scatter: index 5" + on + "2");
  throws_at_wait(
      [&] {
        return scatter_add(weight, 0, pair, ones({1, 2}, *device));
      },
      "scatter_add: index 5" + on + "2");
  throws_at_wait([&] { return one_hot(bad, 4); }, "one_hot: index 5" + on + "3");
  throws_at_wait([&] { return remainder(good, bad); },
                 "remainder: the divisor holds a 0 on " + text(*device) + ", expected none in an integer tensor");
}

TEST_CASE("sums by index on a device: skewed indices, many rows, every width of a row") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  struct Case {
    std::int64_t rows, n, inner;
  };
  // More than one tile and one digit of the sort, rows in vectors and by elements.
  for (const Case& c : {Case{70'000, 2500, 1}, Case{300, 3000, 3}, Case{5, 700, 8}, Case{1, 520, 2}}) {
    CAPTURE(c.rows);
    Ints where(static_cast<std::size_t>(c.n));
    for (std::size_t i = 0; i < where.size(); ++i) {
      // Half of the indices are the last row: a run of whole chunks that begins and ends inside of others.
      const auto k = static_cast<std::int64_t>(i);
      where[i] = i % 2 == 0 ? c.rows - 1 : k * 7919 % c.rows;
    }
    const Tensor at = from_data(where, {c.n}, cpu);
    Generator g(1);
    // Integers as floats: every order gives the same sum, in f16 too.
    const Tensor src = randint(-2, 3, {c.n, c.inner}, g, cpu, DType::f32), x = ones({c.rows, c.inner}, cpu);
    for (const DType t : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64}) {
      CAPTURE(text(t));
      const Tensor a = x.to(t), s = src.to(t);
      CHECK(testing::same_bits(index_add(a, 0, at, s), index_add(a.to(*device), 0, at.to(*device), s.to(*device))));
      const Tensor wide = expand(unsqueeze(at, 1), {c.n, c.inner}).contiguous();
      CHECK(testing::same_bits(scatter_add(a, 0, wide, s),
                               scatter_add(a.to(*device), 0, wide.to(*device), s.to(*device))));
      CHECK(testing::same_bits(scatter(a, 0, wide, s), scatter(a.to(*device), 0, wide.to(*device), s.to(*device))));
    }
  }
}

TEST_CASE("scatters along lines of a device: repeated and missing indices, long runs, every dimension and type") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  struct Case {
    Shape x;
    int dim;
    std::int64_t indices;
  };
  // Several lines a block, one, and none: lines of 9000 elements are sorted. Neighbours in inner fill a tile or do not.
  for (const Case& c :
       {Case{{7, 40}, 1, 60}, Case{{3, 5, 33}, 2, 1}, Case{{2, 1500}, 1, 2100}, Case{{1, 8192}, 1, 700},
        Case{{2, 50, 13}, 1, 41}, Case{{300, 3}, 0, 520}, Case{{31, 1}, 0, 64}, Case{{2, 9000}, 1, 33}}) {
    CAPTURE(text(c.x));
    const Shape shape = c.x.with(c.dim, c.indices);
    const std::int64_t n = c.x[c.dim];
    Generator g(5);
    const Tensor drawn = randint(0, n, shape, g, cpu), one = full(shape, n - 1, cpu, DType::i64),
                 few = randint(0, std::min<std::int64_t>(n, 9), shape, g, cpu);
    for (const Tensor& index : {drawn, one, few}) {
      const Tensor there = index.to(*device);
      // Integers as floats: every order gives the same sum.
      const Tensor src = randint(-2, 3, shape, g, cpu), x = randint(-9, 9, c.x, g, cpu);
      for (const DType t : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64}) {
        CAPTURE(text(t));
        const Tensor a = x.to(t), s = src.to(t), b = a.to(*device), r = s.to(*device);
        CHECK(testing::same_bits(scatter_add(a, c.dim, index, s), scatter_add(b, c.dim, there, r)));
        CHECK(testing::same_bits(scatter(a, c.dim, index, s), scatter(b, c.dim, there, r)));
      }
    }
    // Up to sixteen positions of an element are added one after another, in their order: any floats have the bits of
    // the CPU.
    const Tensor spread = remainder(arange(shape.numel(), cpu), full({}, n, cpu, DType::i64));
    const Tensor index = reshape(spread, Dims(shape.dims())), src = randn(shape, g, cpu), x = randn(c.x, g, cpu);
    if (shape.numel() <= 2 * n)
      CHECK(testing::same_bits(scatter_add(x, c.dim, index, src),
                               scatter_add(x.to(*device), c.dim, index.to(*device), src.to(*device))));
  }
  const Tensor bytes = tensor<std::uint8_t>({1, 2, 250}, cpu), at = full({40}, 2, cpu, DType::i64),
               ones_ = ones({40}, cpu, DType::u8);
  CHECK(testing::same_bits(scatter_add(bytes, 0, at, ones_),
                           scatter_add(bytes.to(*device), 0, at.to(*device), ones_.to(*device))));
  // A view as x, a src that is larger than the index, NaN and infinities.
  Generator g(6);
  const Tensor wide = randn({6, 21}, g, cpu), x = narrow(wide, 1, 1, 20), src = randn({9, 30}, g, cpu),
               index = randint(0, 20, {6, 11}, g, cpu);
  const Tensor view = narrow(wide.to(*device), 1, 1, 20);
  CHECK(testing::same_bits(scatter_add(x, 1, index, src), scatter_add(view, 1, index.to(*device), src.to(*device))));
  CHECK(testing::same_bits(scatter(x, 1, index, src), scatter(view, 1, index.to(*device), src.to(*device))));
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor bad = tensor({inf, -inf, std::nanf(""), 1.f, inf}, cpu), to = tensor<std::int64_t>({0, 0, 1, 2, 3}, cpu);
  const auto got = scatter_add(zeros({5}, *device), 0, to.to(*device), bad.to(*device)).to_vector<float>();
  CHECK((std::isnan(got[0]) && std::isnan(got[1]) && got[2] == 1 && got[3] == inf && got[4] == 0));
}

TEST_CASE("scatters along lines are one kernel of a device, and elements that an index_add names are added in place") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  Generator g(7);
  const Tensor x = randn({40, 64}, g, cpu), src = randn({40, 64}, g, cpu), index = randint(0, 64, {40, 64}, g, cpu);
  const Tensor a = x.to(*device), s = src.to(*device), at = index.to(*device);
  const auto kernels = [&](const auto& f) {
    f();  // what is made once is made here
    return Graph(Stream::current(*device), f).nodes();
  };
  CHECK(kernels([&] { (void)scatter(a, 1, at, s); }) == 1);
  CHECK(kernels([&] { (void)scatter_add(a, 1, at, s); }) == 1);
  // 300 of 3000 elements, an eighth of them named twice or more, and one of them 200 times.
  const Tensor line = randn({3000}, g, cpu), few = randint(0, 3000, {300}, g, cpu), add = randn({300}, g, cpu);
  const Tensor often = where(lt(arange(300, cpu), 200), full({300}, 77, cpu, DType::i64), few);
  for (const Tensor& i : {few, often})
    CHECK(amax(abs(index_add(line.to(*device), 0, i.to(*device), add.to(*device)).to(cpu) - index_add(line, 0, i, add)))
              .item() <= 1e-4);
  CHECK(testing::same_bits(index_add(line, 0, few, add),
                           index_add(line.to(*device), 0, few.to(*device), add.to(*device))));
}

TEST_CASE("an op whose result's size depends on values can not be recorded on a device") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  const Tensor x = ones({3}, *device), mask = ones({3}, *device, DType::b8), index = zeros({3}, *device, DType::i64);
  const auto refused = [&](const char* what, const std::function<void()>& op) {
    try {
      const Graph graph(Stream::current(*device), op);
      FAIL_CHECK(what << " was recorded");
    } catch (const CaptureError& e) { CHECK(std::string(e.what()).find(what) == 0); }
  };
  refused("nonzero: ", [&] { (void)nonzero(x); });
  refused("masked_select: ", [&] { (void)masked_select(x, mask); });
  refused("bincount: ", [&] { (void)bincount(index); });
}

TEST_CASE("factories give the bits of the cpu on a device") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  const auto same = [&](const std::function<Tensor(Device)>& make) {
    CHECK(testing::same_bits(make(cpu), make(*device)));
  };
  for (const DType t : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    CAPTURE(text(t));
    for (const std::int64_t n : {0, 1, 2, 7, 1031}) {
      CAPTURE(n);
      same([&](Device d) { return linspace(-0.3, 1.7, n, d, t); });
      same([&](Device d) { return arange(0.1, 0.1 + 0.3 * double(n), 0.3, d, t); });
    }
  }
  for (const DType t : {DType::f32, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    CAPTURE(text(t));
    same([&](Device d) { return arange(1, 250, 3, d, t); });
    same([&](Device d) { return eye(5, 3, d, t); });
    same([&](Device d) { return eye(2, 9, d, t); });
    same([&](Device d) { return eye(0, 4, d, t); });
  }
}

TEST_CASE("no index fits a dimension without elements, however many there are") {
  const Tensor x = empty({65536, 0}, cpu), index = full({65536, 64}, 5, cpu, DType::i64), src = ones({65536, 64}, cpu);
  for (const auto& f : {+[](const Tensor&a, const Tensor&i, const Tensor&b) { return scatter(a, 1, i, b); },
                        +[](const Tensor&a, const Tensor&i, const Tensor&b) { return scatter_add(a, 1, i, b); },
                        +[](const Tensor&a, const Tensor&i, const Tensor&) { return gather(a, 1, i); }})
    CHECK_THROWS_AS((void)f(x, index, src), IndexError);
}

TEST_CASE("an index without elements scatters nothing, and src has the gradient 0, whatever their sizes") {
  for (const bool adds : {false, true}) {
    Tensor x = ones({15, 2}, cpu), src = ones({15, 0}, cpu), longer = ones({4, 3}, cpu);
    for (Tensor* t : {&x, &src, &longer}) t->requires_grad_();
    const auto call = [&](const Tensor& index, const Tensor& from) {
      return adds ? scatter_add(x, 0, index, from) : scatter(x, 0, index, from);
    };
    for (const auto& [index, from] :
         {std::pair{zeros({17, 0}, cpu, DType::i64), src}, {zeros({0, 5}, cpu, DType::i64), longer}}) {
      const Tensors g = grad(Tensors{sum(call(index, from))}, Tensors{x, from});
      CHECK(equal(g[0], ones({15, 2}, cpu)));
      CHECK(equal(g[1], zeros(from.shape(), cpu)));
    }
  }
}

TEST_CASE("counts of a long index are those of its parts, whatever the number of threads") {
  Generator generator(3);
  const std::int64_t n = 400'000;
  const Tensor index = randint(0, 67, {n}, generator, cpu);
  Tensor parts = zeros({67}, cpu, DType::i64);
  for (std::int64_t from = 0; from < n; from += 1000) parts = parts + bincount(narrow(index, 0, from, 1000), 67);
  const int before = num_threads();
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    CHECK(equal(bincount(index, 67), parts));
    // Where the numbers are as many as the indices, one thread counts.
    CHECK(equal(narrow(bincount(index, n), 0, 0, 67), parts));
  }
  set_num_threads(before);
}

TEST_CASE(
    "scatter and scatter_add onto one repeated element give what they give onto a full tensor, at every length of a "
    "row") {
  for (const std::int64_t row : {std::int64_t{1}, std::int64_t{7}, std::int64_t{4096}, (std::int64_t{1} << 17) + 1}) {
    const std::int64_t picks = (row + 7) / 8;
    const Tensor places = reshape(arange(0, 6 * picks, 1, cpu) * 7919, {3, 2, picks}),
                 index = remainder(places, full({}, row, cpu, DType::i64));
    const Tensor src = arange(0, 6 * picks, 1, cpu).reshape({3, 2, picks});
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      for (const double value : {0.0, 3.0}) {
        const Tensor one = full({1, 1, 1}, value, cpu, dtype), from = src.to(dtype);
        CHECK(equal(scatter(expand(one, {3, 2, row}), 2, index, from),
                    scatter(full({3, 2, row}, value, cpu, dtype), 2, index, from)));
        CHECK(equal(scatter_add(expand(one, {3, 2, row}), 2, index, from),
                    scatter_add(full({3, 2, row}, value, cpu, dtype), 2, index, from)));
      }
    }
    CHECK_THROWS_AS((void)scatter(expand(zeros({1, 1, 1}, cpu), {3, 2, row}), 2, full({3, 2, 1}, row, cpu, DType::i64),
                                  ones({3, 2, 1}, cpu)),
                    IndexError);
  }
}

}  // namespace
}  // namespace levin
