// Note [Virtual ranks] is in virtual_ranks.h.
#include "train/strategy/virtual_ranks.h"

#include <algorithm>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/train/trainer.h"
#include "train/logs/metric_log.h"

namespace levin::train {
namespace {

DType sums_of(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

std::vector<Tensor> buffers_of(nn::Module* tree, bool floating) {
  std::vector<Tensor> all;
  for (const nn::BufferRef& b : buffers_of_model(tree)) {
    if (is_float(b.value->dtype()) == floating) all.push_back(*b.value);
  }
  return all;
}
std::vector<Tensor> copies_of(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> all;
  for (const Tensor& t : tensors) all.push_back(t.clone());
  return all;
}

// The generators of a module, which draw for one virtual rank after the other and are put back.
class Draws {
 public:
  Draws(nn::Module* tree, std::int64_t batch) : batch_(batch) {
    if (tree) generators_ = tree->generators();
    for (const auto& [name, g] : generators_) before_.push_back(g->state());
  }
  ~Draws() {
    for (std::size_t i = 0; i < before_.size(); ++i) generators_[i].second->set_state(before_[i]);
  }
  Draws(const Draws&) = delete;
  Draws& operator=(const Draws&) = delete;
  void begin(std::int64_t virtual_rank) {
    for (std::size_t i = 0; i < before_.size(); ++i) {
      const Generator own = Generator(before_[i].seed).fork("v" + text(virtual_rank)).fork("batch" + text(batch_));
      generators_[i].second->set_state(own.state());
    }
  }

 private:
  std::int64_t batch_;
  std::vector<std::pair<std::string, Generator*>> generators_;
  std::vector<RandomRange> before_;
};

Batch shard_of(const Batch& whole, std::int64_t shard, std::int64_t shards) {
  Batch part = whole;
  for (Tensor& t : part.fields) {
    if (!t.defined() || t.rank() == 0) continue;
    const std::int64_t n = t.size(0);
    if (n % shards != 0)
      fail<ConfigError>("fit: a batch has ", n, " samples and this rank runs ", shards,
                        " virtual ranks, which need equal parts; give the loader a batch_size that is a multiple");
    t = slice(t, 0, n / shards * shard, n / shards * (shard + 1));
  }
  const auto cut = [&](auto& list) {
    const std::size_t n = list.size() / static_cast<std::size_t>(shards);
    const auto begin = list.begin() + static_cast<std::ptrdiff_t>(n * static_cast<std::size_t>(shard));
    list = {begin, begin + static_cast<std::ptrdiff_t>(n)};
  };
  if (static_cast<std::int64_t>(part.indices.size()) % shards == 0) cut(part.indices);
  return part;
}

// Outputs that are averaged or joined have the same names for each virtual rank.
void check_alike(const StepOutput& first, const StepOutput& other, std::int64_t virtual_rank) {
  const auto words = [](const StepOutput& o) {
    if (o.weight().defined()) return std::string("a sum and its weight");
    if (o.outputs().empty()) return std::string("a loss");
    std::string names;
    for (const auto& [name, t] : o.outputs()) names += (names.empty() ? "" : ", ") + name;
    return "{" + names + "}";
  };
  if (std::string one = words(first), two = words(other); one != two)
    fail<ConfigError>("fit: training_step returned ", one, " for the first virtual rank of this rank and ", two,
                      " for virtual rank ", virtual_rank, "; return the same outputs for each");
}

// ((0 + 1) + (2 + 3)) + ... over a power of two of terms.
Tensor tree_sum(std::vector<Tensor> terms) {
  for (; terms.size() > 1;) {
    std::vector<Tensor> next;
    for (std::size_t i = 0; i < terms.size(); i += 2) next.push_back(terms[i] + terms[i + 1]);
    terms = std::move(next);
  }
  return terms.front();
}
Tensor tree_mean(const std::vector<Tensor>& terms) {
  return terms.size() == 1 ? terms.front() : tree_sum(terms) / static_cast<double>(terms.size());
}

}  // namespace

void VirtualRanks::Layout::add(const Tensor& t) {
  const std::pair<DType, Device> kind{sums_of(t.dtype()), t.device()};
  const auto at = static_cast<std::size_t>(std::find(kinds.begin(), kinds.end(), kind) - kinds.begin());
  if (at == kinds.size()) {
    kinds.push_back(kind);
    sizes.push_back(0);
  }
  places.push_back({at, sizes[at], t.numel()});
  sizes[at] += t.numel();
}
std::vector<Tensor> VirtualRanks::Layout::zeros() const {
  std::vector<Tensor> flats;
  for (std::size_t k = 0; k < kinds.size(); ++k)
    flats.push_back(levin::zeros({sizes[k]}, kinds[k].second, kinds[k].first));
  return flats;
}
Tensor VirtualRanks::Layout::part(const std::vector<Tensor>& flats, std::size_t i, const Tensor& like) const {
  const Place& p = places[i];
  return view(slice(flats[p.flat], 0, p.begin, p.begin + p.count), Dims(like.shape().dims()));
}

VirtualRanks::VirtualRanks(std::shared_ptr<dist::ProcessGroup> group, std::vector<Reducer::Member> members,
                           nn::Module* tree, int shards, bool find_unused)
    : group_(std::move(group)), members_(std::move(members)), tree_(tree), shards_(shards), find_unused_(find_unused) {
  lay_out();
}

// Places for what requires grad. Called between windows.
void VirtualRanks::lay_out() {
  std::string now;
  for (const Reducer::Member& m : members_) now += m.value.requires_grad() ? '1' : '0';
  if (now == trained_ && !now.empty()) return;
  if (!open_.empty())
    fail<StateError>(
        "fit: parameters began or ceased to require grad in an open window of accumulation; with virtual ranks change "
        "them between windows");
  trained_ = now;
  index_.clear();
  gradients_ = buffers_ = {};
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (now[i] == '0') continue;
    index_.push_back(i);
    gradients_.add(members_[i].value);
  }
  for (const Tensor& b : buffers_of(tree_, true)) buffers_.add(b);
  report_.buckets = static_cast<std::int64_t>(gradients_.kinds.size());
}

// Takes the gradients and the buffers of the pass that has ended.
VirtualRanks::Set VirtualRanks::collect() {
  Set set{.gradients = gradients_.zeros(), .buffers = buffers_.zeros(), .used = {}};
  for (std::size_t k = 0; k < index_.size(); ++k) {
    Tensor& value = members_[index_[k]].value;
    const Tensor gradient = value.grad();
    set.used += gradient.defined() ? '1' : '0';
    if (!gradient.defined()) continue;
    Tensor place = gradients_.part(set.gradients, k, value);
    copy_(place, gradient.detach());
    value.set_grad({});
  }
  const std::vector<Tensor> buffers = buffers_of(tree_, true);
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    Tensor place = buffers_.part(set.buffers, k, buffers[k]);
    copy_(place, buffers[k]);
  }
  return set;
}

