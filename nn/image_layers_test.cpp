#include "levin/nn/image_layers.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "nn/golden_test.h"

namespace levin {
namespace {

TEST_CASE("convolutions of volumes and sequences give PyTorch's values") {
  Root root;
  // fill(nn.Conv3d(2, 2, (2, 3, 1), stride=(1, 2, 1), padding=(1, 1, 0), groups=2))(
  //     wave((1, 2, 2, 3, 2), 0.25)).sum((3, 4))
  nn::Conv3d layer0(root, "layer0",
                    {.in = 2, .out = 2, .kernel = {2, 3, 1}, .stride = {1, 2, 1}, .padding = {1, 1, 0}, .groups = 2});
  fill_waves(layer0);
  const Tensor y0 = sum(layer0(wave({1, 2, 2, 3, 2}, 0.25)), {3, 4});
  CHECK(y0.shape() == Shape{1, 2, 3});
  check_close(y0, {1.33003530433123, 2.65506804772962, 1.74623935865922, 0.13555282704541, 1.90393190350424,
                   0.560987334567664});
  // fill(nn.ConvTranspose1d(2, 2, 3, stride=2, padding=1, output_padding=1))(wave((1, 2, 3), 0.25))
  nn::ConvTranspose1d layer1(root, "layer1",
                             {.in = 2, .out = 2, .kernel = 3, .stride = 2, .padding = 1, .output_padding = 1});
  fill_waves(layer1);
  const Tensor y1 = layer1(wave({1, 2, 3}, 0.25));
  CHECK(y1.shape() == Shape{1, 2, 6});
  check_close(y1, {0.449483342438416, 0.702755294785342, 0.647758472659916, 0.935075900566629, 0.755211065684293,
                   0.578468870944642, 0.351821431145929, 0.299051779190079, 0.111889090828561, -0.0810916295881698,
                   -0.0801647193863455, -0.124658348881122});
  // fill(nn.ConvTranspose3d(2, 2, 2, stride=2, padding=(1, 0, 0), output_padding=(1, 0, 1), groups=2))(
  //     wave((1, 2, 2, 1, 2), 0.25)).sum((3, 4))
  nn::ConvTranspose3d layer2(
      root, "layer2",
      {.in = 2, .out = 2, .kernel = 2, .stride = 2, .padding = {1, 0, 0}, .output_padding = {1, 0, 1}, .groups = 2});
  fill_waves(layer2);
  const Tensor y2 = sum(layer2(wave({1, 2, 2, 1, 2}, 0.25)), {3, 4});
  CHECK(y2.shape() == Shape{1, 2, 3});
  check_close(
      y2, {3.79152331586816, 5.63562957289903, 3.33069716147033, 2.43176081245226, 0.82012830022341, 3.28634463757885});
}

TEST_CASE("convolutions that keep the size, and those with borders of a mode, give PyTorch's values") {
  Root root;
  // fill(nn.Conv3d(1, 2, (2, 3, 4), padding='same'))(wave((1, 1, 2, 2, 2), 0.25)).sum((3, 4))
  nn::Conv3d layer0(root, "layer0", {.in = 1, .out = 2, .kernel = {2, 3, 4}, .padding_rule = PaddingRule::same});
  fill_waves(layer0);
  const Tensor y0 = sum(layer0(wave({1, 1, 2, 2, 2}, 0.25)), {3, 4});
  CHECK(y0.shape() == Shape{1, 2, 2});
  check_close(y0, {1.45193927187793, 1.95986223861788, 0.981753250262603, 0.954466775299733});
  // fill(nn.Conv1d(1, 2, 4, padding='same', dilation=2))(wave((1, 1, 5), 0.25))
  nn::Conv1d layer1(root, "layer1", {.in = 1, .out = 2, .kernel = 4, .dilation = 2, .padding_rule = PaddingRule::same});
  fill_waves(layer1);
  const Tensor y1 = layer1(wave({1, 1, 5}, 0.25));
  CHECK(y1.shape() == Shape{1, 2, 5});
  check_close(y1,
              {0.599402652734673, 0.685271359280909, 0.776451109945228, 0.769278768632346, 0.802150871765451,
               -0.0324648096326248, -0.0754916517082994, -0.142233209895903, -0.0879716892068739, -0.0846053912555223});
  // fill(nn.Conv1d(1, 1, 3, padding=2, padding_mode='circular'))(wave((1, 1, 4), 0.25))
  nn::Conv1d layer2(root, "layer2", {.in = 1, .out = 1, .kernel = 3, .padding = 2, .padding_mode = PadMode::circular});
  fill_waves(layer2);
  const Tensor y2 = layer2(wave({1, 1, 4}, 0.25));
  CHECK(y2.shape() == Shape{1, 1, 6});
  check_close(y2, {0.882520800900339, 0.803013265205707, 0.876689815491598, 0.993047605691609, 0.882520800900339,
                   0.803013265205707});
  // fill(nn.Conv1d(1, 1, 4, padding='same', padding_mode='reflect'))(wave((1, 1, 4), 0.25))
  nn::Conv1d layer3(
      root, "layer3",
      {.in = 1, .out = 1, .kernel = 4, .padding_rule = PaddingRule::same, .padding_mode = PadMode::reflect});
  fill_waves(layer3);
  const Tensor y3 = layer3(wave({1, 1, 4}, 0.25));
  CHECK(y3.shape() == Shape{1, 1, 4});
  check_close(y3, {0.834821183024541, 0.884085698819767, 1.00341018275153, 1.01753472915617});
  // fill(nn.Conv2d(1, 1, (2, 3), padding=(2, 1), padding_mode='replicate', stride=2))(wave((1, 1, 3, 4), 0.25))
  nn::Conv2d layer4(
      root, "layer4",
      {.in = 1, .out = 1, .kernel = {2, 3}, .stride = 2, .padding = {2, 1}, .padding_mode = PadMode::replicate});
  fill_waves(layer4);
  const Tensor y4 = layer4(wave({1, 1, 3, 4}, 0.25));
  CHECK(y4.shape() == Shape{1, 1, 3, 2});
  check_close(y4, {0.471331283227829, 0.675146603538876, 0.832027582927179, 1.35618864103114, 0.302212310995064,
                   0.515839168913451});
  // fill(nn.Conv2d(1, 1, (2, 4), padding='same', padding_mode='circular'))(wave((1, 1, 2, 3), 0.25))
  nn::Conv2d layer5(
      root, "layer5",
      {.in = 1, .out = 1, .kernel = {2, 4}, .padding_rule = PaddingRule::same, .padding_mode = PadMode::circular});
  fill_waves(layer5);
  const Tensor y5 = layer5(wave({1, 1, 2, 3}, 0.25));
  CHECK(y5.shape() == Shape{1, 1, 2, 3});
  check_close(y5, {0.820192107945739, 0.807815419678009, 0.88313877211845, 0.0345239832983918, 0.0579495935436331,
                   -0.0454269689750565});
  // fill(nn.Conv3d(1, 1, (1, 2, 3), padding=(1, 0, 1), padding_mode='circular'))(wave((1, 1, 1, 2, 2), 0.25))
  nn::Conv3d layer6(root, "layer6",
                    {.in = 1, .out = 1, .kernel = {1, 2, 3}, .padding = {1, 0, 1}, .padding_mode = PadMode::circular});
  fill_waves(layer6);
  const Tensor y6 = layer6(wave({1, 1, 1, 2, 2}, 0.25));
  CHECK(y6.shape() == Shape{1, 1, 3, 1, 2});
  check_close(y6, {0.50549789825939, 0.408047509761016, 0.50549789825939, 0.408047509761016, 0.50549789825939,
                   0.408047509761016});
}

TEST_CASE("pooling layers give PyTorch's values") {
  Root root;
  // nn.MaxPool1d(3, 2, 1)(wave((1, 2, 5), 0.25))
  nn::MaxPool1d layer0(root, "layer0", {.kernel = 3, .stride = 2, .padding = 1});
  const Tensor y0 = layer0(wave({1, 2, 5}, 0.25));
  CHECK(y0.shape() == Shape{1, 2, 3});
  check_close(y0, {0.406707752394687, 0.498432514226959, 0.355736676395422, -0.285780659371172, -0.20988200891993,
                   0.131830091186389});
  // nn.AvgPool1d(3, 2, 1, ceil_mode=True, count_include_pad=False)(wave((1, 1, 6), 0.25))
  nn::AvgPool1d layer1(root, "layer1",
                       {.kernel = 3, .stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false});
  const Tensor y1 = layer1(wave({1, 1, 6}, 0.25));
  CHECK(y1.shape() == Shape{1, 1, 4});
  check_close(y1, {0.265204866010974, 0.420292314339023, 0.0385627793801564, -0.285780659371172});
  // nn.AdaptiveAvgPool1d(3)(wave((1, 1, 5), 0.25))
  nn::AdaptiveAvgPool1d layer2(root, "layer2", {.output = 3});
  const Tensor y2 = layer2(wave({1, 1, 5}, 0.25));
  CHECK(y2.shape() == Shape{1, 1, 3});
  check_close(y2, {0.265204866010974, 0.420292314339023, 0.20073449875582});
  // nn.AdaptiveMaxPool1d(3)(wave((1, 1, 5), 0.25))
  nn::AdaptiveMaxPool1d layer3(root, "layer3", {.output = 3});
  const Tensor y3 = layer3(wave({1, 1, 5}, 0.25));
  CHECK(y3.shape() == Shape{1, 1, 3});
  check_close(y3, {0.406707752394687, 0.498432514226959, 0.355736676395422});
  // nn.MaxPool3d((2, 3, 1), stride=(1, 2, 2), padding=(1, 1, 0))(wave((1, 1, 2, 3, 3), 0.25))
  nn::MaxPool3d layer4(root, "layer4", {.kernel = {2, 3, 1}, .stride = {{1, 2, 2}}, .padding = {1, 1, 0}});
  const Tensor y4 = layer4(wave({1, 1, 2, 3, 3}, 0.25));
  CHECK(y4.shape() == Shape{1, 1, 3, 2, 2});
  check_close(y4, {0.355736676395422, 0.498432514226959, 0.355736676395422, -0.20988200891993, 0.355736676395422,
                   0.498432514226959, 0.355736676395422, -0.202221911424571, 0.349778714301335, 0.49769688862881,
                   0.349778714301335, -0.202221911424571});
  // nn.AvgPool3d(2, padding=1, count_include_pad=False)(wave((1, 1, 2, 2, 3), 0.25))
  nn::AvgPool3d layer5(root, "layer5", {.kernel = 2, .padding = 1, .count_include_pad = false});
  const Tensor y5 = layer5(wave({1, 1, 2, 2, 3}, 0.25));
  CHECK(y5.shape() == Shape{1, 1, 2, 2, 2});
  check_close(y5, {0.123701979627261, 0.452570133310823, 0.355736676395422, -0.120024169127477, -0.482886530310319,
                   -0.331382664827141, 0.131830091186389, 0.454618664067281});
  // nn.AdaptiveAvgPool3d((1, 2, 3))(wave((1, 1, 3, 3, 2), 0.25))
  nn::AdaptiveAvgPool3d layer6(root, "layer6", {.output = {1, 2, 3}});
  const Tensor y6 = layer6(wave({1, 1, 3, 3, 2}, 0.25));
  CHECK(y6.shape() == Shape{1, 1, 1, 2, 3});
  check_close(y6, {-0.00224899885770184, -0.00164563188913642, -0.00104226492057099, 0.000654662494543194,
                   0.00134917720181656, 0.00204369190908993});
  // nn.AdaptiveMaxPool3d((1, 2, 1))(wave((1, 1, 3, 3, 2), 0.25))
  nn::AdaptiveMaxPool3d layer7(root, "layer7", {.output = {1, 2, 1}});
  const Tensor y7 = layer7(wave({1, 1, 3, 3, 2}, 0.25));
  CHECK(y7.shape() == Shape{1, 1, 1, 2, 1});
  check_close(y7, {0.498432514226959, 0.498432514226959});
  // nn.AdaptiveMaxPool2d((1, 2))(wave((1, 1, 3, 3), 0.25))
  nn::AdaptiveMaxPool2d layer8(root, "layer8", {.output = {1, 2}});
  const Tensor y8 = layer8(wave({1, 1, 3, 3}, 0.25));
  CHECK(y8.shape() == Shape{1, 1, 1, 2});
  check_close(y8, {0.406707752394687, 0.498432514226959});
  // nn.LPPool2d(3, (2, 3), stride=(1, 2), ceil_mode=True)(wave((1, 1, 3, 4), 0.25).abs())
  nn::LPPool2d layer9(root, "layer9", {.p = 3, .kernel = {2, 3}, .stride = {{1, 2}}, .ceil_mode = true});
  const Tensor y9 = layer9(abs(wave({1, 1, 3, 4}, 0.25)));
  CHECK(y9.shape() == Shape{1, 1, 2, 2});
  check_close(y9, {0.690364370508348, 0.824992173434457, 0.60117545018277, 0.842354810656071});
}

TEST_CASE("max pooling layers with a dilation give PyTorch's values") {
  Root root;
  // nn.MaxPool1d(3, 2, 1, 2)(wave((1, 2, 8), 0.25))
  nn::MaxPool1d layer0(root, "layer0", {.kernel = 3, .stride = 2, .padding = 1, .dilation = 2});
  const Tensor x0 = wave({1, 2, 8}, 0.25), y0 = layer0(x0);
  CHECK(y0.shape() == Shape{1, 2, 3});
  check_close(y0, {0.406707752394687, 0.406707752394687, 0.355736676395422, 0.49769688862881, 0.49769688862881,
                   0.49769688862881});
  CHECK(equal(layer0.with_indices(x0).values, y0));
  // nn.MaxPool2d((2, 3), (1, 2), (1, 0), (3, 2), return_indices=True, ceil_mode=True)(wave((1, 1, 5, 8), 0.25))
  nn::MaxPool2d layer1(
      root, "layer1", {.kernel = {2, 3}, .stride = {{1, 2}}, .padding = {1, 0}, .dilation = {3, 2}, .ceil_mode = true});
  const Tensor x1 = wave({1, 1, 5, 8}, 0.25);
  const auto [y1, places] = layer1.with_indices(x1);
  CHECK(y1.shape() == Shape{1, 1, 4, 3});
  check_close(y1, {0.496820550566381, 0.496820550566381, 0.496820550566381, 0.498432514226959, 0.498432514226959,
                   0.420855419222588, 0.411540439505753, 0.494646767820425, 0.494646767820425, 0.496820550566381,
                   0.496820550566381, 0.496820550566381});
  CHECK(places.to_vector<std::int64_t>() == std::vector<std::int64_t>{20, 20, 20, 2, 2, 28, 10, 38, 38, 20, 20, 20});
  CHECK(equal(layer1(x1), y1));
  // nn.MaxPool3d(2, (1, 2, 1), (1, 0, 1), (2, 3, 2))(wave((1, 1, 3, 5, 4), 0.25))
  nn::MaxPool3d layer2(root, "layer2",
                       {.kernel = 2, .stride = {{1, 2, 1}}, .padding = {1, 0, 1}, .dilation = {2, 3, 2}});
  const Tensor x2 = wave({1, 1, 3, 5, 4}, 0.25), y2 = layer2(x2);
  CHECK(y2.shape() == Shape{1, 1, 3, 1, 4});
  check_close(y2, {0.34372186023913, 0.496820550566381, 0.34372186023913, 0.0289654082391983, 0.406707752394687,
                   0.498432514226959, 0.433932402292489, 0.498432514226959, 0.34372186023913, 0.496820550566381,
                   0.34372186023913, 0.0289654082391983});
  CHECK(equal(layer2.with_indices(x2).values, y2));
}

TEST_CASE("unpooling gives PyTorch's values") {
  Root root;
  // p = nn.MaxPool2d((2, 1), return_indices=True)
  // nn.MaxUnpool2d((2, 1))(*p(wave((1, 1, 5, 2), 0.25)), output_size=(5, 2))
  nn::MaxPool2d pool(root, "pool", {.kernel = {2, 1}});
  nn::MaxUnpool2d unpool(root, "unpool", {.kernel = {2, 1}});
  const Tensor x = wave({1, 1, 5, 2}, 0.25);
  const auto [y, places] = pool.with_indices(x);
  CHECK(equal(y, pool(x)));
  CHECK(unpool(y, places).shape() == Shape{1, 1, 4, 2});
  check_close(unpool(y, places, nn::Size2(5, 2)),
              {0, 0.406707752394687, 0.498432514226959, 0, 0.0457323211162186, -0.285780659371172, 0, 0, 0, 0});
}

TEST_CASE("MaxUnpool1d and MaxUnpool3d put back what their pools took, as PyTorch's do") {
  Root root;
  // p = nn.MaxPool1d(2, 3, return_indices=True); nn.MaxUnpool1d(2, 3)(*p(wave((1, 1, 8), 0.25)), output_size=(8,))
  nn::MaxPool1d pool1(root, "pool1", {.kernel = 2, .stride = 3});
  nn::MaxUnpool1d unpool1(root, "unpool1", {.kernel = 2, .stride = 3});
  const Tensor x1 = wave({1, 1, 8}, 0.25);
  const auto [y1, places1] = pool1.with_indices(x1);
  CHECK(equal(y1, pool1(x1)));
  CHECK(unpool1(y1, places1).shape() == Shape{1, 1, 8});
  CHECK(unpool1(y1, places1, 9).shape() == Shape{1, 1, 9});
  check_close(unpool1(y1, places1, 8), {0, 0.406707752394687, 0, 0.355736676395422, 0, 0, 0, -0.452883320734352});
  // p = nn.MaxPool3d((2, 1, 3), return_indices=True)
  // nn.MaxUnpool3d((2, 1, 3))(*p(wave((1, 1, 2, 2, 4), 0.25)), output_size=(2, 2, 4))
  nn::MaxPool3d pool3(root, "pool3", {.kernel = {2, 1, 3}});
  nn::MaxUnpool3d unpool3(root, "unpool3", {.kernel = {2, 1, 3}});
  const Tensor x3 = wave({1, 1, 2, 2, 4}, 0.25);
  const auto [y3, places3] = pool3.with_indices(x3);
  CHECK(equal(y3, pool3(x3)));
  check_close(unpool3(y3, places3, nn::Size3(2, 2, 4)),
              {0, 0, 0.498432514226959, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.349778714301335, 0, 0, 0});
}

TEST_CASE("layers that move pixels and channels give PyTorch's values") {
  Root root;
  // nn.PixelShuffle(2)(wave((1, 4, 1, 2), 0.25))
  nn::PixelShuffle layer0(root, "layer0", {.upscale_factor = 2});
  const Tensor y0 = layer0(wave({1, 4, 1, 2}, 0.25));
  CHECK(y0.shape() == Shape{1, 1, 2, 4});
  check_close(y0, {0.123701979627261, 0.498432514226959, 0.406707752394687, 0.355736676395422, 0.0457323211162186,
                   -0.482886530310319, -0.285780659371172, -0.452883320734352});
  // nn.PixelUnshuffle(2)(wave((1, 1, 2, 4), 0.25))
  nn::PixelUnshuffle layer1(root, "layer1", {.downscale_factor = 2});
  const Tensor y1 = layer1(wave({1, 1, 2, 4}, 0.25));
  CHECK(y1.shape() == Shape{1, 4, 1, 2});
  check_close(y1, {0.123701979627261, 0.498432514226959, 0.406707752394687, 0.355736676395422, 0.0457323211162186,
                   -0.482886530310319, -0.285780659371172, -0.452883320734352});
  // nn.ChannelShuffle(2)(wave((1, 4, 1, 2), 0.25))
  nn::ChannelShuffle layer2(root, "layer2", {.groups = 2});
  const Tensor y2 = layer2(wave({1, 4, 1, 2}, 0.25));
  CHECK(y2.shape() == Shape{1, 4, 1, 2});
  check_close(y2, {0.123701979627261, 0.406707752394687, 0.0457323211162186, -0.285780659371172, 0.498432514226959,
                   0.355736676395422, -0.482886530310319, -0.452883320734352});
}

TEST_CASE("norms of sequences and volumes give PyTorch's values") {
  Root root;
  // fill(nn.BatchNorm3d(2))(wave((2, 2, 1, 2, 1), 0.25))
  nn::BatchNorm3d layer0(root, "layer0", {.features = 2});
  fill_waves(layer0);
  const Tensor y0 = layer0(wave({2, 2, 1, 2, 1}, 0.25));
  CHECK(y0.shape() == Shape{2, 2, 1, 2, 1});
  check_close(y0, {0.541818247886156, 1.02447710445557, 0.784787202910513, 0.627716907141038, 0.408843058525003,
                   -0.156543557215368, -0.295384965472268, -0.262359384111624});
  // fill(nn.InstanceNorm1d(2, affine=True))(wave((1, 2, 3), 0.25))
  nn::InstanceNorm1d layer1(root, "layer1", {.features = 2, .affine = true});
  fill_waves(layer1);
  const Tensor y1 = layer1(wave({1, 2, 3}, 0.25));
  CHECK(y1.shape() == Shape{1, 2, 3});
  check_close(y1, {-0.123614437993441, 0.622817566110526, 0.864743012121438, 0.81401514624566, 0.227259961676233,
                   -0.400205287571148});
  // fill(nn.InstanceNorm2d(2, affine=True))(wave((1, 2, 3, 1), 0.25))
  nn::InstanceNorm2d layer2(root, "layer2", {.features = 2, .affine = true});
  fill_waves(layer2);
  const Tensor y2 = layer2(wave({1, 2, 3, 1}, 0.25));
  CHECK(y2.shape() == Shape{1, 2, 3, 1});
  check_close(y2, {-0.123614437993441, 0.622817566110526, 0.864743012121438, 0.81401514624566, 0.227259961676233,
                   -0.400205287571148});
  // nn.InstanceNorm3d(2)(wave((1, 2, 1, 2, 2), 0.25))
  nn::InstanceNorm3d layer3(root, "layer3", {.features = 2});
  const Tensor y3 = layer3(wave({1, 2, 1, 2, 2}, 0.25));
  CHECK(y3.shape() == Shape{1, 2, 1, 2, 2});
  check_close(y3, {-1.60877893633156, 0.438011637748534, 1.10139520088992, 0.0693720976931048, 1.61733818016458,
                   0.0389180221438357, -0.899554672039009, -0.756701530269411});
}

TEST_CASE("image layers have PyTorch's names of parameters and buffers, and its shapes and ranges of weights") {
  Root root;
  nn::Conv3d conv(root, "conv", {.in = 4, .out = 6, .kernel = {3, 2, 1}, .groups = 2});
  CHECK(state_names(conv) == std::vector<std::string>{"weight", "bias"});
  CHECK(conv.weight.shape() == Shape{6, 2, 3, 2, 1});
  CHECK(conv.bias.shape() == Shape{6});
  const double bound = 1 / std::sqrt(12.0);
  for (const Tensor& t : {Tensor(conv.weight), Tensor(conv.bias)}) CHECK(amax(abs(t)).item() <= bound);
  CHECK(amax(abs(conv.weight)).item() > 0.8 * bound);  // of 72 values
  nn::ConvTranspose1d up1(root, "up1", {.in = 4, .out = 6, .kernel = 3, .groups = 2});
  CHECK(state_names(up1) == std::vector<std::string>{"weight", "bias"});
  CHECK(up1.weight.shape() == Shape{4, 3, 3});
  nn::ConvTranspose3d up3(root, "up3", {.in = 4, .out = 6, .kernel = {1, 2, 3}, .groups = 2, .bias = false});
  CHECK(state_names(up3) == std::vector<std::string>{"weight"});
  CHECK(up3.weight.shape() == Shape{4, 3, 1, 2, 3});
  nn::BatchNorm3d norm(root, "norm", {.features = 2});
  CHECK(state_names(norm) ==
        std::vector<std::string>{"weight", "bias", "running_mean", "running_var", "num_batches_tracked"});
  CHECK(state_names(nn::InstanceNorm1d(root, "i1", {.features = 2, .affine = true})) ==
        std::vector<std::string>{"weight", "bias"});
  CHECK(state_names(nn::InstanceNorm3d(root, "i3", {.features = 2})).empty());
}

TEST_CASE("layers of volumes have the gradients of finite differences") {
  Root root;
  nn::Conv3d conv(root, "conv", {.in = 2, .out = 2, .kernel = 2, .padding = 1, .padding_mode = PadMode::circular});
  check_gradients(conv, wave({2, 2, 2, 3, 2}, 0.25), [&](const Tensor& x) { return conv(x); });
  nn::ConvTranspose3d up(root, "up", {.in = 2, .out = 1, .kernel = 2, .stride = 2});
  check_gradients(up, wave({1, 2, 2, 1, 2}, 0.25), [&](const Tensor& x) { return up(x); });
  nn::BatchNorm3d norm(root, "norm", {.features = 2});
  fill_waves(norm);
  check_gradients(norm, wave({2, 2, 2, 1, 2}, 0.25), [&](const Tensor& x) { return norm(x); });
  check_gradients(norm, wave({2, 2, 2, 1, 2}, 0.25), [&](const Tensor& x) { return norm.relu(x, wave(x.shape(), 1)); });
}

TEST_CASE("channel dropout drops whole channels in training, and does nothing in evaluation") {
  Root root;
  const auto check = [](auto& layer, const Shape& shape) {
    const Tensor x = ones(shape, Device::cpu(), DType::f64), y = layer(x), rows = flatten(y, 2);
    CHECK(!equal(y, layer(x)));
    CHECK(equal(amin(rows, 2), amax(rows, 2)));
    CHECK(amax(y).item() == doctest::Approx(1 / 0.75));
    // Of n = 1600 channels n / 4 are expected to fall, with a deviation of sqrt(n * 3 / 16) = 17.3; six of them.
    CHECK(std::abs(sum(eq(amax(rows, 2), 0)).item() - 400) < 6 * 17.3);
    layer.eval();
    CHECK(equal(layer(x), x));
    CHECK_THROWS_WITH_AS((void)layer(select(x, 0, 0)), doctest::Contains("expected [N, C, "), ShapeError);
  };
  nn::Dropout1d one(root, "one", {.p = 0.25});
  nn::Dropout2d two(root, "two", {.p = 0.25});
  nn::Dropout3d three(root, "three", {.p = 0.25});
  check(one, {40, 40, 3});
  check(two, {40, 40, 2, 3});
  check(three, {40, 40, 2, 1, 2});
  nn::AlphaDropout alpha(root, "alpha", {.p = 0.25});
  const Tensor x = wave({50}, 0.25);
  CHECK(!equal(alpha(x), alpha(x)));
  alpha.eval();
  CHECK(equal(alpha(x), x));
}

TEST_CASE("image layers refuse an x of another rank, and name it") {
  Root root;
  const Tensor image = wave({1, 2, 3, 3}, 0.25), line = wave({1, 2, 3}, 0.25);
  nn::BatchNorm3d batch(root, "batch", {.features = 2});
  CHECK_THROWS_WITH_AS((void)batch(image), doctest::Contains("BatchNorm3d: x has shape [1, 2, 3, 3]"), ShapeError);
  nn::InstanceNorm1d instance1(root, "instance1", {.features = 2});
  CHECK_THROWS_WITH_AS((void)instance1(image), doctest::Contains("InstanceNorm1d: x has shape"), ShapeError);
  nn::InstanceNorm3d instance3(root, "instance3", {.features = 2});
  CHECK_THROWS_WITH_AS((void)instance3(image), doctest::Contains("InstanceNorm3d: x has shape"), ShapeError);
  CHECK_THROWS_WITH_AS((void)instance3(wave({1, 3, 2, 2, 2}, 0)), doctest::Contains("expected 2 channels"), ShapeError);
  nn::Conv2d circular(root, "circular",
                      {.in = 2, .out = 1, .kernel = 3, .padding = 1, .padding_mode = PadMode::circular});
  CHECK_THROWS_WITH_AS((void)circular(line), doctest::Contains("Conv2d: x has shape [1, 2, 3], expected 4 dimensions"),
                       ShapeError);
  CHECK_THROWS_WITH_AS((void)circular(wave({1, 2, 0, 3}, 0)), doctest::Contains("pad: dimension 2"), ShapeError);
}

template <class T, class O>
void refuse_options(const O& options, const char* message = "") {
  Root root;
  CHECK_THROWS_WITH_AS(T(root, "m", options), doctest::Contains(message), ConfigError);
  CHECK(root.children().empty());
}

TEST_CASE("image layers refuse options outside their range when they are made") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 62}) {
    CAPTURE(bad);
    refuse_options<nn::Conv3d>(nn::Conv3dOptions{.in = 2, .out = 2, .kernel = {1, 1, bad}});
    refuse_options<nn::Conv3d>(nn::Conv3dOptions{.in = bad, .out = 2, .kernel = 1});
    refuse_options<nn::ConvTranspose1d>(nn::ConvTranspose1dOptions{.in = 2, .out = 2, .kernel = bad});
    refuse_options<nn::ConvTranspose3d>(nn::ConvTranspose3dOptions{.in = 2, .out = 2, .kernel = 1, .stride = bad});
    refuse_options<nn::MaxPool1d>(nn::Pool1dOptions{.kernel = bad});
    refuse_options<nn::AvgPool3d>(nn::Pool3dOptions{.stride = nn::Size3(bad)});
    refuse_options<nn::MaxPool1d>(nn::Pool1dOptions{.dilation = bad});
    refuse_options<nn::MaxPool2d>(nn::Pool2dOptions{.dilation = {1, bad}});
    refuse_options<nn::MaxPool3d>(nn::Pool3dOptions{.dilation = {1, bad, 1}});
    refuse_options<nn::MaxUnpool1d>(nn::MaxUnpool1dOptions{.stride = bad});
    refuse_options<nn::MaxUnpool2d>(nn::MaxUnpool2dOptions{.kernel = bad});
    refuse_options<nn::MaxUnpool3d>(nn::MaxUnpool3dOptions{.kernel = {2, bad, 2}});
    refuse_options<nn::LPPool2d>(nn::LPPool2dOptions{.kernel = bad});
    refuse_options<nn::PixelShuffle>(nn::PixelShuffleOptions{.upscale_factor = bad});
    refuse_options<nn::PixelUnshuffle>(nn::PixelUnshuffleOptions{.downscale_factor = bad});
    refuse_options<nn::ChannelShuffle>(nn::ChannelShuffleOptions{.groups = bad});
  }
  refuse_options<nn::ConvTranspose3d>(nn::ConvTranspose3dOptions{.in = 2, .out = 2, .kernel = 1, .output_padding = -1});
  refuse_options<nn::Conv3d>(nn::Conv3dOptions{.in = 2, .out = 3, .kernel = 1, .groups = 2});
  refuse_options<nn::Conv1d>(
      nn::Conv1dOptions{.in = 2, .out = 2, .kernel = 3, .stride = 2, .padding_rule = PaddingRule::same});
  refuse_options<nn::Conv2d>(
      nn::Conv2dOptions{.in = 2, .out = 2, .kernel = 3, .padding = {0, 1}, .padding_rule = PaddingRule::same});
  refuse_options<nn::MaxPool3d>(nn::Pool3dOptions{.kernel = 2, .padding = {0, 2, 0}});
  refuse_options<nn::AvgPool1d>(nn::Pool1dOptions{.dilation = 2});
  refuse_options<nn::AvgPool2d>(nn::Pool2dOptions{.dilation = {1, 2}});
  refuse_options<nn::AvgPool3d>(nn::Pool3dOptions{.dilation = {2, 1, 1}});
  refuse_options<nn::AdaptiveAvgPool1d>(nn::AdaptivePool1dOptions{.output = -1});
  refuse_options<nn::AdaptiveMaxPool3d>(nn::AdaptivePool3dOptions{.output = {1, -1, 1}});
  for (const double bad : {nan, 0.0, -2.0}) refuse_options<nn::LPPool2d>(nn::LPPool2dOptions{.p = bad});
  for (const double bad : {nan, -0.5, 1.5}) {
    refuse_options<nn::Dropout2d>(nn::DropoutOptions{.p = bad}, "Dropout2d: p is");
    refuse_options<nn::AlphaDropout>(nn::DropoutOptions{.p = bad});
    refuse_options<nn::InstanceNorm3d>(nn::InstanceNormOptions{.features = 2, .eps = bad > 1 ? -1 : bad});
  }
}

}  // namespace
}  // namespace levin
