#include "comm/group/cpu_group.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "comm/job/point.h"
#include "levin/stream.h"
#include "tensor/device/in_stream.h"
#include "tensor/device/runtime.h"
#include "tensor/text/number_text.h"

namespace levin::dist {

CpuGroup::CpuGroup(int rank, int size, std::shared_ptr<Engine> engine, std::uint32_t id,
                   std::shared_ptr<Rendezvous> ranks)
    : ProcessGroup(rank, size), engine_(std::move(engine)), ranks_(std::move(ranks)), id_(id) {
  collectives_ = std::make_shared<Lane>([this](const Task& task) {
    if (!ranks_) return engine_->run(task);
    Note& note = ranks_->note();
    note.enter_wait(task.number, task.entry.site);
    const struct Leave {
      Note& note;
      ~Leave() { note.leave_wait(); }
    } leave{note};
    point("collective", static_cast<std::int64_t>(task.number));
    engine_->run(task);
  });
  sends_ = std::make_shared<Lane>([this](const Task& task) { engine_->send(task); });
  receives_ = std::make_shared<Lane>([this](const Task& task) { engine_->recv(task); });
}

CpuGroup::~CpuGroup() {
  // What was issued is what other ranks wait for.
  for (const auto& lane : {sends_, receives_, collectives_}) lane->close();
}

void CpuGroup::abort(std::string_view reason) noexcept {
  // The job decides first: ranks that see the engine's connections close would report that as the cause. Ranks that
  // compare their plans wait at the store, not in the engine.
  if (ranks_ && !ranks_->alarm()->raised()) {
    try {
      ranks_->report(reason, -1);
    } catch (const std::exception&) {
      // Without a decision the engine's abort stands alone.
    }
  }
  engine_->abort(reason);
}

Work CpuGroup::issue(Call&& call) {
  const Tensor& t = call.out.defined() ? call.out : call.in;
  const Device device = t.defined() ? t.device() : Device::cpu();
  if (device.is_cuda()) {
    fail<DeviceError>(words(call.entry, call.where), ": the group's backend is ", backend(),
                      ", which moves tensors of the CPU, not ", text(device),
                      "; a group with backend \"nccl\" moves them");
  }
  if (ranks_) ranks_->alarm()->check();
  // Work that is enqueued on the host's threads reads the memory itself.
  if (device.launches()) Stream::current(device).synchronize(call.where);
  const bool message = call.op == Collective::send || call.op == Collective::recv;
  call.entry.group = id_;
  const bool continues = call.entry.op == Collective::text && (call.entry.tensors & kContinuesText) != 0;
  if (ranks_ && !message && !continues) {
    ranks_->plans()->issue(call.entry, [&] { return words(call.entry, call.where); });
  }
  if (call.out.defined() && call.op != Collective::send) call.out.get().storage->wrote("collective");
  if (size() == 1) {
    if (call.in.defined() && call.out.defined()) copy_alone(call.out, call.in);
    return {};
  }
  Task task{.op = call.op,
            .dtype = t.defined() ? t.dtype() : DType::u8,
            .reduce = call.reduce,
            .order = call.order,
            .peer = call.peer,
            .tag = call.tag,
            .count = call.count,
            .number = message ? 0 : ++issued_,
            .entry = call.entry,
            .where = call.where};
  const auto address = [](const Tensor& of) {
    return of.get().storage->data + of.offset() * static_cast<std::int64_t>(itemsize(of.dtype()));
  };
  if (call.out.defined()) task.out = address(call.out);
  if (call.in.defined()) task.in = address(call.in);
  const std::shared_ptr<Lane>& lane = call.op == Collective::send   ? sends_
                                      : call.op == Collective::recv ? receives_
                                                                    : collectives_;
  const bool waits = call.waits || call.entry.op == Collective::text;
  auto work = std::make_shared<HostWork>(std::move(task), std::move(call.out), std::move(call.in), lane);
  std::vector<std::shared_ptr<HostWork>> after;
  for (const auto& other : {collectives_, sends_, receives_}) {
    if (other != lane) other->collect(*work, after);
  }
  lane->add(work, std::move(after), waits ? RunsOn::caller : RunsOn::thread);
  return Work(work);
}

std::shared_ptr<ProcessGroup> CpuGroup::split(int color, int key) {
  const Part part = part_of(*this, color, key);
  ++splits_;
  if (part.color < 0) return nullptr;
  std::shared_ptr<Rendezvous> ranks = ranks_ ? ranks_->part(part.ranks) : nullptr;
  std::uint32_t id = id_;
  for (const int rank : part.ranks) id = id * 0x01000193u ^ static_cast<std::uint32_t>(rank + 1);
  return std::make_shared<CpuGroup>(part.rank, static_cast<int>(part.ranks.size()),
                                    engine_->part(part.ranks, splits_, part.color, ranks), id, ranks);
}

void copy_alone(const Tensor& out, const Tensor& in) {
  const std::size_t bytes = static_cast<std::size_t>(in.numel()) * itemsize(in.dtype());
  if (bytes == 0 || out.device().is_meta()) return;
  std::byte *const to = levin::detail::address_in_stream(out), *const from = levin::detail::address_in_stream(in);
  if (to == from) return;
  if (out.device().launches()) {
    levin::detail::runtime::copy(to, from, bytes, levin::detail::runtime::Copy::within, Stream::current(out.device()));
  } else {
    std::memcpy(to, from, bytes);
  }
}

Part part_of(ProcessGroup& group, int color, int key) {
  if (color < -1) fail<ConfigError>("split: a color is at least 0, or -1 for no group, got ", color);
  std::string mine(2 * sizeof(int), '\0');
  std::memcpy(mine.data(), &color, sizeof color);
  std::memcpy(mine.data() + sizeof color, &key, sizeof key);
  const std::vector<std::string> all = group.gather_text(mine);
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int r = 0; r < group.size(); ++r) {
    int its_color = 0, its_key = 0;
    const std::string& words = all[static_cast<std::size_t>(r)];
    if (words.size() != mine.size()) fail<CommError>("split: rank ", r, " sent another call's bytes");
    std::memcpy(&its_color, words.data(), sizeof its_color);
    std::memcpy(&its_key, words.data() + sizeof its_color, sizeof its_key);
    if (its_color == color) members.emplace_back(its_key, r);
  }
  std::sort(members.begin(), members.end());
  Part part;
  part.color = color;
  for (const auto& [its_key, r] : members) {
    if (r == group.rank()) part.rank = static_cast<int>(part.ranks.size());
    part.ranks.push_back(r);
  }
  return part;
}

}  // namespace levin::dist
