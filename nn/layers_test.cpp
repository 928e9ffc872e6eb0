#include "nn/golden_test.h"

namespace levin {
namespace {

TEST_CASE("PairwiseDistance gives PyTorch's distances, with its p, eps and dimension") {
  Root root;
  const Tensor a = reshape(tensor({1.0, 2.0, 0.0, 0.5}, Device::cpu()), {2, 2}),
               b = reshape(tensor({0.0, 4.0, 3.0, 0.5}, Device::cpu()), {2, 2});
  // nn.PairwiseDistance()(a, b), with p=1 and keepdim=True, with p=3 and eps=0.25
  nn::PairwiseDistance plain(root, "plain", {}), kept(root, "kept", {.p = 1, .keepdim = true}),
      cubic(root, "cubic", {.p = 3, .eps = 0.25});
  check_close(plain(a, b), {2.2360675302866, 2.99999900000017});
  CHECK(kept(a, b).shape() == Shape{2, 1});
  check_close(kept(a, b), {3, 3});
  check_close(cubic(a, b), {1.94098401916408, 2.75068853282797});
}

TEST_CASE("convolution layers give PyTorch's values") {
  Root root;
  // fill(nn.Conv2d(2, 4, (3, 2), stride=2, padding=1, groups=2))(wave((1, 2, 4, 3), 0.25))
  nn::Conv2d conv2(root, "conv2", {.in = 2, .out = 4, .kernel = {3, 2}, .stride = 2, .padding = 1, .groups = 2});
  fill_waves(conv2);
  const Tensor y = conv2(wave({1, 2, 4, 3}, 0.25));
  CHECK(y.shape() == Shape{1, 4, 2, 2});
  check_close(y, {0.283348860974142, 0.72805810648414, 0.556561172117346, -0.194284889977707, 0.384211522107485,
                  0.416876648147391, -0.0144434284116701, 0.455679792543709, -0.360290196001349, 0.0293611946996243,
                  0.0188417682969947, -0.545979645622751, -0.169110640232874, -0.155321668418066, -0.816995449927535,
                  -0.426502712692066});
  // fill(nn.Conv1d(2, 2, 3, padding=2, dilation=2))(wave((1, 2, 4), 0.25))
  nn::Conv1d conv1(root, "conv1", {.in = 2, .out = 2, .kernel = 3, .padding = 2, .dilation = 2});
  fill_waves(conv1);
  check_close(conv1(wave({1, 2, 4}, 0.25)),
              {0.906347791801123, 1.08523322860577, 0.902513276198244, 0.934759513935641, 0.130759839788115,
               -0.0984195635574015, -0.153556412987044, -0.378015902794293});
  // fill(nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2))(
  //     wave((1, 2, 2, 2), 0.25)).sum((2, 3))
  nn::ConvTranspose2d up(root, "up",
                         {.in = 2, .out = 4, .kernel = 3, .stride = 2, .padding = 1, .output_padding = 1, .groups = 2});
  CHECK(up.weight.shape() == Shape{2, 2, 3, 3});
  fill_waves(up);
  const Tensor z = up(wave({1, 2, 2, 2}, 0.25));
  CHECK(z.shape() == Shape{1, 4, 4, 4});
  check_close(sum(z, {2, 3}), {6.67164343524112, 2.81857863708027, -1.7342910110737, -6.23700477443462});
}

TEST_CASE("batch norm gives PyTorch's values in training and evaluation, and its running statistics") {
  // b = fill(nn.BatchNorm2d(2)); q = wave((2, 2, 2, 2), 0.25); y = b(q); b(q + 1)
  Root root;
  nn::BatchNorm2d b(root, "b", {.features = 2});
  CHECK(state_names(b) ==
        std::vector<std::string>{"weight", "bias", "running_mean", "running_var", "num_batches_tracked"});
  fill_waves(b);
  const Tensor q = wave({2, 2, 2, 2}, 0.25);
  check_close(b(q), {0.173402544759669, 0.692715104733964, 0.861029059655638, 0.599183726546935, 0.630604979887446,
                     0.0583492251612635, -0.281893768550211, -0.230102404861042, -0.438720499109271, 0.188317542359368,
                     0.701583033789478, 0.859679194566945, 1.15544807335582, 0.616142621948671, 0.0465109812848681,
                     -0.285540187291496});
  (void)b(q + 1);
  check_close(b.running_mean, {0.152624402909827, 0.0627998305114097});
  check_close(b.running_var, {0.821413377065452, 0.827913624214176});
  CHECK(b.num_batches_tracked.item<std::int64_t>() == 2);
  CHECK(!b.running_mean.requires_grad());
  b.eval();
  check_close(b(q), {0.441222291252839, 0.572599767537248, 0.615180410343483, 0.548937878018876, 0.204389362535054,
                     0.0237383886275376, -0.0836702790381937, -0.0673206657522189, 0.28636529976584, 0.444995538608023,
                     0.574843206708525, 0.614838916833898, 0.370073001713243, 0.199823853101446, 0.0200012653780758,
                     -0.0848213886451263});
  CHECK(b.num_batches_tracked.item<std::int64_t>() == 2);
  CHECK_THROWS_AS((void)b(wave({2, 3, 2, 2}, 0)), ShapeError);
  CHECK_THROWS_AS((void)b(wave({2, 2}, 0)), ShapeError);
}

TEST_CASE("batch norm without momentum averages over all batches; without tracking it uses the batch's statistics") {
  // b = nn.BatchNorm1d(2, momentum=None); u = wave((3, 2), 0.25); b(u); b(u * 2); b(u - 3)
  Root root;
  nn::BatchNorm1d b(root, "b", {.features = 2, .momentum = std::nullopt});
  const Tensor u = wave({3, 2}, 0.25);
  (void)b(u), (void)b(u * 2), (void)b(u - 3);
  check_close(b.running_mean, {-0.703170304457582, -0.788149435813805});
  check_close(b.running_var, {0.117146568684069, 0.297894247702531});

  nn::BatchNorm1d plain(root, "plain", {.features = 2, .affine = false, .track_running_stats = false});
  CHECK(plain.state_dict().empty());
  const Tensor trained = plain(u);
  plain.eval();
  CHECK(equal(trained, plain(u)));
  CHECK_THROWS_AS(nn::BatchNorm1d(root, "c", {.features = 2, .momentum = 1.5}), ConfigError);
}

TEST_CASE("the other norms give PyTorch's values") {
  Root root;
  // fill(nn.GroupNorm(2, 4))(wave((1, 4, 2), 0.25)); nn.GroupNorm of 2 groups over 4 channels
  nn::GroupNorm group(root, "group", {.groups = 2, .features = 4});
  fill_waves(group);
  check_close(group(wave({1, 4, 2}, 0.25)),
              {-0.22222168453372, 0.63893575549963, 0.759797371678798, 0.248086874171676, 0.418455644586974,
               -0.114626705504398, -0.427840595111377, -0.424870630978649});
  // fill(nn.LayerNorm((2, 2)))(wave((1, 2, 2), 0.25)), nn.LayerNorm(4, elementwise_affine=False)(wave((1, 4), 0.25))
  nn::LayerNorm layer(root, "layer", {.shape = {2, 2}}), plain(root, "plain", {.shape = 4, .affine = false});
  fill_waves(layer);
  check_close(layer(wave({1, 2, 2}, 0.25)),
              {-0.22222168453372, 0.430870303978853, 0.244205401705026, -0.407696286643972});
  CHECK(plain.state_dict().empty());
  check_close(plain(wave({1, 4}, 0.25)), {-1.60877893633156, 0.438011637748534, 1.10139520088993, 0.069372097693105});
  // nn.InstanceNorm2d(2)(wave((1, 2, 2, 2), 0.25))
  nn::InstanceNorm2d instance(root, "instance", {.features = 2});
  CHECK(instance.state_dict().empty());
  check_close(instance(wave({1, 2, 2, 2}, 0.25)),
              {-1.60877893633156, 0.438011637748534, 1.10139520088992, 0.0693720976931048, 1.61733818016458,
               0.0389180221438357, -0.899554672039009, -0.756701530269411});
  // fill(nn.RMSNorm(4, eps=1e-6))(wave((1, 4), 0.25))
  nn::RMSNorm rms(root, "rms", {.features = 4, .eps = 1e-6});
  fill_waves(rms);
  check_close(rms(wave({1, 4}, 0.25)), {0.139635303562811, 0.541036782139354, 0.451634888807781, 0.0198426414723592});
  // fill(nn.RMSNorm(4))(wave((1, 4), 0.25) * 2**-27), whose eps is 2^-52
  nn::RMSNorm tiny(root, "tiny", {.features = 4});
  fill_waves(tiny);
  const std::vector<double> of_tiny{0.0255824457267431, 0.0991228132291467, 0.082743580859775, 0.0036353506999289};
  check_close(tiny(wave({1, 4}, 0.25) * 0x1p-27), of_tiny);
  check_close(tiny(wave({1, 4}, 0.25) * 0x1p-28, wave({1, 4}, 0.25) * 0x1p-28).normed, of_tiny);
}

TEST_CASE("norm layers refuse an x of other sizes, also where they have no parameters") {
  Root root;
  nn::GroupNorm group(root, "group", {.groups = 2, .features = 4, .affine = false});
  CHECK_THROWS_WITH_AS((void)group(wave({1, 8, 2}, 0.25)), doctest::Contains("GroupNorm: x has shape [1, 8, 2]"),
                       ShapeError);
  nn::InstanceNorm2d instance(root, "instance", {.features = 2});
  CHECK_THROWS_WITH_AS((void)instance(wave({1, 3, 2, 2}, 0.25)), doctest::Contains("expected 2 channels"), ShapeError);
  nn::LayerNorm layer(root, "layer", {.shape = {2, 3}, .affine = false});
  CHECK_THROWS_AS((void)layer(wave({1, 3, 3}, 0.25)), ShapeError);
}

TEST_CASE("dropout draws anew in training, from a stream of its own path, and does nothing in evaluation") {
  Generator gen(5);
  nn::Module one({.gen = gen, .device = Device::cpu()}), two({.gen = gen, .device = Device::cpu()});
  nn::Dropout a(one, "a", {.p = 0.25}), same(two, "a", {.p = 0.25}), other(two, "b", {.p = 0.25});
  const Tensor x = ones({64, 64}, Device::cpu());
  const Tensor first = a(x), second = a(x);
  CHECK(!equal(first, second));
  CHECK(equal(first, same(x)));
  CHECK(!equal(first, other(x)));
  // Of n = 4096 elements n / 4 are expected to fall, with a deviation of sqrt(n * 3 / 16) = 27.7; six of them.
  const double dropped = sum(eq(first, 0)).item();
  CHECK(std::abs(dropped - 1024) < 6 * 27.7);
  CHECK(amax(first).item() == doctest::Approx(1 / 0.75));
  a.eval();
  CHECK(equal(a(x), x));
}

TEST_CASE("an embedding looks rows up; its padding row is zero and gets no gradient") {
  Root root;
  nn::Embedding e(root, "e", {.count = 5, .dim = 3, .padding_idx = -1});
  CHECK(equal(select(e.weight, 0, 4), zeros({3}, Device::cpu(), DType::f64)));
  const Tensor index = tensor<std::int64_t>({1, 4, 1}, Device::cpu());
  const Tensor y = e(index);
  CHECK(y.shape() == Shape{3, 3});
  CHECK(equal(select(y, 0, 0), select(e.weight, 0, 1)));
  backward(sum(y));
  check_close(select(e.weight.grad(), 0, 1), {2, 2, 2});
  check_close(select(e.weight.grad(), 0, 4), {0, 0, 0});
}

TEST_CASE("modules of ops are the ops") {
  Root root;
  nn::Sequential net(root, "net");
  net.add<nn::Conv2d>({.in = 1, .out = 2, .kernel = 3, .padding = 1});
  net.add<nn::GELU>();
  net.add<nn::Unfold>({.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}, .dilation = {1, 2}});
  net.add<nn::Fold>({.output = 8, .kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}, .dilation = {1, 2}});
  net.add<nn::MaxPool2d>({.kernel = 2});
  net.add<nn::SiLU>();
  net.add<nn::AvgPool2d>({.kernel = 2, .stride = 1});
  net.add<nn::Tanh>();
  net.add<nn::AdaptiveAvgPool2d>({.output = 2});
  net.add<nn::Sigmoid>();
  net.add<nn::ELU>({.alpha = 0.5});
  net.add<nn::Softplus>();
  net.add<nn::Flatten>();
  net.add<nn::Softmax>({.dim = -1});
  net.add<nn::Identity>();
  const Tensor x = wave({2, 1, 8, 8}, 0.25);
  auto& conv = static_cast<nn::Conv2d&>(net[0]);
  const WindowOptions windows{.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}, .dilation = {1, 2}};
  Tensor y = silu(max_pool2d(col2im(im2col(gelu(conv(x)), windows), {8, 8}, windows), 2));
  y = tanh(avg_pool2d(y, {.kernel = {2, 2}, .stride = {{1, 1}}}));
  y = softplus(elu(sigmoid(adaptive_avg_pool2d(y, {2, 2})), 0.5));
  CHECK(equal(net(x), softmax(flatten(y, 1), -1)));
  backward(sum(net(x) * wave({2, 8}, 1)));
  for (const ParamRef& p : net.parameters()) CHECK(norm(p.value->grad()).item() > 0);
}

