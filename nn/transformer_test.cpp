#include "levin/nn/transformer.h"

#include "nn/golden_test.h"

namespace levin {
namespace {

const Tensor z = wave({2, 3, 4}, 0.25), memory = wave({2, 2, 4}, 1.5);

TEST_CASE("a transformer decoder layer gives PyTorch's values in both orders of its norms") {
  // fill(nn.TransformerDecoderLayer(4, 2, 5, batch_first=True, dropout=0.0))(z, wave((2, 2, 4), 1.5))
  Root root;
  nn::TransformerDecoderLayer post(root, "post", {.d_model = 4, .nhead = 2, .dim_feedforward = 5, .dropout = 0});
  CHECK(state_names(post) == std::vector<std::string>{"self_attn.in_proj_weight", "self_attn.in_proj_bias",
                                                      "self_attn.out_proj.weight", "self_attn.out_proj.bias",
                                                      "multihead_attn.in_proj_weight", "multihead_attn.in_proj_bias",
                                                      "multihead_attn.out_proj.weight", "multihead_attn.out_proj.bias",
                                                      "linear1.weight", "linear1.bias", "linear2.weight",
                                                      "linear2.bias", "norm1.weight", "norm1.bias", "norm2.weight",
                                                      "norm2.bias", "norm3.weight", "norm3.bias"});
  fill_waves(post);
  check_close(post(z, memory),
              {-0.163325734730737, 0.222046202549459,  0.399480908118699,  0.688462550722676,  -0.262370275751102,
               0.322843504348481,  0.387876965158448,  0.683686536411821,  -0.189223194314495, 0.223989888885357,
               0.40907066932444,   0.687783492807589,  -0.217160046858323, 0.314850526830391,  0.374214097684476,
               0.685378403967914,  -0.218425283806317, 0.226470286849447,  0.419227248370871,  0.686721564976476,
               -0.197443180316654, 0.291419943759477,  0.378664691519215,  0.686636160971565});
  // the same with norm_first=True, activation="gelu",
  // tgt_mask=generate_square_subsequent_mask(3), memory_key_padding_mask=torch.tensor([[0, 1], [0, 0]]).bool()
  nn::TransformerDecoderLayer pre(root, "pre",
                                  {.d_model = 4,
                                   .nhead = 2,
                                   .dim_feedforward = 5,
                                   .dropout = 0,
                                   .activation = nn::Activation::gelu,
                                   .norm_first = true});
  fill_waves(pre);
  const Tensor padding = ne(from_data(std::vector<std::uint8_t>{0, 1, 0, 0}, {2, 2}, Device::cpu()), 0);
  const std::vector<double> masked = {-0.237600504954917, 0.354080086436569,  0.610512915811004,  0.184268466242331,
                                      -0.283090346966269, -0.426808624365021, -0.23711257391518,  -0.786964077449154,
                                      -0.50515907295086,  0.0212877409764069, 0.566667756515926,  0.302865502290853,
                                      0.0202326494453323, -0.143212576735989, 0.0284124335033951, -0.92153104351497,
                                      -0.741443071619863, -0.388644576928831, 0.434810678389447,  0.0340427504263718,
                                      0.181497370779036,  0.142012730194053,  0.37568875662073,   -0.763317317984879};
  check_close(pre(z, memory, {.tgt = {.causal = Causal::yes}, .memory = {.key_padding = padding}}), masked);
  const Tensor later = nn::generate_square_subsequent_mask(3, Device::cpu(), DType::f64);
  check_close(pre(z, memory, {.tgt = {.attention = later}, .memory = {.key_padding = padding}}), masked);
  check_gradients(pre, z, [&](const Tensor& x) { return square(pre(x, memory)); });
  check_gradients(post, memory, [&](const Tensor& x) { return square(post(z, x)); });
}

TEST_CASE("a stack of encoder layers with a norm gives PyTorch's values") {
  // fill(nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 5, 0.0, batch_first=True), 2, nn.LayerNorm(4)))(z)
  Root root;
  const nn::TransformerEncoderLayerOptions layer{.d_model = 4, .nhead = 2, .dim_feedforward = 5, .dropout = 0};
  nn::TransformerEncoder m(root, "m", {.layer = layer, .num_layers = 2, .norm = true});
  fill_waves(m);
  check_close(m(z), {0.491372871299526, 0.542975833990498, 0.649258632490521, 0.523415015835871, 0.489810616123524,
                     0.521862685980022, 0.654863528131841, 0.543354383708455, 0.492085280189151, 0.550914794495032,
                     0.656664716896198, 0.507592317629052, 0.488520156207065, 0.507540930100531, 0.654169339432983,
                     0.559617943758308, 0.492066998342356, 0.550199993621721, 0.658375499677093, 0.507038335680393,
                     0.488477621996702, 0.507889670060923, 0.651084118818066, 0.561705051304908});
  nn::TransformerEncoder bare(root, "bare", {.layer = layer, .num_layers = 2});
  CHECK(bare.load_state_dict(m.state_dict(), nn::Strict::no).unexpected ==
        std::vector<std::string>{"norm.weight", "norm.bias"});
  check_close((*m.norm)(bare(z)), m(z).detach().to_vector<double>());
}

TEST_CASE("a transformer gives PyTorch's values under its names") {
  // m = fill(nn.Transformer(4, 2, 1, 2, 5, 0.0, batch_first=True))
  // m(wave((2, 2, 4), 1.5), z, tgt_mask=m.generate_square_subsequent_mask(3))
  Root root;
  const nn::TransformerOptions options{
      .d_model = 4, .nhead = 2, .num_encoder_layers = 1, .num_decoder_layers = 2, .dim_feedforward = 5, .dropout = 0};
  nn::Transformer m(root, "m", options);
  CHECK(state_names(m) == std::vector<std::string>{"encoder.layers.0.self_attn.in_proj_weight",
                                                   "encoder.layers.0.self_attn.in_proj_bias",
                                                   "encoder.layers.0.self_attn.out_proj.weight",
                                                   "encoder.layers.0.self_attn.out_proj.bias",
                                                   "encoder.layers.0.linear1.weight",
                                                   "encoder.layers.0.linear1.bias",
                                                   "encoder.layers.0.linear2.weight",
                                                   "encoder.layers.0.linear2.bias",
                                                   "encoder.layers.0.norm1.weight",
                                                   "encoder.layers.0.norm1.bias",
                                                   "encoder.layers.0.norm2.weight",
                                                   "encoder.layers.0.norm2.bias",
                                                   "encoder.norm.weight",
                                                   "encoder.norm.bias",
                                                   "decoder.layers.0.self_attn.in_proj_weight",
                                                   "decoder.layers.0.self_attn.in_proj_bias",
                                                   "decoder.layers.0.self_attn.out_proj.weight",
                                                   "decoder.layers.0.self_attn.out_proj.bias",
                                                   "decoder.layers.0.multihead_attn.in_proj_weight",
                                                   "decoder.layers.0.multihead_attn.in_proj_bias",
                                                   "decoder.layers.0.multihead_attn.out_proj.weight",
                                                   "decoder.layers.0.multihead_attn.out_proj.bias",
                                                   "decoder.layers.0.linear1.weight",
                                                   "decoder.layers.0.linear1.bias",
                                                   "decoder.layers.0.linear2.weight",
                                                   "decoder.layers.0.linear2.bias",
                                                   "decoder.layers.0.norm1.weight",
                                                   "decoder.layers.0.norm1.bias",
                                                   "decoder.layers.0.norm2.weight",
                                                   "decoder.layers.0.norm2.bias",
                                                   "decoder.layers.0.norm3.weight",
                                                   "decoder.layers.0.norm3.bias",
                                                   "decoder.layers.1.self_attn.in_proj_weight",
                                                   "decoder.layers.1.self_attn.in_proj_bias",
                                                   "decoder.layers.1.self_attn.out_proj.weight",
                                                   "decoder.layers.1.self_attn.out_proj.bias",
                                                   "decoder.layers.1.multihead_attn.in_proj_weight",
                                                   "decoder.layers.1.multihead_attn.in_proj_bias",
                                                   "decoder.layers.1.multihead_attn.out_proj.weight",
                                                   "decoder.layers.1.multihead_attn.out_proj.bias",
                                                   "decoder.layers.1.linear1.weight",
                                                   "decoder.layers.1.linear1.bias",
                                                   "decoder.layers.1.linear2.weight",
                                                   "decoder.layers.1.linear2.bias",
                                                   "decoder.layers.1.norm1.weight",
                                                   "decoder.layers.1.norm1.bias",
                                                   "decoder.layers.1.norm2.weight",
                                                   "decoder.layers.1.norm2.bias",
                                                   "decoder.layers.1.norm3.weight",
                                                   "decoder.layers.1.norm3.bias",
                                                   "decoder.norm.weight",
                                                   "decoder.norm.bias"});
  fill_waves(m);
  const Tensor y = m(memory, z, {.tgt = {.causal = Causal::yes}});
  check_close(y,
              {0.112265441867758,   0.213404401487981,   -0.101587511688969,  -0.0759613334255422, 0.117611406986625,
               0.203086079468289,   -0.10277438106771,   -0.0747997973577136, 0.11089097008342,    0.216518534483284,
               -0.101641740360065,  -0.0762721813368284, 0.11408165999802,    0.209526237746664,   -0.101695023907012,
               -0.0755587668688181, 0.109956550607792,   0.21867687277818,    -0.101705228803071,  -0.0764865669697603,
               0.115563918007085,   0.206659628604421,   -0.102019423937059,  -0.075236651296508});
  // Batches second.
  nn::TransformerOptions second = options;
  second.batch_first = false;
  nn::Transformer turned(root, "turned", second);
  turned.load_state_dict(m.state_dict());
  check_close(transpose(turned(transpose(memory, 0, 1), transpose(z, 0, 1), {.tgt = {.causal = Causal::yes}}), 0, 1),
              y.detach().to_vector<double>());
  backward(sum(square(y)));
  for (const ParamRef& p : m.parameters()) CHECK_MESSAGE(p.value->grad().defined(), p.name);
}

TEST_CASE("matrices of a transformer start with xavier_uniform, each of its own") {
  Root root;
  nn::Transformer m(
      root, "m", {.d_model = 16, .nhead = 2, .num_encoder_layers = 2, .num_decoder_layers = 1, .dim_feedforward = 8});
  for (const ParamRef& p : m.parameters()) {
    if (p.value->rank() < 2) continue;
    const double bound = std::sqrt(6.0 / static_cast<double>(p.value->size(0) + p.value->size(1)));
    const double most = amax(abs(p.value->detach())).item<double>();
    CHECK_MESSAGE(most <= bound, p.name);
    CHECK_MESSAGE(most > 0.8 * bound, p.name);
  }
  CHECK(!equal(m.encoder.layers[0].linear1.weight, m.encoder.layers[1].linear1.weight));
}

TEST_CASE("a causal mask of numbers is 0 up to the diagonal and -inf above it") {
  const Tensor m = nn::generate_square_subsequent_mask(3, Device::cpu());
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(m.to_vector<float>() == std::vector<float>{0, -inf, -inf, 0, 0, -inf, 0, 0, 0});
  CHECK(nn::generate_square_subsequent_mask(0, Device::cpu()).shape() == Shape{0, 0});
  CHECK_THROWS_AS((void)nn::generate_square_subsequent_mask(-1, Device::cpu()), ShapeError);
}

TEST_CASE("dropout of a decoder acts in training alone") {
  Root root;
  nn::TransformerDecoderLayer m(root, "m", {.d_model = 4, .nhead = 2, .dim_feedforward = 5, .dropout = 0.5});
  CHECK(!equal(m(z, memory), m(z, memory)));
  m.eval();
  CHECK(equal(m(z, memory), m(z, memory)));
}

TEST_CASE("transformers refuse options and inputs that do not fit") {
  Root root;
  const nn::TransformerEncoderLayerOptions good{.d_model = 4, .nhead = 2};
  CHECK_THROWS_AS(nn::TransformerEncoder(root, "a", {.layer = good, .num_layers = 0}), ConfigError);
  CHECK_THROWS_AS(nn::TransformerDecoder(root, "b", {.layer = good, .num_layers = -1}), ConfigError);
  CHECK_THROWS_AS(nn::TransformerDecoderLayer(root, "c", {.d_model = 4, .nhead = 3}), ConfigError);
  CHECK_THROWS_AS(nn::TransformerDecoderLayer(root, "d", {.d_model = 4, .nhead = 2, .dropout = 2}), ConfigError);
  CHECK_THROWS_AS(nn::Transformer(root, "e", {.d_model = 4, .nhead = 2, .num_decoder_layers = 0}), ConfigError);
  nn::TransformerDecoderLayer m(root, "m", {.d_model = 4, .nhead = 2, .dim_feedforward = 5});
  CHECK_THROWS_AS((void)m(z, wave({3, 2, 4}, 0)), ShapeError);
  CHECK_THROWS_AS((void)m(z, memory, {.memory = {.attention = wave({3, 3}, 0)}}), ShapeError);
}

}  // namespace
}  // namespace levin
