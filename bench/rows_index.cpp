// Rows of bench_kernels: lookups and scatters, and ops on graphs.
#include "bench/rows.h"

namespace levin::bench {
namespace {

void indexing(std::vector<Kernel>& k) {
  // [rows looked up, width of a row]; tables of 50304 rows, or of as many rows as are looked up.
  const std::vector<Shape> tokens{{64, 64}, {4096, 256}, {65536, 768}};
  const auto table = [](const Shape& s, DType d) { return random({std::min<std::int64_t>(50304, 4 * s[0]), s[1]}, d); };
  k.push_back({"embedding", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensor w = table(s, d), index = integers(w.size(0), {s[0]});
                 const double moved = 2.0 * double(s[0] * s[1]) * double(itemsize(d)) + 8.0 * double(s[0]);
                 return Work{[=] { (void)embedding(w, index); }, moved};
               },
               tokens});
  k.push_back({"embedding_backward", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensor w = table(s, d), index = integers(w.size(0), {s[0]});
                 Work work = backward_of(
                     {w}, [=](const Tensors& in) { return embedding(in[0], index); }, 1);
                 work.bytes += double(s[0] * s[1]) * double(itemsize(d));
                 return work;
               },
               tokens});
  // Rows above the limit are shortened by the first call: later ones only read.
  k.push_back({"embedding_renorm",
               Sizes::own,
               floats(),
               [=](const Shape& s, DType d) {
                 const Tensor w = table(s, d), index = integers(w.size(0), {s[0]});
                 return Work{[=, at = w]() mutable { embedding_renorm_(at, index, 1); },
                             double(s[0] * s[1]) * double(itemsize(d)) + 8.0 * double(s[0])};
               },
               {{64, 64}, {4096, 256}}});
  // [bags, width of a row]: bags of 1 to 15 rows, 8 on average, of a table of 50,000 rows, or of 16 for each bag.
  const std::vector<Shape> bags{{32, 16}, {4096, 64}};
  const auto bag_of = [](const Shape& s) {
    const std::int64_t rows = std::min<std::int64_t>(50000, 16 * s[0]);
    const Tensor first = arange(s[0], device()) * 8, offsets = first + minimum(integers(8, {s[0]}), first);
    return [=, index = integers(rows, {8 * s[0]})](const Tensors& in) {
      return embedding_bag(in[0], index, offsets, {.mode = Reduce::sum});
    };
  };
  const auto bag_table = [](const Shape& s, DType d) {
    return random({std::min<std::int64_t>(50000, 16 * s[0]), s[1]}, d);
  };
  const auto bag_bytes = [](const Shape& s, DType d) {
    return 9.0 * double(s[0] * s[1]) * double(itemsize(d)) + 72.0 * double(s[0]);
  };
  k.push_back({"embedding_bag", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensors in{bag_table(s, d)};
                 return Work{[=, bag = bag_of(s)] { (void)bag(in); }, bag_bytes(s, d)};
               },
               bags});
  k.push_back({"embedding_bag_both", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensor w = bag_table(s, d);
                 return both_of({w}, bag_of(s), bytes_of(w) + 2 * bag_bytes(s, d));
               },
               bags});
  // Of 1000 numbers.
  k.push_back({"unique",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 const Tensor x = integers(1000, s).to(d);
                 return Work{[=] { (void)unique(x); }, 3 * bytes_of(x)};  // and places of 8 bytes
               },
               {{1024}, {262144}}});
  // Rows of 16 numbers, many of which are equal in their first columns.
  k.push_back({"unique_rows",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 const Tensor x = integers(16, s).to(d);
                 return Work{[=] { (void)unique(x, 0); }, 2 * bytes_of(x) + 16.0 * double(s[0])};
               },
               {{256, 4}, {16384, 8}}});
  // [rows, categories, draws]
  k.push_back({"multinomial",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 const Tensor p = exp(random({s[0], s[1]}, d));
                 return Work{[=, gen = Generator(3)]() mutable { (void)multinomial(p, s[2], gen, Replacement::yes); },
                             bytes_of(p) + 8.0 * double(s[0] * s[2])};
               },
               {{4, 16, 8}, {64, 1024, 256}}});
  const std::vector<Shape> nodes{{64, 32}, {16384, 128}, {1000000, 128}};
  k.push_back({"gather_rows", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), index = integers(s[0], {s[0]});
                 return Work{[=] { (void)index_select(x, 0, index); }, 2 * bytes_of(x) + 8.0 * double(s[0])};
               },
               nodes});
  k.push_back({"scatter_add_rows", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = zeros(s, device(), d), src = random(s, d), index = integers(s[0], {s[0]});
                 return Work{[=] { (void)index_add(x, 0, index, src); }, 3 * bytes_of(x) + 8.0 * double(s[0])};
               },
               nodes});
  k.push_back({"index_copy_rows",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 const Tensor x = zeros(s, device(), d), src = random(s, d), index = integers(s[0], {s[0]});
                 return Work{[=] { (void)index_copy(x, 0, index, src); }, 3 * bytes_of(x) + 8.0 * double(s[0])};
               },
               nodes});
  // Element by element along the columns, each with a position of its own.
  const auto positions = [](const Shape& s) { return integers(s[1], s); };
  k.push_back({"scatter_amax_elements", Sizes::rows, {DType::f32}, [=](const Shape& s, DType d) {
                 const Tensor x = random(s, d), src = random(s, d), index = positions(s);
                 return Work{[=] { (void)scatter_reduce(x, 1, index, src, ScatterReduce::amax); },
                             3 * bytes_of(x) + bytes_of(index)};
               }});
  k.push_back({"gather_elements", Sizes::rows, floats(), [=](const Shape& s, DType d) {
                 const Tensor x = random(s, d), index = positions(s);
                 return Work{[=] { (void)gather(x, 1, index); }, 2 * bytes_of(x) + bytes_of(index)};
               }});
  k.push_back({"scatter_elements", Sizes::rows, floats(), [=](const Shape& s, DType d) {
                 const Tensor x = random(s, d), src = random(s, d), index = positions(s);
                 return Work{[=] { (void)scatter(x, 1, index, src); }, 3 * bytes_of(x) + bytes_of(index)};
               }});
  k.push_back({"scatter_add_elements", Sizes::rows, floats(), [=](const Shape& s, DType d) {
                 const Tensor x = random(s, d), src = random(s, d), index = positions(s);
                 return Work{[=] { (void)scatter_add(x, 1, index, src); }, 3 * bytes_of(x) + bytes_of(index)};
               }});
  k.push_back({"histc", Sizes::rows, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)histc(x, 64, -3, 3); }, bytes_of(x)};
               }});
  k.push_back({"floor_divide_i64", Sizes::rows, {DType::f32}, [](const Shape& s, DType) {
                 const Tensor a = integers(1000, s) - 500, b = integers(9, s) - 9;
                 return Work{[=] { (void)floor_divide(a, b); }, 3 * bytes_of(a)};
               }});
  k.push_back({"searchsorted", Sizes::rows, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), edges = sort(random({s[1]}, d)).values;
                 return Work{[=] { (void)searchsorted(edges, x); }, 3 * bytes_of(x)};  // and places of 8 bytes
               }});
  k.push_back({"index_put_add", Sizes::rows, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), src = random({s[1]}, d);
                 const Tensor row = integers(s[0], {s[1]}), column = integers(s[1], {s[1]});
                 return Work{[=] { (void)index_put(x, {row, column}, src, Accumulate::yes); }, 2 * bytes_of(x)};
               }});
}

