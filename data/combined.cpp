// Several loaders as one.
#include <algorithm>
#include <array>

#include "data/errors.h"
#include "data/loader_pass.h"

// Note [Combined loaders]
// The position of each part is a function of the epoch and the number of the batch, so a combination has the state of a
// plain loader and a run can resume at any batch. With max_size_cycle a part of n batches starts again after n batches:
// pass c of epoch e is the part's epoch e * cycles + c, cycles being the number of its passes in an epoch, so each pass
// has a new order. This needs parts that give their batches in order.
namespace levin::data {

namespace {

constexpr std::array kModes{"max_size_cycle", "min_size", "max_size", "sequential"};

// One epoch of a combination.
class CombinedPass final : public DataLoader::Pass {
 public:
  explicit CombinedPass(std::shared_ptr<DataLoader::Impl> impl)
      : impl_(std::move(impl)), passes_(impl_->parts.size()), taken_(impl_->parts.size()) {
    size_ = impl_->batches();
    next_ = impl_->state.batch;
    impl_->looping = true;
  }
  ~CombinedPass() override { leave(); }

  bool next(Batch& out) override {
    DataLoader::Impl& impl = *impl_;
    out.fields.clear();
    if (next_ == size_) {
      impl.state = {.epoch = impl.state.epoch + 1};
      leave();
      return false;
    }
    out.parts.resize(impl.parts.size());
    out.indices.clear();
    for (std::size_t k = 0; k < impl.parts.size(); ++k) {
      const std::string& name = impl.parts[k].first;
      BatchPart& part = out.parts[k];
      part.name = name;
      part.first = out.fields.size();
      part.count = 0;
      part.indices.clear();
      std::optional<LoaderState> at = impl.place(k, impl.state.epoch, next_);
      if (!at) {
        passes_[k].reset();  // its workers have no more to load
        continue;
      }
      at->in_sequence = impl.state.in_sequence;
      Batch& batch = taken_[k];
      try {
        advance(k, *at, batch);
      } catch (...) {
        leave();
        rethrow_with("; in part \"" + name + "\" of combined loaders");
      }
      part.count = batch.fields.size();
      for (Tensor& t : batch.fields) out.fields.push_back(std::move(t));
      batch.fields.clear();
      part.indices = batch.indices;
      if (out.indices.empty()) out.indices = batch.indices;
    }
    out.position = next_++;
    impl.state.hand_out(out.position);
    return true;
  }

 private:
  void advance(std::size_t k, const LoaderState& at, Batch& to) {
    if (!passes_[k] || at.batch == 0) {
      passes_[k].reset();
      impl_->parts[k].second.load_state(at);
      passes_[k] = DataLoader::Combination::pass_of(impl_->parts[k].second);
    }
    if (!passes_[k]->next(to))
      fail<DataError>("loader: it ended at batch ", at.batch, ", its size() is ", impl_->parts[k].second.size());
  }
  void leave() {
    for (auto& pass : passes_) pass.reset();
    if (std::exchange(looping_, false)) impl_->looping = false;
  }

