// Reads checkpoints, and describes damaged ones. See Note [Checkpoint files].
#include "train/checkpoint/content.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <system_error>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/train/checkpoint.h"
#include "tensor/core/formats.h"
#include "tensor/files/file.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/text.h"
#include "train/run/run.h"

namespace levin {
namespace {

namespace fs = std::filesystem;

const std::string* find_entry(const TensorFile& file, std::string_view key) {
  for (const auto& [k, v] : file.metadata) {
    if (k == key) return &v;
  }
  return nullptr;
}

// Returns the text of the state after checking every hash.
const std::string& checked_state(const std::string& path, const TensorFile& file) {
  const std::string* state = find_entry(file, "levin.state");
  const std::string* hashes = find_entry(file, "levin.hashes");
  if (!state || !hashes)
    fail<ConfigError>(
        "resume: ", path,
        " holds weights alone, no state of a run; load it with load_state_dict, or resume from a checkpoint");
  if (const auto damage = train::find_damage(path, file, *state, *hashes); !damage.empty())
    fail<FormatError>("resume: ", path, ": \"", damage[0].name, "\" ", damage[0].what,
                      "; the file is damaged, use an older checkpoint");
  return *state;
}

std::size_t bytes_of_file(const std::string& path) {
  std::error_code error;
  std::size_t all = 0;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    all += static_cast<std::size_t>(it->file_size(error));
  if (all > 0) return all;
  const auto bytes = fs::file_size(path, error);
  return error ? 0 : static_cast<std::size_t>(bytes);
}

}  // namespace

namespace train {

bool is_ours(std::string_view name) { return name.starts_with("levin."); }

std::string optimizer_prefix(std::size_t i) { return "levin.optimizer." + std::to_string(i) + "."; }
std::string gradient_prefix(std::size_t i) { return "levin.gradient." + std::to_string(i) + "."; }
std::string window_weight_name() { return "levin.window_weight"; }
std::string scheduler_prefix(std::size_t i) { return "levin.lr_scheduler." + std::to_string(i) + "."; }
std::string metric_prefix() { return "levin.metric."; }
std::string precision_prefix() { return "levin.precision."; }
std::string precision_plugin_prefix() { return "levin.precision_plugin."; }
std::string callback_prefix(std::string_view key) { return "levin.callback." + std::string(key) + "."; }

NamedTensors below(const NamedTensors& all, std::string_view prefix) {
  NamedTensors out;
  for (const auto& [name, tensor] : all) {
    if (std::string_view(name).substr(0, prefix.size()) == prefix) out.emplace_back(name.substr(prefix.size()), tensor);
  }
  return out;
}

NamedTensors weights_of(const Trainer::Run& run) {
  if (run.borrowed.tree) return run.borrowed.tree->state_dict();
  NamedTensors out;
  for (const ParamRef& p : run.optimizers.model_parameters()) out.emplace_back(p.name, p.value->detach());
  return out;
}

std::vector<ParamRef> kept_gradients(const Trainer::Run& run, std::size_t i) {
  std::vector<ParamRef> own = run.optimizers.all[i]->model_parameters();
  for (std::size_t earlier = 0; earlier < i; ++earlier) {
    for (const ParamRef& p : run.optimizers.all[earlier]->model_parameters())
      std::erase_if(own, [&](const ParamRef& mine) { return mine.value == p.value; });
  }
  return own;
}

Tensor Checkpoint::read(const std::string& name, const Tensor& t) const {
  return folder && t.device().is_meta() ? folder->read(folder->entry(name)) : t;
}
Tensor Checkpoint::read_piece(const std::string& name, const Tensor& t, Strategy& strategy, const Tensor& of) const {
  if (!folder || !t.device().is_meta() || t.shape() != of.shape()) return strategy.piece(read(name, t), of);
  const auto [begin, end] = strategy.piece_range(of);
  return folder->read(folder->entry(name), begin, end);
}

namespace {
void check_counters(Checkpoint& checkpoint);

Checkpoint read_folder(const std::string& path, Needs needs, const RankInfo& together) {
  Checkpoint checkpoint;
  checkpoint.path = path;
  checkpoint.folder = std::make_shared<CheckpointFolder>(path);
  checkpoint.folder->verify(together.rank, together.size);
  const FolderIndex& index = checkpoint.folder->index();
  if (index.state.empty() && needs == Needs::run)
    fail<ConfigError>("resume: ", path, " holds weights alone, no state of a run; resume from a checkpoint of a run");
  if (!index.state.empty()) {
    read_state(checkpoint, index.state);
    check_counters(checkpoint);
  }
  for (const FolderIndex::Entry& e : index.tensors) {
    if (!is_ours(e.name))
      checkpoint.weights.emplace_back(e.name, checkpoint.folder->read(e));
    else if (e.in_pieces || e.rank != 0)
      checkpoint.rest.emplace_back(e.name, empty(e.shape, Device::meta(), e.dtype));
    else
      checkpoint.rest.emplace_back(e.name, checkpoint.folder->read(e));
  }
  return checkpoint;
}

Checkpoint read_all(CheckpointIO& io, const std::string& path, Needs needs, const RankInfo& together) {
  std::error_code error;
  if (fs::is_directory(path, error)) return read_folder(path, needs, together);
  TensorFile file = io.load(path);
  Checkpoint checkpoint;
  checkpoint.path = path;
  if (needs == Needs::weights && !find_entry(file, "levin.state") && !find_entry(file, "levin.hashes") &&
      std::none_of(file.tensors.begin(), file.tensors.end(), [](const auto& t) { return train::is_ours(t.first); })) {
    checkpoint.weights = std::move(file.tensors);
    return checkpoint;
  }
  read_state(checkpoint, checked_state(path, file));
  check_counters(checkpoint);
  for (auto& named : file.tensors)
    (train::is_ours(named.first) ? checkpoint.rest : checkpoint.weights).push_back(std::move(named));
  return checkpoint;
}

void check_counters(Checkpoint& checkpoint) {
  const std::string& path = checkpoint.path;
  Progress& progress = checkpoint.progress;
  Progress::each_counter(progress, [&](const char* name, std::int64_t counter, std::int64_t least, bool) {
    if (counter < least)
      fail<FormatError>("resume: ", path, ": \"", name, "\" is ", counter, ", expected ", least, " or more");
  });
  if (progress.global_step < 0)
    fail<FormatError>("resume: ", path, ": \"global_step\" is ", progress.global_step, ", expected 0 or more");
  if (checkpoint.world_size < 1)
    fail<FormatError>("resume: ", path, ": \"world_size\" is ", checkpoint.world_size, ", expected 1 or more");
  const std::vector<std::int64_t>& ahead = progress.position.ahead;
  std::int64_t in_order = 0;
  if (__builtin_add_overflow(progress.batches_done, progress.batches_absent, &in_order))
    fail<FormatError>("resume: ", path, ": \"batches_absent\" is ", progress.batches_absent,
                      ", expected fewer positions than 2^63 with the batches of the epoch");
  in_order -= static_cast<std::int64_t>(ahead.size());
  for (std::size_t i = 0; i < ahead.size(); ++i) {
    if (ahead[i] <= (i == 0 ? in_order : ahead[i - 1]) || in_order < 0)
      fail<FormatError>("resume: ", path, ": batch ", ahead[i], " was trained ahead of ", in_order,
                        " others, expected ascending numbers above that");
  }
  progress.position.epoch = progress.epoch;
  progress.position.batch = in_order;
}
}  // namespace

Checkpoint read_checkpoint(CheckpointIO& io, const std::string& path, Needs needs, const RankInfo& together) {
  return with_memory("resume", path, bytes_of_file(path), [&] { return read_all(io, path, needs, together); });
}
Checkpoint read_checkpoint(const std::string& path, Needs needs) {
  CheckpointIO plain;
  return read_checkpoint(plain, path, needs);
}

bool is_whole_checkpoint(CheckpointIO& io, const std::string& path) noexcept {
  try {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      const CheckpointFolder folder(path);
      folder.verify();
      return !folder.index().state.empty();
    }
    const TensorFile file = io.load(path);
    const std::string* state = find_entry(file, "levin.state");
    const std::string* hashes = find_entry(file, "levin.hashes");
    return state && hashes && find_damage(path, file, *state, *hashes).empty();
  } catch (...) { return false; }
}

}  // namespace train