// Every node has `degree` edges from nodes drawn at random. Examined once, as graphs are that train.
Csr drawn_graph(std::int64_t nodes, std::int64_t degree) {
  const Csr a{.crow = arange(0, nodes * degree + 1, degree, Device::cpu()),
              .col = integers(nodes, {nodes * degree}).to(DType::i32).to(Device::cpu()),
              .cols = nodes};
  return with_transpose(checked(a)).to(device());
}
// The same, examined, with positions of four bytes.
Csr checked_graph(std::int64_t nodes, std::int64_t degree) {
  Csr a = drawn_graph(nodes, degree).to(Device::cpu());
  for (Tensor* t : {&a.col, &a.t_col, &a.t_edge}) *t = t->to(DType::i32);
  return checked(a).to(device());
}
void graphs(std::vector<Kernel>& k) {
  const std::vector<Shape> sizes{
      {32, 4, 16}, {2708, 4, 16}, {20000, 25, 128}, {1000000, 25, 128}};  // [nodes, degree, features]
  // The traffic of a gather of rows without any reuse, and the positions.
  const auto moved = [](const Shape& s, DType d) {
    return double(s[0]) * (double(s[1] + 1) * double(s[2]) * double(itemsize(d)) + 8.0 * double(s[1] + 1));
  };
  k.push_back({"spmm", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Csr a = drawn_graph(s[0], s[1]);
                 const Tensor x = random({s[0], s[2]}, d), value = random({a.entries()}, d);
                 return Work{[=] { (void)spmm(a, value, x); }, moved(s, d)};
               },
               sizes});
  k.push_back({"spmm_backward", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Csr a = drawn_graph(s[0], s[1]);
                 Work w = backward_of(
                     {random({s[0], s[2]}, d), random({a.entries()}, d)},
                     [=](const Tensors& in) { return spmm(a, in[1], in[0]); }, 0);
                 w.bytes = 2 * moved(s, d);
                 return w;
               },
               sizes});
  k.push_back({"sddmm", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Csr a = drawn_graph(s[0], s[1]);
                 const Tensor x = random({s[0], s[2]}, d), z = random({s[0], s[2]}, d);
                 return Work{[=] { (void)sddmm(a, x, z); }, moved(s, d)};
               },
               sizes});
  k.push_back({"sddmm_backward", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Csr a = drawn_graph(s[0], s[1]);
                 Work w = backward_of(
                     {random({s[0], s[2]}, d), random({s[0], s[2]}, d)},
                     [=](const Tensors& in) { return sddmm(a, in[0], in[1]); }, 0);
                 w.bytes = 2 * moved(s, d);
                 return w;
               },
               sizes});
}
// Scores of attention with their gradients: [nodes, degree, heads] of GAT, [nodes, degree, heads, channels] of GATv2.
void scores(std::vector<Kernel>& k) {
  k.push_back({"edge_scores_both",
               Sizes::own,
               floats(),
               [](const Shape& s, DType d) {
                 const Csr a = checked_graph(s[0], s[1]);
                 const Tensor u = random({s[0], s[2]}, d), v = random({s[0], s[2]}, d);
                 return both_of(
                     {u, v}, [=](const Tensors& in) { return edge_scores(a, in[0], in[1]); },
                     3 * double(s[0] * s[1]) * (double(s[2] * itemsize(d)) * 2 + 8));
               },
               {{32, 5, 8}, {2708, 5, 8}, {100000, 25, 8}}});
  k.push_back({"gatv2_scores_both",
               Sizes::own,
               floats(),
               [](const Shape& s, DType d) {
                 const Csr a = checked_graph(s[0], s[1]);
                 const Tensor l = random({s[0], s[2], s[3]}, d), r = random({s[0], s[2], s[3]}, d),
                              attn = random({s[2], s[3]}, d);
                 return both_of(
                     {l, r, attn}, [=](const Tensors& in) { return gatv2_scores(a, in[0], in[1], in[2]); },
                     3 * double(s[0] * s[1]) * (double(s[2] * (s[3] + 1) * itemsize(d)) + 8));
               },
               {{32, 5, 8, 8}, {2708, 5, 8, 8}, {20000, 25, 4, 32}}});
}
// Segments of one length: [segments, length, features].
void segments(std::vector<Kernel>& k) {
  const std::vector<Shape> shapes{{64, 4, 1}, {2708, 4, 16}, {1000000, 25, 1}};
  const auto offsets_of = [](const Shape& s) { return arange(0, s[0] * s[1] + 1, s[1], device()); };
  const auto reduced = [](const Shape& s, DType d) {  // each element once, and one per segment
    return double(s[0] * s[1] * s[2]) * double(itemsize(d)) * (1 + 1.0 / double(s[1])) + 8.0 * double(s[0]);
  };
  k.push_back({"segment_sum", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensor x = random({s[0] * s[1], s[2]}, d), offsets = offsets_of(s);
                 return Work{[=] { (void)segment_reduce(x, offsets); }, reduced(s, d)};
               },
               shapes});
  k.push_back({"segment_sum_backward", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensor offsets = offsets_of(s);
                 Work w = backward_of(
                     {random({s[0] * s[1], s[2]}, d)},
                     [=](const Tensors& in) { return segment_reduce(in[0], offsets); }, 0);
                 w.bytes = reduced(s, d);
                 return w;
               },
               shapes});
  k.push_back({"segment_softmax", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensor x = random({s[0] * s[1], s[2]}, d), offsets = offsets_of(s);
                 return Work{[=] { (void)segment_softmax(x, offsets); }, 2 * bytes_of(x) + 8.0 * double(s[0])};
               },
               shapes});
  k.push_back({"segment_softmax_backward", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensor offsets = offsets_of(s);
                 return backward_of(
                     {random({s[0] * s[1], s[2]}, d)},
                     [=](const Tensors& in) { return segment_softmax(in[0], offsets); }, 3);
               },
               shapes});
}

}  // namespace

void index_rows(std::vector<Kernel>& k) { indexing(k); }
void graph_rows(std::vector<Kernel>& k) {
  graphs(k);
  scores(k);
  segments(k);
}

}  // namespace levin::bench
