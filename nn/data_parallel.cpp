#include "levin/nn/data_parallel.h"

#include <algorithm>
#include <array>
#include <string>

#include "autograd/random_tape.h"
#include "autograd/replica_values.h"
#include "levin/autograd.h"
#include "levin/extend.h"
#include "levin/ops.h"
#include "tensor/core/team.h"

namespace levin::nn::detail {
namespace {

std::string words(const std::vector<Device>& devices) {
  std::string all;
  for (const Device d : devices) all += (all.empty() ? "" : ", ") + text(d);
  return all;
}

// The parts of one call, whose graphs end at the parts and at the copies' parameters.
struct Parts {
  std::vector<Device> devices;
  Tensors in, out;                  // of each part, on its device
  std::vector<Tensors> parameters;  // of the copies; those of the module first
};

Tensor joined(Device device, const Tensors& parts) {
  Tensors here;
  for (const Tensor& t : parts) here.push_back(t.to(device));
  return here[0].rank() == 0 ? stack(std::span<const Tensor>(here)) : cat(std::span<const Tensor>(here));
}

// Note [Copies of a module]
// A copy is a module of its own, so that its thread shares no leaf, generator or buffer with others. Its parameters
// become leaves over the module's values before each call. A call is one node of the graph, whose edges lead to x and
// to the module's parameters. Its backward runs the parts' graphs side by side and adds what they give in the order of
// devices.
class ReplicasNode final : public Node {
 public:
  ReplicasNode(std::vector<Edge> to, std::shared_ptr<Parts> parts, std::shared_ptr<levin::detail::Team> team)
      : Node(Kind::op), to_(std::move(to)), parts_(std::move(parts)), team_(std::move(team)) {
    edges_ = to_.data();
    edge_count_ = static_cast<std::uint32_t>(to_.size());
  }
  const OpInfo& info() const override { return kInfo; }
  void free_saved() noexcept override { parts_.reset(); }

  void run(std::span<const Tensor> grads, NeedMask, std::span<Tensor> out) override {
    if (!parts_) levin::detail::fail_freed(kInfo);
    try {
      if (grad_mode())
        fail<AutogradError>(
            "the parts of a call on several devices keep no history of their gradients; call the module "
            "without DataParallel for derivatives of second order");
      const Parts& p = *parts_;
      const std::size_t count = p.in.size();
      std::vector<Tensors> got(count);
      Tensors seeds;
      std::int64_t at = 0;
      for (std::size_t k = 0; k < count; ++k) {
        const Tensor& y = p.out[k];
        const std::int64_t rows = y.rank() == 0 ? 1 : y.size(0);
        const Tensor part = slice(grads[0], 0, at, at + rows);
        seeds.push_back((y.rank() == 0 ? reshape(part, Dims(y.shape().dims())) : part).to(p.devices[k]));
        at += rows;
      }
      team_->run([&](int member) {
        const auto k = static_cast<std::size_t>(member);
        if (k >= count || !p.out[k].requires_grad()) return;
        Tensors wanted{p.in[k]};
        for (const Tensor& t : p.parameters[k]) wanted.push_back(t);
        std::vector<std::size_t> which;
        Tensors asked;
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          if (!wanted[i].requires_grad()) continue;
          which.push_back(i);
          asked.push_back(wanted[i]);
        }
        Tensors found =
            grad(std::span(&p.out[k], 1), asked, std::span(&seeds[k], 1), {.retain_graph = true, .allow_unused = true});
        got[k].resize(wanted.size());
        for (std::size_t j = 0; j < which.size(); ++j) got[k][which[j]] = std::move(found[j]);
      });
      const Device root = p.devices[0];
      if (p.in[0].requires_grad()) {
        Tensors of_x;
        for (std::size_t k = 0; k < count; ++k) {
          const bool any = !got[k].empty() && got[k][0].defined();
          of_x.push_back(any ? got[k][0] : zeros(p.in[k].shape(), p.devices[k], p.in[k].dtype()));
        }
        out[0] = joined(root, of_x);
      }
      for (std::size_t k = 0; k < count; ++k) {
        if (got[k].empty()) continue;
        const Tensors here = levin::detail::values_on(root, Tensors(got[k].begin() + 1, got[k].end()));
        for (std::size_t i = 0; i < here.size(); ++i) {
          if (here[i].defined()) out[i + 1] = out[i + 1].defined() ? out[i + 1] + here[i] : here[i];
        }
      }
    } catch (...) { levin::detail::rethrow_in_backward(kInfo, {}, grads); }
  }
  static constexpr OpInfo kInfo{.name = "data_parallel"};

