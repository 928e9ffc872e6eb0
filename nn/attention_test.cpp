#include <limits>

#include "nn/golden_test.h"

namespace levin {
namespace {

TEST_CASE("multi-head attention gives PyTorch's values, with each kind of mask") {
  // m = fill(nn.MultiheadAttention(4, 2, batch_first=True)); z = wave((2, 3, 4), 0.25)
  // m(z, z, z, need_weights=False)[0]
  Root root;
  nn::MultiheadAttention m(root, "m", {.embed_dim = 4, .num_heads = 2});
  CHECK(state_names(m) ==
        std::vector<std::string>{"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"});
  fill_waves(m);
  const Tensor z = wave({2, 3, 4}, 0.25);
  check_close(m(z), {-0.558391067532063, -0.486695395236147, -0.231391907146852, -0.396418201205188, -0.520821675602601,
                     -0.522773559717597, -0.200973993906833, -0.417660911546272, -0.549383193628962, -0.493884181635592,
                     -0.226852910754248, -0.397782902416394, -0.499567541828768, -0.541298184165232, -0.187319497666547,
                     -0.424867429914982, -0.518563056954126, -0.523386222731407, -0.20207808299748,  -0.414967653717868,
                     -0.498788287093481, -0.546768135428334, -0.177790931836909, -0.437353533850316});
  // key_padding_mask leaves out key 2 of sample 0, attn_mask pairs (0, 1) and (2, 0)
  const auto b = [](std::vector<std::uint8_t> v, const Shape& shape) {
    return ne(from_data(v, shape, Device::cpu()), 0);
  };
  const Tensor padding = b({0, 0, 1, 0, 0, 0}, {2, 3}), pairs = b({0, 1, 0, 0, 0, 0, 1, 0, 0}, {3, 3});
  const std::vector<double> masked = {-0.638614587368239, -0.372448021279906, -0.366461243519268,  -0.256134882622666,
                                      -0.499517801305267, -0.544402030885876, -0.181520210745645,  -0.432692018587982,
                                      -0.38516407233823,  -0.687510108118081, -0.0261946847160426, -0.582286302758182,
                                      -0.522984417102785, -0.50090250481541,  -0.24002604549231,   -0.365940535542894,
                                      -0.518563056954126, -0.523386222731407, -0.20207808299748,   -0.414967653717868,
                                      -0.513204766464793, -0.533638127588662, -0.188117225904983,  -0.43102421175548};
  check_close(m(z, {.key_padding = padding, .attention = pairs}), masked);
  // the same masks as numbers, and one of them
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor padding_added = masked_fill(zeros({2, 3}, Device::cpu(), DType::f64), padding, -inf);
  const Tensor pairs_added = masked_fill(zeros({3, 3}, Device::cpu(), DType::f64), pairs, -inf);
  check_close(m(z, {.key_padding = padding_added, .attention = pairs}), masked);
  check_close(m(z, {.key_padding = padding_added, .attention = pairs_added}), masked);
  // attn_mask = wave((4, 3, 3), 0.1), one for each sample and head
  check_close(m(z, {.key_padding = padding, .attention = wave({4, 3, 3}, 0.1)}),
              {-0.530189496121577, -0.521865620657557, -0.193317134320528, -0.43299777892947,  -0.517548500462222,
               -0.521905205973096, -0.205883533642554, -0.409277509247977, -0.534389985481003, -0.510153685250333,
               -0.211187139347411, -0.411034678408313, -0.505799463410733, -0.533558883465602, -0.19567186012527,
               -0.41686716560267,  -0.507985584100764, -0.536193243181283, -0.188521434280297, -0.427707387839848,
               -0.503736916214547, -0.539271387968933, -0.18696950859304,  -0.427553761159379});
  // attn_mask = torch.triu(torch.ones(3, 3), 1).bool()
  check_close(m(z, {.causal = Causal::yes}),
              {-0.638614587368239, -0.372448021279906, -0.366461243519268, -0.256134882622666, -0.499517801305267,
               -0.544402030885876, -0.181520210745645, -0.432692018587982, -0.549383193628962, -0.493884181635592,
               -0.226852910754248, -0.397782902416394, -0.472039184343017, -0.56634265532836,  -0.167652934672037,
               -0.436883508787045, -0.485196350464768, -0.570860957360628, -0.145981278316904, -0.473204244308978,
               -0.498788287093481, -0.546768135428334, -0.177790931836909, -0.437353533850316});
  // both ways of saying so, beside another mask
  const Tensor later = b({0, 1, 1, 0, 0, 1, 0, 0, 0}, {3, 3});
  const Tensor both = m(z, {.key_padding = padding, .causal = Causal::yes});
  check_close(m(z, {.key_padding = padding, .attention = later}), both.detach().to_vector<double>());
  // k = wave((2, 2, 4), 1.5); m(z, k, k + 0.5)
  const Tensor k = wave({2, 2, 4}, 1.5);
  check_close(m(z, k, k + 0.5),
              {-0.684682307979165, -0.325514979312722, -0.408836244222384, -0.2232145798932,   -0.674742612950591,
               -0.310521469662206, -0.447030378766452, -0.166233355843863, -0.686735466529097, -0.321142183624047,
               -0.41502337725055,  -0.21592806565422,  -0.700507029225917, -0.288051564549677, -0.463609255670586,
               -0.157461284551853, -0.691683865315828, -0.30226306981171,  -0.44565162407584,  -0.177089942637953,
               -0.718064648541158, -0.276509208852649, -0.467802567158712, -0.161101576717891});
}

TEST_CASE("gradients of attention agree with finite differences in every parameter") {
  Root root;
  nn::MultiheadAttention m(root, "m", {.embed_dim = 4, .num_heads = 2});
  check_gradients(m, wave({2, 3, 4}, 0.25), [&](const Tensor& x) { return square(m(x, {.causal = Causal::yes})); });
  const Tensor key = wave({2, 2, 4}, 1.5);
  check_gradients(m, wave({2, 3, 4}, 0.25), [&](const Tensor& x) { return square(m(x, key, key)); });
}

TEST_CASE("attention refuses inputs and masks that do not fit") {
  Root root;
  CHECK_THROWS_AS(nn::MultiheadAttention(root, "a", {.embed_dim = 4, .num_heads = 3}), ConfigError);
  nn::MultiheadAttention m(root, "m", {.embed_dim = 4, .num_heads = 2});
  const Tensor z = wave({2, 3, 4}, 0.25);
  CHECK_THROWS_AS((void)m(wave({3, 4}, 0)), ShapeError);
  CHECK_THROWS_AS((void)m(z, wave({2, 2, 4}, 0), wave({2, 3, 4}, 0)), ShapeError);
  CHECK_THROWS_AS((void)m(z, {.key_padding = wave({3, 2}, 0)}), ShapeError);
  CHECK_THROWS_AS((void)m(z, {.attention = wave({2, 3, 3}, 0)}), ShapeError);
  CHECK_THROWS_AS((void)m(z, {.attention = zeros({3, 3}, Device::cpu(), DType::i64)}), DTypeError);
}

TEST_CASE("a transformer encoder layer gives PyTorch's values in both orders of its norms") {
  // fill(nn.TransformerEncoderLayer(4, 2, 5, batch_first=True, dropout=0.0))(wave((2, 3, 4), 0.25))
  Root root;
  nn::TransformerEncoderLayer post(root, "post", {.d_model = 4, .nhead = 2, .dim_feedforward = 5, .dropout = 0});
  CHECK(state_names(post) ==
        std::vector<std::string>{"self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight",
                                 "self_attn.out_proj.bias", "linear1.weight", "linear1.bias", "linear2.weight",
                                 "linear2.bias", "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"});
  fill_waves(post);
  const Tensor z = wave({2, 3, 4}, 0.25);
  check_close(post(z),
              {-0.732492104398329, -0.0347966184615577, 0.509468497009907,  0.623638086709074,  -0.903133204344913,
               0.193929150164692,  0.488307480256155,   0.624527252665075,  -0.755739782587902, -0.159371455137997,
               0.506050948994733,  0.518155782571362,   -0.889951017374225, 0.323117296531366,  0.473172838967104,
               0.670985217447023,  -0.781596285121592,  -0.19997665284177,  0.499210115299676,  0.456885522621812,
               -0.840958637408228, 0.324414573481605,   0.474849866297761,  0.701923066204484});
  // the same with norm_first=True, activation="gelu"
  nn::TransformerEncoderLayer pre(root, "pre",
                                  {.d_model = 4,
                                   .nhead = 2,
                                   .dim_feedforward = 5,
                                   .dropout = 0,
                                   .activation = nn::Activation::gelu,
                                   .norm_first = true});
  fill_waves(pre);
  check_close(pre(z),
              {0.543851944371389, -0.167900017681184,  0.584613622007033,  -0.509213019632851, 0.476480168358846,
               -0.8909031714601,  -0.350272169741263,  -1.37420320075816,  0.230682788427387,  -0.454372181233157,
               0.49901186197367,  -0.358068067819541,  0.737485740031763,  -0.509788947081758, -0.226288500752448,
               -1.33940481109369, -0.0441359497295121, -0.737645108745691, 0.16706049763265,   -0.376576404405264,
               0.871206708978783, -0.186187317464193,  0.0763680601531913, -1.13557075585463});
  const Tensor loss = sum(square(pre(z)));
  backward(loss);
  for (const ParamRef& p : pre.parameters()) CHECK_MESSAGE(p.value->grad().defined(), p.name);
}

}  // namespace
}  // namespace levin