TEST_CASE("activation layers give PyTorch's values, and the weight of PReLU learns") {
  // m.double()(wave((2, 2, 2), 0.25) * 8)
  Root root;
  const Tensor x = wave({2, 2, 2}, 0.25) * 8;
  check_close(nn::Mish(root, "mish")(x),
              {0.854215078991061, 3.24467153082427, 3.98481675219489, 2.82879359812477, 0.26075925483941,
               -0.220635060173487, -0.0802844765848545, -0.0954472693478165});
  check_close(nn::Hardswish(root, "hardswish")(x), {0.658031169321882, 3.25366201915749, 3.98746011381568,
                                                    2.77279825686555, 0.205238033208095, -0.271969727931389, 0, 0});
  check_close(nn::Hardsigmoid(root, "hardsigmoid")(x),
              {0.664935972836349, 1, 1, 0.97431556852723, 0.560976428154958, 0.118959120838438, 0, 0});
  check_close(nn::ReLU6(root, "relu6")(x),
              {0.989615837018092, 3.25366201915749, 3.98746011381568, 2.84589341116338, 0.365858568929749, 0, 0, 0});
  check_close(nn::SELU(root, "selu")(x), {1.03979033705753, 3.41862589604981, 4.18962827862673, 2.99018301701782,
                                          0.38440795960695, -1.57939310636192, -1.72117406340572, -1.71115690796732});
  check_close(nn::Softsign(root, "softsign")(x),
              {0.497390410050849, 0.764908449355817, 0.79949714339972, 0.739982393402447, 0.26785977498126,
               -0.695701350225808, -0.794369518376746, -0.783693358996493});
  check_close(nn::CELU(root, "celu", {.alpha = 2})(x),
              {0.989615837018092, 3.25366201915749, 3.98746011381568, 2.84589341116338, 0.365858568929749,
               -1.36235619883047, -1.71015208966168, -1.67319319803858});
  check_close(nn::Hardtanh(root, "hardtanh", {.min_val = -2, .max_val = 1})(x),
              {0.989615837018092, 1, 1, 1, 0.365858568929749, -2, -2, -2});
  check_close(nn::GLU(root, "glu")(x), {0.952806560795887, 3.76857255560975, 0.0337572382279198, -0.100464682281406});
  check_close(nn::LogSoftmax(root, "log_softmax")(x),
              {-2.36292192207059, -0.0988757399311882, -0.277115203830855, -1.41868190648315, -0.0681283794264415,
               -2.72023222332557, -0.820344338255477, -0.580318661647743});
  nn::PReLU one(root, "one"), two(root, "two", {.num_parameters = 2});
  CHECK(state_names(one) == std::vector<std::string>{"weight"});
  check_close(one.weight, {0.25});
  check_close(one(x), {0.989615837018092, 3.25366201915749, 3.98746011381568, 2.84589341116338, 0.365858568929749,
                       -0.571561318742344, -0.965773060620639, -0.905766641468705});
  fill_waves(two);
  check_close(two(x), {0.989615837018092, 3.25366201915749, 3.98746011381568, 2.84589341116338, 0.365858568929749,
                       -0.96190453152044, -1.91544631820093, -1.79643380965246});
  backward(sum(two(x)));
  check_close(two.weight.grad(),
              {select(reshape(x, {-1}), 0, 5).item(), sum(narrow(reshape(x, {-1}), 0, 6, 2)).item()});
}