namespace {
CheckpointInfo describe_folder(const std::string& path) {
  const train::CheckpointFolder folder(path);
  CheckpointInfo info;
  info.weights_only = folder.index().state.empty();
  for (auto& [name, what] : folder.damage()) info.damage.push_back({std::move(name), std::move(what)});
  if (!info.weights_only) train::describe_state(info, path, folder.index().state);
  for (const train::FolderIndex::Entry& e : folder.index().tensors)
    (train::is_ours(e.name) ? info.rest : info.weights).emplace_back(e.name, folder.read(e));
  return info;
}

CheckpointInfo describe(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return describe_folder(path);
  TensorFile file = load_safetensors(path);
  CheckpointInfo info;
  const std::string* state = find_entry(file, "levin.state");
  const std::string* hashes = find_entry(file, "levin.hashes");
  info.weights_only = !state && !hashes && std::none_of(file.tensors.begin(), file.tensors.end(), [](const auto& t) {
    return train::is_ours(t.first);
  });
  if (state && hashes)
    info.damage = train::find_damage(path, file, *state, *hashes);
  else if (!info.weights_only)
    info.damage.push_back({state ? "levin.hashes" : "levin.state", "is not there"});
  if (state) train::describe_state(info, path, *state);
  for (auto& named : file.tensors) (train::is_ours(named.first) ? info.rest : info.weights).push_back(std::move(named));
  return info;
}
}  // namespace

