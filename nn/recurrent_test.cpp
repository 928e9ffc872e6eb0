#include <limits>

#include "nn/golden_test.h"

namespace levin {
namespace {

bool all_finite(const Tensor& x) { return all(isfinite(x)).item<bool>(); }

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

TEST_CASE("an RNN gives PyTorch's values with each nonlinearity") {
  // m = fill(nn.RNN(3, 2, num_layers=2, bidirectional=True, nonlinearity="relu")); m(wave((3, 2, 3), 0.25))
  Root root;
  nn::RNN m(root, "m",
            {.in = 3, .hidden = 2, .num_layers = 2, .bidirectional = true, .nonlinearity = nn::RNNNonlinearity::relu});
  fill_waves(m);
  const Tensor x = wave({3, 2, 3}, 0.25);
  const nn::RNNOutput out = m(x);
  check_close(out.y, {0, 0.994259107321646, 1.9331745137163,   0, 0, 0.975212054450319,  1.95636153387788,  0,
                      0, 0.336596613797375, 1.44282049161418,  0, 0, 0.554194257068292,  1.46741302089586,  0,
                      0, 0.211370041552108, 0.728621203435628, 0, 0, 0.0737557855522317, 0.843132452872232, 0});
  check_close(out.h, {0, 0, 0, 0, 0.715754453419928, 2.33814138830554, 0.940648438280046, 2.08048047112927, 0,
                      0.211370041552108, 0, 0.0737557855522317, 1.9331745137163, 0, 1.95636153387788, 0});
  // fill(nn.RNN(3, 2))(x)[0]
  nn::RNN plain(root, "plain", {.in = 3, .hidden = 2});
  CHECK(state_names(plain) == std::vector<std::string>{"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"});
  fill_waves(plain);
  check_close(plain(x).y, {0.113705984741018, -0.811138318755068, -0.227936489880888, -0.559287012794601,
                           -0.729698677466434, -0.213128343558098, -0.103010941854876, -0.703071394076113,
                           -0.549935466372131, -0.41825142203953, -0.76160394445975, -0.233480975307703});
  // fill(nn.RNNCell(3, 2))(x[0], wave((2, 2), 0.5))
  nn::RNNCell cell(root, "cell", {.in = 3, .hidden = 2});
  CHECK(state_names(cell) == std::vector<std::string>{"weight_ih", "weight_hh", "bias_ih", "bias_hh"});
  fill_waves(cell);
  check_close(cell(select(x, 0, 0), wave({2, 2}, 0.5)),
              {0.31200819885058, -0.874440473711814, 0.0381654527895235, -0.662752029947845});
  nn::RNNCell relu_cell(root, "relu_cell", {.in = 3, .hidden = 2, .nonlinearity = nn::RNNNonlinearity::relu});
  relu_cell.load_state_dict(cell.state_dict());
  check_close(relu_cell(select(x, 0, 0)),
              relu(linear(select(x, 0, 0), cell.weight_ih, cell.bias_ih) + cell.bias_hh).detach().to_vector<double>());
}

TEST_CASE("an LSTM with projections gives PyTorch's values under its names") {
  // m = fill(nn.LSTM(3, 3, num_layers=2, proj_size=2, bidirectional=True)); m(wave((3, 2, 3), 0.25))
  Root root;
  nn::LSTM m(root, "m", {.in = 3, .hidden = 3, .num_layers = 2, .bidirectional = true, .proj_size = 2});
  CHECK(state_names(m) ==
        std::vector<std::string>{
            "weight_ih_l0",         "weight_hh_l0",         "bias_ih_l0",           "bias_hh_l0",
            "weight_hr_l0",         "weight_ih_l0_reverse", "weight_hh_l0_reverse", "bias_ih_l0_reverse",
            "bias_hh_l0_reverse",   "weight_hr_l0_reverse", "weight_ih_l1",         "weight_hh_l1",
            "bias_ih_l1",           "bias_hh_l1",           "weight_hr_l1",         "weight_ih_l1_reverse",
            "weight_hh_l1_reverse", "bias_ih_l1_reverse",   "bias_hh_l1_reverse",   "weight_hr_l1_reverse"});
  fill_waves(m);
  const nn::LSTMOutput out = m(wave({3, 2, 3}, 0.25));
  check_close(out.y,
              {-0.120040926903073, 0.198602535633092,  -0.41905501834462,  0.400969047392327,  -0.119860019642544,
               0.199480813863064,  -0.419293331726119, 0.400783478916363,  -0.161707781663187, 0.295788231348764,
               -0.351795081066297, 0.339487972059986,  -0.160863259111672, 0.294650653826486,  -0.352982196463895,
               0.342526910901202,  -0.174748038421971, 0.339528127283519,  -0.227347488271334, 0.224287895768593,
               -0.174608368796503, 0.339228485578168,  -0.226439036917441, 0.22287665070152});
  check_close(out.h, {-0.115251479117382, 0.144379116940071, -0.0694082977603802, 0.128852227429986, -0.20388411499772,
                      0.0238529400032198, -0.212216570071669, 0.0880217828003959, -0.174748038421971, 0.339528127283519,
                      -0.174608368796503, 0.339228485578168, -0.41905501834462, 0.400969047392327, -0.419293331726119,
                      0.400783478916363});
  check_close(out.c,
              {0.404552789487813,  0.422896473614351,  0.15971989775677,   0.267471895860902,  0.387040840805203,
               0.239196607107158,  0.239762746697693,  0.467610719605666,  0.297823805333694,  0.0271025519618831,
               0.571621203106721,  0.377671164417402,  -0.789047785592471, -0.441028992263482, 0.123092831287315,
               -0.785364511149662, -0.445296565485182, 0.128255164424842,  -0.46675595609327,  -0.821489662108823,
               -0.878338043227916, -0.471440486408682, -0.815454595630096, -0.883482020840706});
  check_gradients(m, wave({2, 1, 3}, 0.25), [&](const Tensor& x) {
    const nn::LSTMOutput o = m(x);
    return sum(o.y * wave(o.y.shape(), 2)) + sum(square(o.c));
  });
  CHECK_THROWS_AS((void)m(wave({3, 2, 3}, 0), {.h = wave({4, 2, 3}, 0)}), ShapeError);
}

// Sequences of 2, 4 and 1 steps.
Tensor lengths_of_three() { return from_data(std::vector<std::int64_t>{2, 4, 1}, {3}, Device::cpu()); }

TEST_CASE("sequences of different lengths give the values of PyTorch's packed sequences") {
  // m = fill(nn.LSTM(3, 2, num_layers=2, bidirectional=True, batch_first=True))
  // p = pack_padded_sequence(wave((3, 4, 3), 0.25), torch.tensor([2, 4, 1]), batch_first=True, enforce_sorted=False)
  // y, (h, c) = m(p); pad_packed_sequence(y, batch_first=True)
  Root root;
  nn::LSTM m(root, "m", {.in = 3, .hidden = 2, .num_layers = 2, .batch_first = true, .bidirectional = true});
  fill_waves(m);
  const Tensor x = wave({3, 4, 3}, 0.25);
  const nn::LSTMOutput out = m(x, {}, lengths_of_three());
  check_close(out.y, {0.117558772992588,
                      0.084083524093962,
                      -0.221671253479474,
                      0.0790450736900116,
                      0.183206103960818,
                      0.118259927109629,
                      -0.174488523321542,
                      0.0700816484733588,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0.129051652540881,
                      0.0743327023270697,
                      -0.247532737732305,
                      0.113403257628115,
                      0.200049869300349,
                      0.107679274440802,
                      -0.244945891582616,
                      0.113052154596478,
                      0.228510160454268,
                      0.13201293640305,
                      -0.228141391817925,
                      0.09694811913414,
                      0.249769321300025,
                      0.135334756253035,
                      -0.178434794931471,
                      0.077587019208206,
                      0.124384264148582,
                      0.0717703794740016,
                      -0.178070473390881,
                      0.0767706413458448,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0});
  check_close(out.h,
              {-0.000554752582482262, 0.110257930110724,   0.0390075781903133, 0.14362709286145,   0.043792567026883,
               0.179374650363953,     -0.0832063447545007, -0.409707305033529, -0.169508174837749, -0.353488065627862,
               -0.23103966857541,     -0.122063940788449,  0.183206103960818,  0.118259927109629,  0.249769321300025,
               0.135334756253035,     0.124384264148582,   0.0717703794740016, -0.221671253479474, 0.0790450736900116,
               -0.247532737732305,    0.113403257628115,   -0.178070473390881, 0.0767706413458448});
  check_close(out.c,
              {-0.000764498236718786, 0.155279772583595,  0.0550287981466501, 0.204222484085684,  0.0740269348584112,
               0.251471073526137,     -0.29653056012804,  -0.852024281505049, -0.793933322742167, -0.881425529061184,
               -0.624583318008397,    -0.366004829251808, 0.391836462698376,  0.304232000217371,  0.557211468738237,
               0.340819167810797,     0.256173978892926,  0.191157590458378,  -0.355343012097434, 0.111089220560304,
               -0.414659034796105,    0.156113658241189,  -0.287129502218255, 0.10745584139556});
}

TEST_CASE("each sequence of a padded batch gives what it gives alone, and its padding is not read") {
  Root root;
  nn::GRU gru(root, "gru", {.in = 3, .hidden = 2, .num_layers = 2, .batch_first = true, .bidirectional = true});
  nn::RNN rnn(root, "rnn", {.in = 3, .hidden = 2});
  const Tensor x = wave({3, 4, 3}, 0.25), h = wave({4, 3, 2}, 0.5);
  const Tensor behind = unsqueeze(ge(arange(4, Device::cpu()), unsqueeze(lengths_of_three(), 1)), 2);
  Tensor dirty = masked_fill(x, behind, std::numeric_limits<double>::quiet_NaN());
  dirty.requires_grad_();
  const nn::GRUOutput all = gru(dirty, h, lengths_of_three());
  const std::vector<std::int64_t> lengths{2, 4, 1};
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::int64_t n = lengths[static_cast<std::size_t>(i)];
    const nn::GRUOutput one = gru(slice(narrow(x, 0, i, 1), 1, 0, n), narrow(h, 1, i, 1));
    check_close(slice(narrow(all.y, 0, i, 1), 1, 0, n), one.y.detach().to_vector<double>());
    check_close(slice(narrow(all.y, 0, i, 1), 1, n, 4), std::vector<double>(static_cast<std::size_t>((4 - n) * 4), 0));
    check_close(narrow(all.h, 1, i, 1), one.h.detach().to_vector<double>());
  }
  backward(sum(square(all.y)) + sum(all.h));
  CHECK(all_finite(dirty.grad()));
  for (const ParamRef& p : gru.parameters()) CHECK_MESSAGE(all_finite(p.value->grad()), p.name);
  // A sequence without steps keeps its initial state.
  const Tensor none = zeros({2}, Device::cpu(), DType::i64), first = wave({1, 2, 2}, 0.5);
  const nn::RNNOutput idle = rnn(wave({4, 2, 3}, 0.25), first, none);
  CHECK(equal(idle.h.detach(), first));
  CHECK(equal(idle.y.detach(), zeros({4, 2, 2}, Device::cpu(), DType::f64)));
  check_gradients(rnn, wave({4, 3, 3}, 0.25), [&](const Tensor& in) {
    const nn::RNNOutput o = rnn(in, {}, lengths_of_three());
    return sum(o.y * wave(o.y.shape(), 2)) + sum(square(o.h));
  });
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
  nn::RNNCell rnn_cell(root, "rnn_cell", {.in = 3, .hidden = 2});
  CHECK_THROWS_AS((void)rnn_cell(wave({1, 2}, 0)), ShapeError);
  CHECK_THROWS_WITH_AS(nn::GRU(root, "a", {.in = 3, .hidden = 2, .proj_size = 1}),
                       doctest::Contains("GRU: proj_size is 1"), ConfigError);
  CHECK_THROWS_AS(nn::LSTM(root, "b", {.in = 3, .hidden = 2, .proj_size = 2}), ConfigError);
  CHECK_THROWS_WITH_AS(nn::LSTM(root, "c", {.in = 3, .hidden = 2, .nonlinearity = nn::RNNNonlinearity::relu}),
                       doctest::Contains("LSTM: nonlinearity is relu"), ConfigError);
  const auto lengths = [](std::vector<std::int64_t> n) {
    return from_data(n, {static_cast<std::int64_t>(n.size())}, Device::cpu());
  };
  const Tensor x = wave({4, 2, 3}, 0);
  CHECK_THROWS_WITH_AS((void)m(x, {}, lengths({4, 5})), doctest::Contains("a length is 5, expected 0 to 4"),
                       IndexError);
  CHECK_THROWS_AS((void)m(x, {}, lengths({4, -1})), IndexError);
  CHECK_THROWS_AS((void)m(x, {}, lengths({4, 4, 4})), ShapeError);
  CHECK_THROWS_AS((void)m(x, {}, lengths({4, 4}).to(DType::i32)), DTypeError);
  CHECK_THROWS_AS((void)m(x, {}, empty({2}, Device::meta(), DType::i64)), DeviceError);
}

}  // namespace
}  // namespace levin