void VirtualRanks::put_buffers(const std::vector<Tensor>& flats) {
  std::vector<Tensor> buffers = buffers_of(tree_, true);
  for (std::size_t k = 0; k < buffers.size(); ++k) copy_(buffers[k], buffers_.part(flats, k, buffers[k]));
}

void VirtualRanks::fail_missing(const std::string& used, std::int64_t virtual_rank) const {
  std::string names;
  for (std::size_t k = 0; k < used.size(); ++k) {
    if (used[k] == '0') names += (names.empty() ? "" : ", ") + members_[index_[k]].name;
  }
  const std::string what = "backward: virtual rank " + text(virtual_rank) + " has no gradient for " + names +
                           "; freeze what the loss does not use, or set find_unused_parameters";
  group_->abort(what);
  fail<StateError>(what);
}

// Sums over all virtual ranks, and the exact division.
void VirtualRanks::reduce(Set& all) {
  const double size = static_cast<double>(shards_) * group_->size();
  for (std::vector<Tensor>* flats : {&all.gradients, &all.buffers}) {
    for (Tensor& t : *flats) {
      if (group_->size() > 1) {
        group_->all_reduce_now(t, dist::ReduceOp::sum, dist::ReduceOrder::tree);
        ++report_.reductions;
        report_.bytes += t.numel() * static_cast<std::int64_t>(itemsize(t.dtype()));
      }
      mul_(t, 1 / size);
    }
  }
  if (!find_unused_ || group_->size() == 1 || all.used.empty()) return;
  std::vector<std::uint8_t> used(all.used.begin(), all.used.end());
  const Tensor marks = from_data(used, {static_cast<std::int64_t>(used.size())}, all.gradients.front().device());
  group_->all_reduce_now(marks, dist::ReduceOp::max);
  used = marks.to_vector<std::uint8_t>();
  all.used.assign(used.begin(), used.end());
}

void VirtualRanks::put_gradients(const Set& all) {
  for (std::size_t k = 0; k < index_.size(); ++k) {
    Tensor& value = members_[index_[k]].value;
    value.set_grad(all.used[k] == '1' ? gradients_.part(all.gradients, k, value).to(value.dtype()) : Tensor());
  }
}

