// Normalisation, losses and attention.
#include "tests/fuzz/op_forms.h"

namespace levin::fuzz {
namespace {

constexpr Form kForms[] = {
    // Normalisation
    {"layer_norm",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor w = c.one_in(2) ? p.of({x.size(-1)}, x.dtype()) : p.optional();
       return Tensors{
           LEVIN_CALL(layer_norm, x, w, c.one_in(2) ? p.matching(w) : Tensor(), c.one_in(4) ? c.real() : 1e-5)};
     }},
    {"rms_norm",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return Tensors{LEVIN_CALL(rms_norm, x, c.one_in(2) ? p.of({x.size(-1)}, x.dtype()) : p.optional(), c.real())};
     }},
    {"add_layer_norm and add_rms_norm",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor r = p.matching(x);
       const Tensor w = c.one_in(2) ? p.of({x.size(-1)}, x.dtype()) : p.optional();
       if (c.one_in(2)) {
         const AddNorm y = c.one_in(2) ? add_rms_norm(x, r, w) : add_rms_norm(x, r, w, c.real());
         return Tensors{y.sum, y.normed};
       }
       const Tensor b = c.one_in(2) ? p.matching(w) : Tensor();
       const AddNorm y = add_layer_norm(x, r, w, b, c.one_in(4) ? c.real() : 1e-5);
       return Tensors{y.sum, y.normed};
     }},
    {"group_norm",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor w = c.one_in(2) ? p.of({x.size(1)}, x.dtype()) : p.optional();
       return Tensors{LEVIN_CALL(group_norm, x, c.integer(), w, c.one_in(2) ? p.matching(w) : Tensor())};
     }},
    {"batch_norm_train",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor w = c.one_in(2) ? p.of({x.size(1)}, x.dtype()) : p.optional();
       const BatchNormResult r = batch_norm_train(x, w, c.one_in(2) ? p.matching(w) : Tensor());
       return Tensors{r.y, r.mean, r.var};
     }},
    {"batch_norm_eval",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor w = c.one_in(2) ? p.of({x.size(1)}, x.dtype()) : p.optional();
       return Tensors{LEVIN_CALL(batch_norm_eval, x, w, p.matching(w), p.matching(w), p.matching(w))};
     }},
    {"batch_norm_relu_train",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor w = c.one_in(2) ? p.of({x.size(1)}, x.dtype()) : p.optional();
       const DType sums = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
       const RunningStatistics running{zeros({x.size(1)}, x.device(), sums), ones({x.size(1)}, x.device(), sums),
                                       zeros({}, x.device(), DType::i64)};
       return Tensors{LEVIN_CALL(batch_norm_relu_train, x, w, c.one_in(2) ? p.matching(w) : Tensor(), running,
                                 c.one_in(2) ? p.matching(x) : Tensor())};
     }},
    {"batch_norm_relu_eval",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor w = c.one_in(2) ? p.of({x.size(1)}, x.dtype()) : p.optional();
       return Tensors{LEVIN_CALL(batch_norm_relu_eval, x, w, p.matching(w), p.matching(w), p.matching(w),
                                 c.one_in(2) ? p.matching(x) : Tensor())};
     }},
    // Softmax, losses, attention
    LEVIN_ALONG(softmax),
    LEVIN_ALONG(log_softmax),
    LEVIN_LOSS(mse_loss),
    LEVIN_LOSS(l1_loss),
    {"cross_entropy and nll_loss",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor target = c.one_in(3) ? p.any() : p.index();
       const Tensor weight = c.one_in(3) ? p.of({x.size(1)}, x.dtype()) : p.optional();
       if (c.one_in(3)) return Tensors{nll_loss(x, target, {.weight = weight, .reduction = c.reduction()})};
       return Tensors{cross_entropy(x, target,
                                    {.weight = weight,
                                     .ignore_index = c.integer(),
                                     .label_smoothing = c.one_in(2) ? 0 : c.real(),
                                     .reduction = c.reduction()})};
     }},
    {"linear_cross_entropy",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t classes = c.size();
       const Tensor w = c.one_in(8) ? p.any() : p.of({classes, x.size(-1)}, x.dtype());
       const Tensor target = c.one_in(3) ? p.any() : p.index();
       const Tensor weight = c.one_in(3) ? p.of({classes}, x.dtype()) : p.optional();
       return Tensors{linear_cross_entropy(x, w, target, c.one_in(2) ? p.of({classes}, x.dtype()) : p.optional(),
                                           {.weight = weight,
                                            .ignore_index = c.integer(),
                                            .label_smoothing = c.one_in(2) ? 0 : c.real(),
                                            .reduction = c.reduction()})};
     }},
    {"huber_loss and smooth_l1_loss",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), to = p.matching(x);
       const double delta = c.real();
       return Tensors{huber_loss(x, to, delta, c.reduction()), smooth_l1_loss(x, to, delta, c.reduction())};
     }},
    {"binary_cross_entropy_with_logits",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), to = p.matching(x);
       return Tensors{LEVIN_CALL(binary_cross_entropy_with_logits, x, to, p.optional(), p.optional(), c.reduction())};
     }},
    {"kl_div",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), to = p.matching(x);
       return Tensors{LEVIN_CALL(kl_div, x, to, c.choice<KlReduction>(4), c.choice<LogTarget>(2))};
     }},
    {"binary_cross_entropy and multilabel_soft_margin_loss",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), to = p.matching(x);
       if (c.one_in(2)) return Tensors{LEVIN_CALL(multilabel_soft_margin_loss, x, to, p.optional(), c.reduction())};
       return Tensors{LEVIN_CALL(binary_cross_entropy, x, to, p.optional(), c.reduction())};
     }},
    {"cosine_embedding_loss and triplet_margin_loss",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), y = p.matching(x), z = p.matching(x);
       if (c.one_in(2)) return Tensors{cosine_embedding_loss(x, y, p.any(), c.real(), c.reduction())};
       return Tensors{triplet_margin_loss(x, y, z,
                                          {.margin = c.real(),
                                           .p = c.real(),
                                           .eps = c.real(),
                                           .swap = c.choice<SwapAnchor>(2),
                                           .reduction = c.reduction()})};
     }},
    {"margin_ranking_loss, hinge_embedding_loss and soft_margin_loss",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), y = p.matching(x), to = p.matching(x);
       const double margin = c.real();
       if (c.one_in(2)) return Tensors{margin_ranking_loss(x, y, to, margin, c.reduction())};
       return Tensors{hinge_embedding_loss(x, to, margin, c.reduction()), soft_margin_loss(x, to, c.reduction())};
     }},
    {"multi_margin_loss",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor target = c.one_in(3) ? p.any() : p.index();
       const Tensor weight = c.one_in(3) ? p.of({x.size(-1)}, x.dtype()) : p.optional();
       return Tensors{multi_margin_loss(
           x, target,
           {.p = c.one_in(4) ? 3 : 1 + c.one_in(2), .margin = c.real(), .weight = weight, .reduction = c.reduction()})};
     }},
    {"multilabel_margin_loss",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor target = c.one_in(3) ? p.any() : p.index();
       return Tensors{multilabel_margin_loss(x, target, c.reduction())};
     }},
    {"poisson_nll_loss and gaussian_nll_loss",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), to = p.matching(x), v = p.matching(x);
       const double eps = c.real();
       const auto constant = c.choice<LossConstant>(2);
       if (c.one_in(2))
         return Tensors{gaussian_nll_loss(x, to, v, {.constant = constant, .eps = eps, .reduction = c.reduction()})};
       return Tensors{poisson_nll_loss(
           x, to, {.input = c.choice<RateInput>(2), .constant = constant, .eps = eps, .reduction = c.reduction()})};
     }},
    LEVIN_BINARY(accuracy),
    {"rotary_embedding",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor positions = c.one_in(4) ? p.index() : arange(x.rank() > 1 ? x.size(-2) : 1, x.device());
       RotaryOptions o{.base = c.one_in(2) ? 10000 : c.real(), .pairs = c.choice<RotaryPairs>(2)};
       if (c.one_in(3)) o.dim = c.integer();
       return Tensors{rotary_embedding(x, positions, o)};
     }},
    {"rotary_table and apply_rotary",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor positions = c.one_in(4) ? p.index() : arange(x.rank() > 1 ? x.size(-2) : 1, x.device());
       const std::int64_t dim = c.one_in(8) ? c.integer() : c.one_in(3) ? c.size() : x.size(-1) / 2 * 2;
       const double base = c.one_in(2) ? 10000 : c.real();
       const DType dtype = c.one_in(4) ? c.dtype() : x.dtype() == DType::f64 ? DType::f64 : DType::f32;
       const RotaryTable table =
           c.one_in(8) ? RotaryTable{p.any(), p.any()} : rotary_table(positions, dim, base, dtype);
       return Tensors{apply_rotary(x, table, c.choice<RotaryPairs>(2)), table.cos, table.sin};
     }},
    {"ctc_loss",
     [](Chooser& c, Pool& p) {
       const std::int64_t steps = c.size(), count = small(c), classes = c.size();
       const Tensor x = c.one_in(8) ? p.any() : p.of({steps, count, classes}, c.dtype());
       const auto lengths = [&](std::int64_t most) {
         std::vector<std::int64_t> n;
         for (std::int64_t i = 0; i < count; ++i)
           n.push_back(static_cast<std::int64_t>(c.below(std::size_t(most) + 2)));
         return from_data(n, {count}, Device::cpu());
       };
       const Tensor targets = c.one_in(4) ? p.index() : ones({count, steps}, Device::cpu(), DType::i64);
       const Tensor in = lengths(steps), out = c.one_in(8) ? p.index() : lengths(steps);
       return Tensors{ctc_loss(
           x, targets, in, out,
           {.blank = c.one_in(2) ? 0 : c.integer(), .reduction = c.reduction(), .zero_infinity = c.one_in(2)})};
     }},
    {"attention_weights and grouped queries",
     [](Chooser& c, Pool& p) {
       const std::int64_t heads = small(c), rows = c.size(), cols = c.size(), width = c.size();
       const DType dtype = c.dtype();
       const Tensor q = c.one_in(8) ? p.any() : p.of({heads * small(c), rows, width}, dtype);
       const Tensor k = c.one_in(8) ? p.any() : p.of({heads, cols, width}, dtype);
       AttentionOptions o{.causal = c.choice<Causal>(2), .enable_gqa = !c.one_in(4)};
       if (c.one_in(3)) o.mask = c.one_in(2) ? p.any() : p.of({rows, cols}, c.one_in(2) ? DType::b8 : dtype);
       const Tensor v = c.one_in(8) ? p.any() : p.of({heads, cols, c.size()}, dtype);
       return Tensors{attention_weights(q, k, o), scaled_dot_product_attention(q, k, v, o)};
     }},
    {"lstm_layer",
     [](Chooser& c, Pool& p) {
       const std::int64_t steps = small(c), n = c.size(), in = c.size(), hidden = c.size();
       const DType dtype = c.dtype();
       const auto of = [&](const Shape& shape) { return c.one_in(8) ? p.any() : p.of(shape, dtype); };
       const Tensor x = of({steps, n, in}), h = of({n, hidden}), state = of({n, hidden});
       const Tensor ih = of({4 * hidden, in}), hh = of({4 * hidden, hidden});
       const LstmLayerOutput y =
           lstm_layer(x, {h, state}, {ih, hh, c.one_in(2) ? of({4 * hidden}) : Tensor()}, c.one_in(2));
       return Tensors{y.y, y.c};
     }},
    {"scaled_dot_product_attention",
     [](Chooser& c, Pool& p) {
       const std::int64_t batch = small(c), rows = c.size(), cols = c.size(), width = c.size();
       const DType dtype = c.dtype();
       const Tensor q = c.one_in(8) ? p.any() : p.of({batch, rows, width}, dtype);
       const Tensor k = c.one_in(8) ? p.any() : p.of({batch, cols, width}, dtype);
       const Tensor v = c.one_in(8) ? p.any() : p.of({batch, cols, c.size()}, dtype);
       Generator gen(1);
       AttentionOptions o{.causal = c.choice<Causal>(2)};
       if (c.one_in(3)) o.mask = c.one_in(2) ? p.any() : p.of({rows, cols}, c.one_in(2) ? DType::b8 : dtype);
       if (c.one_in(4)) o.scale = c.real();
       if (c.one_in(4)) o.dropout_p = c.real();
       if (!c.one_in(8)) o.generator = &gen;
       return Tensors{scaled_dot_product_attention(q, k, v, o)};
     }},
};

}  // namespace

std::span<const Form> network_forms() { return kForms; }

}  // namespace levin::fuzz
