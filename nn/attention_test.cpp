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

TEST_CASE("attention to keys and values of other widths gives PyTorch's values and weights under its names") {
  // m = fill(nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True))
  // m(z, wave((2, 2, 3), 1.5), wave((2, 2, 5), 0.75))
  Root root;
  nn::MultiheadAttention m(root, "m", {.embed_dim = 4, .num_heads = 2, .kdim = 3, .vdim = 5});
  CHECK(state_names(m) == std::vector<std::string>{"q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias",
                                                   "out_proj.weight", "out_proj.bias"});
  fill_waves(m);
  const Tensor z = wave({2, 3, 4}, 0.25), k = wave({2, 2, 3}, 1.5), v = wave({2, 2, 5}, 0.75);
  check_close(m(z, k, v),
              {-0.15235238072525,  0.0453269678024115,   0.758041155958089,   0.0603391189619222,  -0.157678084155922,
               0.031569951877231,  0.78929119488004,     0.0152071652490478,  -0.155875318812464,  0.0434415512553782,
               0.765117057229466,  0.0488903909924416,   -0.130817997651212,  0.0109850080480717,  0.801222296289817,
               0.0133086084840564, -0.120095211406759,   0.00231428929165317, 0.806838999889269,   0.0113949600158401,
               -0.110339322038147, -0.00997368010789698, 0.820239109100075,   -0.00156883511625189});
  const nn::AttentionOutput out = m.with_weights(z, k, v);
  check_close(out.y, m(z, k, v).detach().to_vector<double>());
  check_close(out.weights, {0.567996079667462, 0.432003920332539, 0.456611356960924, 0.543388643039076,
                            0.53320032878071, 0.46679967121929, 0.485367229944, 0.514632770056, 0.520300560844733,
                            0.479699439155267, 0.474435711338505, 0.525564288661495});
  const Tensor heads = m.with_weights(z, k, v, {}, nn::AverageHeads::no).weights;
  CHECK(heads.shape() == Shape{2, 2, 3, 2});
  check_close(mean(heads, {1}), out.weights.detach().to_vector<double>());
  CHECK_THROWS_WITH_AS((void)m(z, z, v), doctest::Contains("key has shape [2, 3, 4], expected [N, L, 3]"), ShapeError);
  CHECK_THROWS_AS((void)m(z), ShapeError);
}