 private:
  std::vector<Edge> to_;
  std::shared_ptr<Parts> parts_;
  std::shared_ptr<levin::detail::Team> team_;
};

}  // namespace

struct Replicas::State {
  struct One {
    std::unique_ptr<Module> root{};  // of a copy
    Module* module = nullptr;
    Call call{};
    std::vector<ParamRef> parameters{};
    std::vector<BufferRef> buffers{};
    std::vector<std::pair<std::string, Generator*>> generators{};
    std::vector<Module*> modules{};
  };
  Module& owner;
  std::vector<Device> devices;
  std::vector<One> all{};
  std::unique_ptr<Module> next{};
  std::optional<ModuleGenerator> draws{};  // where the module draws: seeds of the copies
  std::shared_ptr<levin::detail::Team> team;

  // Values, flags and buffers of copy k become those of the module. `call`: different in each call.
  void refresh(std::size_t k, const std::optional<RandomRange>& call) {
    const One &first = all[0], &one = all[k];
    const NoGrad off;
    Tensors values, buffers;
    for (const ParamRef& p : first.parameters) values.push_back(p.value->detach());
    for (const BufferRef& b : first.buffers) buffers.push_back(*b.value);
    values = levin::detail::values_on(devices[k], values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i].requires_grad_(first.parameters[i].value->requires_grad());
      *one.parameters[i].value = values[i];
    }
    for (std::size_t i = 0; i < buffers.size(); ++i)
      *one.buffers[i].value = buffers[i].defined() ? buffers[i].detach().to(devices[k]) : buffers[i];
    for (std::size_t i = 0; call && i < one.generators.size(); ++i) {
      const Generator stream =
          Generator(call->seed).fork("call " + text(call->offset) + " of " + text(k)).fork(first.generators[i].first);
      one.generators[i].second->set_state({.seed = stream.seed(), .offset = 0});
    }
    for (std::size_t i = 0; i < one.modules.size(); ++i)
      one.modules[i]->set_training_flag(first.modules[i]->is_training());
  }
};

Replicas::Replicas(Module& owner, std::vector<Device> devices)
    : state_(new State{.owner = owner, .devices = std::move(devices), .team = nullptr}) {
  const std::vector<Device>& all = state_->devices;
  if (all.empty()) fail<ConfigError>("DataParallel ", owner.path(), ": there is no device, expected 1 or more");
  for (const Device d : all) {
    if (d.is_meta() || std::count(all.begin(), all.end(), d) > 1)
      fail<ConfigError>("DataParallel ", owner.path(), ": the devices list ", d, d.is_meta() ? "" : " twice", " (",
                        words(all), "); name each device once, and none without memory");
  }
}
Replicas::~Replicas() = default;

Module* Replicas::next_root() {
  State& s = *state_;
  if (s.all.size() == s.devices.size()) return nullptr;
  const Device device = s.devices[s.all.size()];
  s.next = std::make_unique<Module>(
      Options{.gen = s.owner.fork("replica"), .device = device, .dtype = s.all[0].module->dtype()});
  return s.next.get();
}