StepOutput VirtualRanks::mean_of(const std::vector<StepOutput>& outputs) const {
  const auto mean = [&](const auto& get) {
    std::vector<Tensor> terms;
    for (const StepOutput& o : outputs) terms.push_back(get(o).detach());
    return tree_mean(terms);
  };
  const StepOutput& first = outputs.front();
  if (first.weight().defined())
    return StepOutput::sum(mean([](const StepOutput& o) { return o.summed(); }),
                           mean([](const StepOutput& o) { return o.weight(); }));
  const Tensor loss = mean([](const StepOutput& o) { return o.loss(); });
  if (first.outputs().empty()) return loss;
  NamedTensors named;
  for (std::size_t k = 0; k < first.outputs().size(); ++k) {
    const auto& [name, t] = first.outputs()[k];
    if (name == "loss" || t.rank() == 0) {
      named.emplace_back(name, mean([&](const StepOutput& o) { return o.outputs()[k].second; }));
      continue;
    }
    Tensors parts;
    for (const StepOutput& o : outputs) parts.push_back(o.outputs()[k].second.detach());
    named.emplace_back(name, cat(parts, 0));
  }
  return StepOutput(std::move(named));
}

StepOutput VirtualRanks::training_step(const StepCall& call) {
  lay_out();
  const std::int64_t first = std::int64_t{group_->rank()} * shards_;
  const bool continues = !open_.empty();
  const auto with_no_grad = [](const auto& f) {
    const NoGrad off;
    return f();
  };
  const std::vector<Tensor> counts = with_no_grad([&] { return copies_of(buffers_of(tree_, false)); });
  std::vector<Tensor> start = buffers_.zeros();
  with_no_grad([&] {
    const std::vector<Tensor> buffers = buffers_of(tree_, true);
    for (std::size_t k = 0; k < buffers.size(); ++k) {
      Tensor place = buffers_.part(start, k, buffers[k]);
      copy_(place, buffers[k]);
    }
  });
  Draws draws(tree_, call.module.trainer().total_batch_idx());
  std::vector<StepOutput> outputs;
  std::vector<Set> counter;
  for (int shard = 0; shard < shards_; ++shard) {
    const auto s = static_cast<std::size_t>(shard);
    with_no_grad([&] {
      put_buffers(continues ? open_[s].buffers : start);
      std::vector<Tensor> integers = buffers_of(tree_, false);
      for (std::size_t k = 0; k < integers.size(); ++k) copy_(integers[k], counts[k]);
    });
    draws.begin(first + shard);
    for (const std::size_t i : index_) members_[i].value.set_grad({});
    outputs.push_back(call.forward(call.module, shard_of(call.batch, shard, shards_)));
    check_alike(outputs.front(), outputs.back(), first + shard);
    const Tensor objective = call.objective(outputs.back());
    if (!objective.defined())
      fail<StateError>(
          "fit: training_step returned nothing for a virtual rank, whose gradients the others wait for; return a loss "
          "of 0 that depends on the parameters");
    levin::backward(objective);
    with_no_grad([&] {
      Set set = collect();
      if (!find_unused_ && set.used.find('0') != std::string::npos) fail_missing(set.used, first + shard);
      const auto add = [](Set& to, const Set& from) {
        for (std::size_t k = 0; k < to.gradients.size(); ++k) add_(to.gradients[k], from.gradients[k]);
        for (std::size_t k = 0; k < to.used.size(); ++k) to.used[k] = std::max(to.used[k], from.used[k]);
      };
      if (continues) {
        add(open_[s], set);
        open_[s].buffers = std::move(set.buffers);
        set = call.closes ? std::move(open_[s]) : Set();
      } else if (!call.closes) {
        open_.push_back(std::move(set));
      }
      if (!call.closes) return;
      while (!counter.empty() && counter.back().level == set.level) {
        add(counter.back(), set);
        for (std::size_t k = 0; k < set.buffers.size(); ++k) add_(counter.back().buffers[k], set.buffers[k]);
        set = std::move(counter.back());
        counter.pop_back();
        ++set.level;
      }
      counter.push_back(std::move(set));
    });
  }
  if (call.closes) {
    const NoGrad off;
    open_.clear();
    reduce(counter.front());
    put_buffers(counter.front().buffers);
    put_gradients(counter.front());
  }
  const NoGrad off;
  return mean_of(outputs);
}

}  // namespace levin::train