TEST_CASE("attention to a trained key and to a zero gives PyTorch's values, whatever the masks") {
  // m = fill(nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True))
  // m(z, z, z, key_padding_mask=padding, attn_mask=torch.triu(torch.ones(3, 3), 1).bool(), average_attn_weights=False)
  Root root;
  nn::MultiheadAttention m(root, "m", {.embed_dim = 4, .num_heads = 2, .add_bias_kv = true, .add_zero_attn = true});
  CHECK(state_names(m) == std::vector<std::string>{"in_proj_weight", "in_proj_bias", "bias_k", "bias_v",
                                                   "out_proj.weight", "out_proj.bias"});
  fill_waves(m);
  const Tensor z = wave({2, 3, 4}, 0.25);
  const Tensor padding = ne(from_data(std::vector<std::uint8_t>{0, 0, 1, 0, 0, 0}, {2, 3}, Device::cpu()), 0);
  const std::vector<double> y = {-0.134412503918775, 0.182010666642884, 0.482528409846176, 0.442843949172684,
                                 -0.252839481183845, 0.314854670867784, 0.350618209902081, 0.558577419646575,
                                 -0.230427109517537, 0.289379175648631, 0.376212999705939, 0.535820949349901,
                                 -0.155511802922359, 0.184823109876499, 0.498327815156611, 0.410258400633527,
                                 -0.26896295541755,  0.326324206310856, 0.345127979072679, 0.557453920489284,
                                 -0.273147168181697, 0.342504397776686, 0.318821516086024, 0.590846803283453};
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor added = masked_fill(zeros({2, 3}, Device::cpu(), DType::f64), padding, -inf);
  for (const Tensor& mask : {padding, added}) {
    const nn::AttentionMasks masks{.key_padding = mask, .causal = Causal::yes};
    check_close(m(z, masks), y);
    check_close(m.with_weights(z, z, z, masks, nn::AverageHeads::no).weights, {0.344271771804538,
                                                                               0,
                                                                               0,
                                                                               0.34458836517973,
                                                                               0.311139863015732,
                                                                               0.209285084091985,
                                                                               0.256611080741567,
                                                                               0,
                                                                               0.252189390056008,
                                                                               0.28191444511044,
                                                                               0.270042142327883,
                                                                               0.179644756409984,
                                                                               0,
                                                                               0.280725668627871,
                                                                               0.269587432634262,
                                                                               0.270198682501754,
                                                                               0,
                                                                               0,
                                                                               0.39434006434944,
                                                                               0.335461253148806,
                                                                               0.228425490943752,
                                                                               0.269247988622622,
                                                                               0,
                                                                               0.273014095313671,
                                                                               0.229312425119955,
                                                                               0.214487880790201,
                                                                               0.199238446643083,
                                                                               0,
                                                                               0.321883798451109,
                                                                               0.264389874115607,
                                                                               0.271028302115559,
                                                                               0,
                                                                               0,
                                                                               0.358609645444934,
                                                                               0.370362052439507,
                                                                               0.241358481463897,
                                                                               0.225059170783398,
                                                                               0,
                                                                               0.260509926123079,
                                                                               0.273072421629626,
                                                                               0.13639511395922,
                                                                               0.218794698377628,
                                                                               0.159525459944167,
                                                                               0.249145891214431,
                                                                               0.236138836504554,
                                                                               0.337232589580918,
                                                                               0,
                                                                               0,
                                                                               0.354865820285234,
                                                                               0.307901590133848,
                                                                               0.192487704130052,
                                                                               0.254570520733676,
                                                                               0,
                                                                               0.307158146874796,
                                                                               0.245783628261476,
                                                                               0.173353076255822,
                                                                               0.215870678817473,
                                                                               0.168238517597367,
                                                                               0.235098763909169,
                                                                               0.207438963420169});
  }
  check_gradients(m, z, [&](const Tensor& x) { return square(m(x, {.causal = Causal::yes})); });
}

TEST_CASE("attention with its batches second is that of the transposed tensors") {
  Root root;
  nn::MultiheadAttention m(root, "m", {.embed_dim = 4, .num_heads = 2});
  nn::MultiheadAttention second(root, "second", {.embed_dim = 4, .num_heads = 2, .batch_first = false});
  second.load_state_dict(m.state_dict());
  const Tensor q = wave({2, 3, 4}, 0.25), k = wave({2, 5, 4}, 1.5);
  const auto turned = [](const Tensor& t) { return transpose(t, 0, 1); };
  check_close(turned(second(turned(q))), m(q).detach().to_vector<double>());
  check_close(turned(second(turned(q), turned(k), turned(k))), m(q, k, k).detach().to_vector<double>());
  CHECK(second.with_weights(turned(q), turned(k), turned(k)).weights.shape() == Shape{2, 3, 5});
  CHECK_THROWS_AS((void)second(turned(q), k, k), ShapeError);
}

TEST_CASE("attention weights in training are those after dropout") {
  Root root;
  nn::MultiheadAttention m(root, "m", {.embed_dim = 4, .num_heads = 1, .dropout = 0.5});
  const Tensor z = wave({2, 20, 4}, 0.25);
  const Tensor w = m.with_weights(z, z, z).weights.detach();
  CHECK(any(eq(w, 0)).item<bool>());
  m.eval();
  check_close(sum(m.with_weights(z, z, z).weights, {2}), std::vector<double>(40, 1.0));
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
  CHECK_THROWS_AS(nn::MultiheadAttention(root, "b", {.embed_dim = 4, .num_heads = 2, .kdim = 0}), ConfigError);
  CHECK_THROWS_AS(nn::MultiheadAttention(root, "c", {.embed_dim = 4, .num_heads = 2, .vdim = -1}), ConfigError);
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