void Replicas::add(Module& module, Call call) {
  State& s = *state_;
  const bool first = s.all.empty();
  const std::vector<ParamRef> parameters = module.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (parameters[k].value->impl() == parameters[i].value->impl())
        fail<ConfigError>("DataParallel ", s.owner.path(), ": it copies parameters one by one, and ",
                          parameters[k].name, " and ", parameters[i].name, " are one tensor; use the module alone");
    }
  }
  if (first && !s.owner.device().is_meta()) module.to(s.devices[0]);
  State::One one{.root = std::move(s.next),
                 .module = &module,
                 .call = std::move(call),
                 .parameters = parameters,
                 .buffers = module.buffers(),
                 .generators = module.generators()};
  module.visit([&](const std::string&, Module& m) { one.modules.push_back(&m); });
  if (first) {
    if (!one.generators.empty()) s.draws.emplace(s.owner, "replicas");
    s.team = std::make_shared<levin::detail::Team>(static_cast<int>(s.devices.size()));
  } else {
    const State::One& root = s.all[0];
    const auto names = [](const auto& list) {
      std::string all;
      for (const auto& part : list) all += part.name + " " + text(part.value->shape()) + "\n";
      return all;
    };
    if (names(one.parameters) != names(root.parameters) || names(one.buffers) != names(root.buffers) ||
        one.generators.size() != root.generators.size() || one.modules.size() != root.modules.size())
      fail<ConfigError>("DataParallel ", s.owner.path(), ": the copy on ", s.devices[s.all.size()], " has ",
                        one.parameters.size(), " parameters and ", one.modules.size(), " modules, the module has ",
                        root.parameters.size(), " and ", root.modules.size(),
                        ", or others by name or shape; its constructor must make the same each time");
  }
  s.all.push_back(std::move(one));
}

Tensor Replicas::run(const Tensor& x) const {
  State& s = *state_;
  const std::string name = "DataParallel " + s.owner.path();
  if (x.device().is_meta()) return s.all[0].call(x);
  if (x.device() != s.devices[0])
    fail<DeviceError>(name, ": x is on ", x.device(), ", expected ", s.devices[0], ", the first of its devices (",
                      words(s.devices), "); move it with to(device)");
  for (const ParamRef& p : s.all[0].parameters) {
    if (p.value->device() != s.devices[0])
      fail<DeviceError>(name, ": the parameter ", p.name, " is on ", p.value->device(), ", expected ", s.devices[0],
                        ", the first of its devices (", words(s.devices), "); leave it where its constructor put it");
  }
  if (x.rank() == 0) fail<ShapeError>(name, ": x is ", text(x), ", expected a dimension to cut the batch along");
  const std::int64_t n = x.size(0), wide = static_cast<std::int64_t>(s.devices.size());
  const std::int64_t size = (n + wide - 1) / wide;
  if (n <= size || n == 0) return s.all[0].call(x);  // one part

  const auto count = static_cast<std::size_t>((n + size - 1) / size);
  std::optional<RandomRange> draw;
  if (s.draws) draw = levin::detail::reserve_random(*s.draws, 1, Device::cpu());
  auto parts = std::make_shared<Parts>();
  parts->out.resize(count);
  const bool follows = grad_mode() && records(x);
  for (std::size_t k = 0; k < count; ++k) {
    if (k > 0) s.refresh(k, draw);
    const auto begin = static_cast<std::int64_t>(k) * size;
    Tensor part = slice(x.detach(), 0, begin, std::min(begin + size, n)).to(s.devices[k]);
    if (follows) part = part.requires_grad_();
    parts->devices.push_back(s.devices[k]);
    parts->in.push_back(part);
    Tensors& of_part = parts->parameters.emplace_back();
    for (const ParamRef& p : s.all[k].parameters) of_part.push_back(*p.value);
  }
  const DType autocast = autocast_dtype();
  s.team->run([&](int member) {
    const auto k = static_cast<std::size_t>(member);
    if (k >= count) return;
    std::optional<Autocast> on;
    if (k > 0 && autocast != DType::f32) on.emplace(autocast);
    parts->out[k] = s.all[k].call(parts->in[k]);
  });
  Tensor y;
  {
    const NoGrad off;
    Tensors outputs;
    for (const Tensor& t : parts->out) outputs.push_back(t.detach());
    y = joined(s.devices[0], outputs);
  }
  const bool any = std::any_of(parts->out.begin(), parts->out.end(), [](const Tensor& t) { return records(t); });
  if (!grad_mode() || !any) return y;
  std::vector<Edge> to{follows ? edge_of(x) : Edge()};
  for (const Tensor& t : parts->parameters[0]) to.push_back(edge_of(t));
  y.get().meta = levin::detail::Ref<Node>::adopt(new ReplicasNode(std::move(to), std::move(parts), s.team));
  return y;
}

}  // namespace levin::nn::detail