  std::shared_ptr<DataLoader::Impl> impl_;
  std::vector<std::unique_ptr<DataLoader::Pass>> passes_;
  std::vector<Batch> taken_;
  std::int64_t size_ = 0, next_ = 0;
  bool looping_ = true;
};

}  // namespace

std::unique_ptr<DataLoader::Pass> DataLoader::Combination::pass(std::shared_ptr<Impl> impl) {
  return std::make_unique<CombinedPass>(std::move(impl));
}

std::size_t DataLoader::parts() const { return impl().parts.size(); }
DataLoader& DataLoader::part(std::size_t k) const {
  if (k >= parts()) fail<IndexError>("part: it is ", k, ", the loader has ", parts());
  return impl().parts[k].second;
}
const std::string& DataLoader::part_name(std::size_t k) const {
  (void)part(k);
  return impl().parts[k].first;
}
CombineMode DataLoader::combined_by() const { return impl().mode; }

std::int64_t DataLoader::Impl::combined_batches() const {
  std::int64_t least = -1, most = 0, all = 0;
  for (const auto& [name, part] : parts) {
    const std::int64_t n = part.size();
    least = least < 0 ? n : std::min(least, n);
    most = std::max(most, n);
    all += n;
  }
  return mode == CombineMode::min_size     ? std::max<std::int64_t>(0, least)
         : mode == CombineMode::sequential ? all
                                           : most;
}

std::optional<LoaderState> DataLoader::Impl::place(std::size_t k, std::int64_t epoch, std::int64_t batch) const {
  const std::int64_t n = parts[k].second.size();
  if (mode == CombineMode::sequential) {
    for (std::size_t before = 0; before < k; ++before) batch -= parts[before].second.size();
    return batch < 0 || batch >= n ? std::nullopt : std::optional(LoaderState{.epoch = epoch, .batch = batch});
  }
  if (mode != CombineMode::max_size_cycle)
    return batch >= n ? std::nullopt : std::optional(LoaderState{.epoch = epoch, .batch = batch});
  const std::int64_t all = combined_batches(), cycles = all / n + (all % n != 0);
  return LoaderState{.epoch = epoch * cycles + batch / n, .batch = batch % n};
}

DataLoader combine(const std::vector<NamedLoader>& parts, CombineMode mode) {
  auto impl = std::make_shared<DataLoader::Impl>();
  impl->mode = mode;
  if (parts.empty()) fail<ConfigError>("combine: no loaders were given, expected one or more");
  const auto add = [&](std::string name, const DataLoader& part) {
    for (const auto& [known, loader] : impl->parts) {
      if (known == name) fail<ConfigError>("combine: two loaders are named \"", name, "\"; give each its own name");
    }
    if (part.stream())
      fail<ConfigError>("combine: \"", name,
                        "\" reads streams, and where a combination stands follows from its number of batches; give a "
                        "loader over a Dataset");
    if (!part.options().in_order)
      fail<ConfigError>("combine: \"", name,
                        "\" has in_order = false, and where a combination stands follows from its number of batches; "
                        "leave in_order on");
    if (part.size() == 0 && mode == CombineMode::max_size_cycle)
      fail<ConfigError>("combine: \"", name,
                        "\" has no batches, and max_size_cycle would begin it anew for ever; leave "
                        "it out, or use max_size");
    impl->parts.emplace_back(std::move(name), DataLoader::Combination::shared(part));
  };
  for (const NamedLoader& p : parts) {
    if (!p.loader) fail<ConfigError>("combine: the loader \"", p.name, "\" is null; leave it out");
    if (p.loader->parts() == 0) {
      add(p.name, *p.loader);
      continue;
    }
    // A tree of combinations becomes its leaves, combined by one mode.
    if (p.loader->combined_by() != mode)
      fail<ConfigError>("combine: \"", p.name, "\" is combined by ",
                        kModes[static_cast<std::size_t>(p.loader->combined_by())], " and the whole by ",
                        kModes[static_cast<std::size_t>(mode)], "; combine both in one way");
    for (std::size_t k = 0; k < p.loader->parts(); ++k) add(p.name + "." + p.loader->part_name(k), p.loader->part(k));
  }
  return DataLoader::Combination::made(std::move(impl));
}
DataLoader combine(std::span<DataLoader* const> parts, CombineMode mode) {
  std::vector<NamedLoader> named;
  for (std::size_t k = 0; k < parts.size(); ++k) named.push_back({.name = std::to_string(k), .loader = parts[k]});
  return combine(named, mode);
}

std::span<const Tensor> Batch::part(std::size_t k) const {
  if (k >= parts.size())
    fail<IndexError>("batch: part is ", k, ", the batch has ", parts.size(), "; data::combine makes batches of parts");
  return {fields.data() + parts[k].first, parts[k].count};
}
std::span<const Tensor> Batch::part(std::string_view name) const {
  std::string known;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (parts[k].name == name) return part(k);
    known += (k ? ", " : "") + parts[k].name;
  }
  fail<IndexError>("batch: there is no part \"", name, "\", it has: ", known.empty() ? "none" : known);
}

}  // namespace levin::data