TEST_CASE("modules of interpolate are the op, with PyTorch's defaults") {
  Root root;
  const Tensor x = wave({2, 3, 4, 5}, 0.25), line = wave({2, 3, 4}, 0.25);
  const nn::Upsample nearest(root, "nearest", {.scale_factor = {2}});
  CHECK(equal(nearest(x), interpolate(x, {.scale_factor = {2}})));
  CHECK(equal(nearest(line), interpolate(line, {.scale_factor = {2}})));
  const nn::Upsample linear(root, "linear", {.size = 7, .mode = InterpolateMode::linear, .align_corners = true});
  CHECK(equal(linear(line), interpolate(line, {.size = 7, .mode = InterpolateMode::linear, .align_corners = true})));
  const nn::Upsample recomputed(
      root, "recomputed", {.scale_factor = {1.3}, .mode = InterpolateMode::bilinear, .recompute_scale_factor = true});
  CHECK(equal(recomputed(x), interpolate(x, {.size = {5, 6}, .mode = InterpolateMode::bilinear})));
  const nn::UpsamplingNearest2d a(root, "a", {.size = {7, 6}});
  CHECK(equal(a(x), interpolate(x, {.size = {7, 6}})));
  CHECK_THROWS_AS((void)a(line), ShapeError);
  const nn::UpsamplingBilinear2d b(root, "b", {.scale_factor = {2, 3}});
  CHECK(equal(b(x), interpolate(x, {.size = {8, 15}, .mode = InterpolateMode::bilinear, .align_corners = true})));
  CHECK_THROWS_AS((void)b(line), ShapeError);
}

}  // namespace
}  // namespace levin