void consolidate_checkpoint(const std::string& folder, const std::string& file) {
  const train::CheckpointFolder from(folder);
  std::error_code error;
  if (fs::is_directory(file, error))
    fail<FileError>("consolidate_checkpoint: ", file, " is a folder, expected the name of a file");
  const auto& entries = from.index().tensors;
  const std::string& state = from.index().state;
  from.verify();
  NamedTensors shapes;
  std::vector<std::pair<std::string, std::string>> hashes = {{"levin.state", content_hash(state)}};
  for (const train::FolderIndex::Entry& e : entries) {
    shapes.emplace_back(e.name, empty(e.shape, Device::meta(), e.dtype));
    if (!state.empty()) hashes.emplace_back(e.name, content_hash(e.name, from.read(e)));
  }
  Metadata metadata;
  if (!state.empty()) metadata = {{"levin.state", state}, {"levin.hashes", train::hashes_text(hashes)}};
  const detail::SafetensorsLayout layout = detail::layout_safetensors(file, shapes, metadata);
  std::size_t bytes = layout.header.size();
  for (const auto& [name, t] : shapes) bytes += static_cast<std::size_t>(t.numel()) * itemsize(t.dtype());
  Tensor now;  // whose bytes are being written
  detail::write_parts_atomically(file, {.bytes = bytes, .count = 1 + entries.size(), .part = [&](std::size_t i) {
                                          if (i == 0) return std::as_bytes(std::span<const char>(layout.header));
                                          now = from.read(entries[layout.order[i - 1]]);
                                          return detail::bytes_of(now);
                                        }});
}

CheckpointInfo read_checkpoint_info(const std::string& path) {
  return train::with_memory("read_checkpoint_info", path, bytes_of_file(path), [&] { return describe(path); });
}

}  // namespace levin
