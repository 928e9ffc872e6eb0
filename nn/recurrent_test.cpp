#include "nn/golden_test.h"

namespace levin {
namespace {

TEST_CASE("an LSTM of two layers and two directions gives PyTorch's values under its names") {
  // m = fill(nn.LSTM(3, 2, num_layers=2, bidirectional=True)); y, (h, c) = m(wave((3, 2, 3), 0.25))
  Root root;
  nn::LSTM m(root, "m", {.in = 3, .hidden = 2, .num_layers = 2, .bidirectional = true});
  CHECK(state_names(m) == std::vector<std::string>{"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0",
                                                   "weight_ih_l0_reverse", "weight_hh_l0_reverse", "bias_ih_l0_reverse",
                                                   "bias_hh_l0_reverse", "weight_ih_l1", "weight_hh_l1", "bias_ih_l1",
                                                   "bias_hh_l1", "weight_ih_l1_reverse", "weight_hh_l1_reverse",
                                                   "bias_ih_l1_reverse", "bias_hh_l1_reverse"});
  fill_waves(m);
  const nn::LSTMOutput out = m(wave({3, 2, 3}, 0.25));
  CHECK(out.y.shape() == Shape{3, 2, 4});
  CHECK(out.h.shape() == Shape{4, 2, 2});
  check_close(out.y,
              {0.118043033650392,  0.0856635646133889, -0.237160408150547, 0.0867883929660646, 0.12935221206548,
               0.0729924554870861, -0.242318365302754, 0.104675623131198,  0.186977736942462,  0.120408513418469,
               -0.227705980533849, 0.0933033990348201, 0.185172938858807,  0.121239018984398,  -0.224395074155705,
               0.0868774594878724, 0.228524121915873,  0.127973528353043,  -0.181267517840967, 0.0831124611541242,
               0.222807964225622,  0.134596582067193,  -0.176681589092211, 0.074162386872316});
  check_close(out.h, {0.0734072397051747, 0.150914939640207, 0.013409922699287, 0.205018944012791, -0.124307245963927,
                      -0.438004981106293, -0.134514212647208, -0.355186237864242, 0.228524121915873, 0.127973528353043,
                      0.222807964225622, 0.134596582067193, -0.237160408150547, 0.0867883929660646, -0.242318365302754,
                      0.104675623131198});
  check_close(out.c, {0.105396287288349, 0.217025270033059, 0.0227175325576108, 0.286202148827495, -0.492987435606607,
                      -0.943630821213557, -0.566982095370071, -0.856514699388556, 0.494468048652861, 0.327380522440791,
                      0.489883793816662, 0.34005946123147, -0.382867878957573, 0.121720402119827, -0.404150707114909,
                      0.143694712232884});
}

TEST_CASE("a GRU with batches first and an initial state gives PyTorch's values") {
  // m = fill(nn.GRU(3, 2, batch_first=True)); y, h = m(wave((3, 2, 3), 0.25), wave((1, 3, 2), 0.5))
  Root root;
  nn::GRU m(root, "m", {.in = 3, .hidden = 2, .batch_first = true});
  CHECK(state_names(m) == std::vector<std::string>{"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"});
  fill_waves(m);
  const nn::GRUOutput out = m(wave({3, 2, 3}, 0.25), wave({1, 3, 2}, 0.5));
  check_close(out.y, {-0.146912225837898, 0.309465938922607, -0.00829243856154871, 0.140591355379354, 0.292733649156353,
                      0.430775650960199, -0.130882583382917, 0.291071842448011, -0.0798314661919184,
                      -0.0741360848958204, 0.00404660409000449, 0.349052537912476});
  check_close(out.h, {-0.00829243856154871, 0.140591355379354, -0.130882583382917, 0.291071842448011,
                      0.00404660409000449, 0.349052537912476});
}

TEST_CASE("recurrent cells give PyTorch's values") {
  // x = wave((3, 2, 3), 0.25)[0]
  // nn.LSTMCell(3, 2)(x, (wave((2, 2), 0.5), wave((2, 2), 0.75))), nn.GRUCell(3, 2)(x, wave((2, 2), 0.5))
  Root root;
  nn::LSTMCell lstm(root, "lstm", {.in = 3, .hidden = 2});
  nn::GRUCell gru(root, "gru", {.in = 3, .hidden = 2});
  fill_waves(lstm);
  fill_waves(gru);
  CHECK(state_names(lstm) == std::vector<std::string>{"weight_ih", "weight_hh", "bias_ih", "bias_hh"});
  const Tensor x = wave({2, 3}, 0.25), h = wave({2, 2}, 0.5);
  const nn::LSTMState next = lstm(x, {.h = h, .c = wave({2, 2}, 0.75)});
  check_close(next.h, {0.0447503129563103, 0.188645385745078, 0.198341990457922, 0.120750592869206});
  check_close(next.c, {0.0621004144432544, 0.344697420132886, 0.314404175512827, 0.182423318506432});
  check_close(gru(x, h), {-0.146912225837898, 0.309465938922607, 0.251808793004998, 0.139508277308258});
}

TEST_CASE("a layer of a whole sequence is its cell step by step") {
  Root root;
  nn::LSTM lstm(root, "lstm", {.in = 3, .hidden = 2});
  nn::LSTMCell cell(root, "cell", {.in = 3, .hidden = 2});
  NamedTensors state;
  for (const auto& [name, value] : lstm.state_dict()) state.emplace_back(name.substr(0, name.size() - 3), value);
  cell.load_state_dict(state);
  const Tensor x = wave({4, 2, 3}, 0.25);
  const nn::LSTMOutput all = lstm(x);
  nn::LSTMState s;
  for (std::int64_t t = 0; t < 4; ++t) {
    s = cell(select(x, 0, t), s);
    check_close(select(all.y, 0, t), s.h.detach().to_vector<double>());
  }
  check_close(all.c, s.c.detach().to_vector<double>());
}

TEST_CASE("gradients of LSTM and GRU agree with finite differences in every parameter") {
  Root root;
  nn::LSTM lstm(root, "lstm", {.in = 2, .hidden = 2, .num_layers = 2, .bidirectional = true});
  check_gradients(lstm, wave({3, 1, 2}, 0.25), [&](const Tensor& x) {
    const nn::LSTMOutput out = lstm(x);
    return sum(out.y * wave(out.y.shape(), 2)) + sum(out.h * out.c);
  });
  nn::GRU gru(root, "gru", {.in = 2, .hidden = 3});
  check_gradients(gru, wave({3, 2, 2}, 0.25), [&](const Tensor& x) { return square(gru(x).y); });
}

TEST_CASE("dropout between recurrent layers acts in training alone") {
  Root root;
  nn::GRU m(root, "m", {.in = 3, .hidden = 4, .num_layers = 2, .dropout = 0.5});
  const Tensor x = wave({5, 2, 3}, 0.25);
  CHECK(!equal(m(x).y, m(x).y));
  m.eval();
  CHECK(equal(m(x).y, m(x).y));
  CHECK_THROWS_WITH_AS(nn::GRU(root, "n", {.in = 3, .hidden = 4, .dropout = 0.5}),
                       doctest::Contains("GRU: dropout is 0.5 with one layer"), ConfigError);
}

TEST_CASE("recurrent layers refuse inputs and states that do not fit") {
  Root root;
  nn::LSTM m(root, "m", {.in = 3, .hidden = 2});
  CHECK_THROWS_AS((void)m(wave({4, 3}, 0)), ShapeError);
  CHECK_THROWS_AS((void)m(wave({4, 1, 2}, 0)), ShapeError);
  CHECK_THROWS_AS((void)m(wave({0, 1, 3}, 0)), ShapeError);
  CHECK_THROWS_AS((void)m(wave({4, 1, 3}, 0), {.h = wave({1, 2, 2}, 0)}), ShapeError);
  nn::GRUCell cell(root, "cell", {.in = 3, .hidden = 2});
  CHECK_THROWS_AS((void)cell(wave({1, 3}, 0), wave({2, 2}, 0)), ShapeError);
}

}  // namespace
}  // namespace levin