// Names of options are unambiguous, also for a program that opens both namespaces.
namespace opened {
using namespace levin;
using namespace levin::nn;

TEST_CASE("options of layers and of ops have names that do not meet") {
  const Conv1dOptions layer{.in = 2, .out = 3, .kernel = 3};
  const ConvOptions1d op{.stride = 2};
  CHECK(layer.kernel + op.stride == 5);
  const Conv2dOptions layer2{.in = 2, .out = 3, .kernel = 3};
  const ConvOptions op2{.stride = {2, 2}};
  CHECK(layer2.kernel.array()[1] + op2.stride[1] == 5);
  const Pool2dOptions pool{.kernel = 2};
  const PoolOptions pool_op{.kernel = {3, 3}};
  CHECK(pool.kernel.array()[0] + pool_op.kernel[0] == 5);
}

namespace {
template <class T, class O>
void refuse_options(const O& options) {
  nn::Module root({.gen = Generator(1), .device = Device::cpu()});
  CHECK_THROWS_AS(T(root, "m", options), ConfigError);
  CHECK(root.children().empty());
}
}  // namespace

TEST_CASE("layers refuse options outside their range when they are made") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::int64_t huge = std::int64_t{1} << 62;
  for (const double bad : {nan, inf, -1.0}) {
    CAPTURE(bad);
    refuse_options<nn::BatchNorm1d>(nn::BatchNormOptions{.features = 2, .eps = bad});
    refuse_options<nn::BatchNorm2d>(nn::BatchNormOptions{.features = 2, .momentum = bad});
    refuse_options<nn::LayerNorm>(nn::LayerNormOptions{.shape = 2, .eps = bad});
    refuse_options<nn::RMSNorm>(nn::RMSNormOptions{.features = 2, .eps = bad});
    refuse_options<nn::GroupNorm>(nn::GroupNormOptions{.groups = 1, .features = 2, .eps = bad});
    refuse_options<nn::InstanceNorm2d>(nn::InstanceNorm2dOptions{.features = 2, .eps = bad});
    refuse_options<nn::Dropout>(nn::DropoutOptions{.p = bad});
    refuse_options<nn::Upsample>(nn::UpsampleOptions{.scale_factor = {2, bad}});
    refuse_options<nn::UpsamplingNearest2d>(nn::Upsampling2dOptions{.scale_factor = {bad}});
    refuse_options<nn::Softplus>(nn::SoftplusOptions{.beta = bad});
    refuse_options<nn::MultiheadAttention>(
        nn::MultiheadAttentionOptions{.embed_dim = 2, .num_heads = 1, .dropout = bad});
    refuse_options<nn::TransformerEncoderLayer>(
        nn::TransformerEncoderLayerOptions{.d_model = 2, .nhead = 1, .layer_norm_eps = bad});
    refuse_options<nn::TransformerDecoderLayer>(
        nn::TransformerDecoderLayerOptions{.d_model = 2, .nhead = 1, .dropout = bad});
    refuse_options<nn::LSTM>(nn::RecurrentOptions{.in = 2, .hidden = 2, .num_layers = 2, .dropout = bad});
  }
  for (const double bad : {nan, inf}) {
    refuse_options<nn::LeakyReLU>(nn::LeakyReLUOptions{.negative_slope = bad});
    refuse_options<nn::ELU>(nn::ELUOptions{.alpha = bad});
    refuse_options<nn::CELU>(nn::CELUOptions{.alpha = bad});
    refuse_options<nn::PReLU>(nn::PReLUOptions{.init = bad});
  }
  refuse_options<nn::Softplus>(nn::SoftplusOptions{.threshold = nan});
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{0}, huge}) {
    CAPTURE(bad);
    refuse_options<nn::Linear>(nn::LinearOptions{.in = bad, .out = 2});
    refuse_options<nn::PReLU>(nn::PReLUOptions{.num_parameters = bad});
    refuse_options<nn::Linear>(nn::LinearOptions{.in = 2, .out = bad});
    refuse_options<nn::Embedding>(nn::EmbeddingOptions{.count = 2, .dim = bad});
    refuse_options<nn::LayerNorm>(nn::LayerNormOptions{.shape = bad, .affine = false});
    refuse_options<nn::Conv1d>(nn::Conv1dOptions{.in = 2, .out = 2, .kernel = bad});
    refuse_options<nn::Conv2d>(nn::Conv2dOptions{.in = 2, .out = 2, .kernel = {1, bad}});
    refuse_options<nn::ConvTranspose2d>(nn::ConvTranspose2dOptions{.in = 2, .out = 2, .kernel = 1, .stride = bad});
    refuse_options<nn::LSTMCell>(nn::CellOptions{.in = 2, .hidden = bad});
    refuse_options<nn::GRU>(nn::RecurrentOptions{.in = bad, .hidden = 2});
    refuse_options<nn::RNNCell>(nn::RNNCellOptions{.in = bad, .hidden = 2});
    refuse_options<nn::EmbeddingBag>(nn::EmbeddingBagOptions{.count = bad, .dim = 2});
    refuse_options<nn::TransformerDecoder>(
        nn::TransformerDecoderOptions{.layer = {.d_model = 2, .nhead = 1}, .num_layers = bad});
    refuse_options<nn::MaxPool2d>(nn::Pool2dOptions{.kernel = bad});
    refuse_options<nn::AvgPool2d>(nn::Pool2dOptions{.stride = nn::Size2(bad)});
    refuse_options<nn::Unfold>(nn::UnfoldOptions{.kernel = bad});
    refuse_options<nn::Upsample>(nn::UpsampleOptions{.size = bad});
    refuse_options<nn::UpsamplingBilinear2d>(nn::Upsampling2dOptions{.size = {2, bad}});
    refuse_options<nn::Fold>(nn::FoldOptions{.output = 2, .kernel = 1, .dilation = bad});
  }
  refuse_options<nn::MaxPool2d>(nn::Pool2dOptions{.kernel = 2, .padding = 2});
  refuse_options<nn::AdaptiveAvgPool2d>(nn::AdaptivePool2dOptions{.output = -1});
  refuse_options<nn::Upsample>(nn::UpsampleOptions{});
  refuse_options<nn::Upsample>(nn::UpsampleOptions{.size = 2, .scale_factor = {2}});
  refuse_options<nn::Upsample>(nn::UpsampleOptions{.size = {1, 2, 3, 4}});
  refuse_options<nn::Upsample>(nn::UpsampleOptions{.size = 2, .align_corners = true});
  refuse_options<nn::Upsample>(
      nn::UpsampleOptions{.size = 2, .mode = InterpolateMode::linear, .recompute_scale_factor = true});
  refuse_options<nn::UpsamplingNearest2d>(nn::Upsampling2dOptions{.size = {2, 2, 2}});
  refuse_options<nn::Softmax>(nn::SoftmaxOptions{.dim = 8});
  refuse_options<nn::LogSoftmax>(nn::SoftmaxOptions{.dim = -9});
  refuse_options<nn::GLU>(nn::GLUOptions{.dim = 8});
  refuse_options<nn::CELU>(nn::CELUOptions{.alpha = 0});
  refuse_options<nn::Hardtanh>(nn::HardtanhOptions{.min_val = 1, .max_val = 0});
  refuse_options<nn::Flatten>(nn::FlattenOptions{.end = -9});
  for (const double p : {0.0, -2.0, std::nan("")})
    refuse_options<nn::PairwiseDistance>(nn::PairwiseDistanceOptions{.p = p});
}

}  // namespace opened
