#include "comm/job/job.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <map>
#include <mutex>

#include "comm/job/point.h"
#include "comm/job/secret.h"
#include "comm/job/torch_store.h"
#include "levin/error.h"
#include "levin/warning.h"

namespace levin::dist {
namespace {

using std::string;
using std::string_view;

// How long rank 0 keeps the store of a job that was refused, for ranks that are late to hear why.
constexpr double kRefusalSeconds = 1;
constexpr double kVerdictSeconds = 0.2;  // for the verdict to leave
constexpr double kTakenPortSeconds = 5;

bool is_literally_loopback(const string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

Endpoint endpoint_of(const string& text) {
  const std::size_t colon = text.rfind(':');
  Endpoint out;
  if (colon == string::npos) return out;
  out.host = text.substr(0, colon);
  if (out.host.size() > 1 && out.host.front() == '[') out.host = out.host.substr(1, out.host.size() - 2);
  (void)std::from_chars(text.data() + colon + 1, text.data() + text.size(), out.port);
  return out;
}

}  // namespace

// A group of the job's ranks: of all, or a part.
struct Job::Group {
  std::shared_ptr<Job> job;
  string key;
  std::vector<int> ranks;                               // of the job
  int rank = 0;                                         // in the group
  std::array<std::atomic<std::uint64_t>, 3> gathers{};  // by kind: threads of one kind are in step on all ranks
  std::mutex mutex;
  std::map<std::vector<int>, std::uint64_t>
      parts;  // how often these ranks became a part, which all of them count alike
};

// Note [Plans of collectives], over the store. It does not keep the job: the watcher asks the plans, and must not be
// the one that ends the job.
class Job::EntryExchange final : public Exchange {
 public:
  EntryExchange(std::weak_ptr<Job> job, std::shared_ptr<Group> group)
      : job_(std::move(job)), group_(std::move(group)) {}
  std::vector<string> gather(string_view mine) override {
    const auto job = job_.lock();
    if (!job) fail<CommError>("process group: its job has ended, and a collective was called");
    point("plan:exchange");
    return job->gather(*group_, GatherKind::plan, plans_->passed() + 1, "a comparison of collectives", mine,
                       job->timeout_);
  }
  void serves(const Plans& plans) { plans_ = &plans; }

 private:
  std::weak_ptr<Job> job_;
  std::shared_ptr<Group> group_;
  const Plans* plans_ = nullptr;
};

class Job::Part final : public Rendezvous {
 public:
  Part(std::shared_ptr<Job> job, std::shared_ptr<Group> group, std::shared_ptr<Plans> plans)
      : job_(std::move(job)), group_(std::move(group)), plans_(std::move(plans)) {}
  [[nodiscard]] int rank() const override { return group_->rank; }
  [[nodiscard]] int size() const override { return static_cast<int>(group_->ranks.size()); }
  [[nodiscard]] int world_rank(int rank) const override { return group_->ranks[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] string host(int rank) const override {
    return job().client_->members()[static_cast<std::size_t>(world_rank(rank))].memory;
  }
  [[nodiscard]] string address() const override { return job().client_->address(); }
  [[nodiscard]] string main_address() const override { return job().client_->store_address(); }
  std::vector<string> gather(string_view what, string_view mine) override {
    return job().gather(*group_, GatherKind::plain, 0, what, mine, job().timeout_);
  }
  [[nodiscard]] std::shared_ptr<Rendezvous> part(const std::vector<int>& ranks) override;
  [[nodiscard]] const std::shared_ptr<Alarm>& alarm() const override { return job().alarm_; }
  [[nodiscard]] const std::shared_ptr<Plans>& plans() const override { return plans_; }
  [[nodiscard]] Note& note() override { return job().note_; }
  [[nodiscard]] double timeout() const override { return job().timeout_; }
  void ends() noexcept override {
    job().client_->sync_note();  // with the number of this rank's collectives
    (void)job().client_->post(Message::ends, Packer().put_text(group_->key).bytes());
  }
  void report(string_view what, int rank) override;

 private:
  [[nodiscard]] Job& job() const { return *job_; }
  std::shared_ptr<Job> job_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<Plans> plans_;
};

std::shared_ptr<Rendezvous> Job::Part::part(const std::vector<int>& ranks) {
  auto group = std::make_shared<Group>();
  const auto here = std::find(ranks.begin(), ranks.end(), group_->rank);
  if (here == ranks.end()) fail<ConfigError>("split: rank ", group_->rank, " is not in its own part of the group");
  group->rank = static_cast<int>(here - ranks.begin());
  for (const int r : ranks) {
    if (r < 0 || r >= size()) fail<ConfigError>("split: rank ", r, " is not in a group of ", size(), " ranks");
    group->ranks.push_back(world_rank(r));
  }
  // Equal on the ranks of the part, and unlike that of any other part.
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a; the store compares the ranks themselves
  for (const int r : group->ranks) hash = (hash ^ static_cast<std::uint64_t>(r)) * 1099511628211U;
  {
    const std::lock_guard lock(group_->mutex);
    group->key = group_->key + "." + text(++group_->parts[group->ranks]) + ":" + text(hash);
  }
  Packer body;
  body.put_text(group->key);
  for (const int r : group->ranks) body.put(static_cast<std::int32_t>(r));
  (void)job().client_->post(Message::group, body.bytes());
  auto plans = job().plans_of(group);
  return std::make_shared<Part>(job_, std::move(group), std::move(plans));
}

void Job::Part::report(string_view what, int rank) {
  Packer body;
  body.put(static_cast<std::int32_t>(rank < 0 ? -1 : world_rank(rank)));
  (void)job().client_->post(Message::report, string(body.bytes()).append(what));
  const Verdict verdict = job().await_verdict(1);
  if (verdict.kind == Verdict::Kind::none) {
    fail<CommError>(string(what), rank < 0 ? string() : " (" + job().name(world_rank(rank)) + ")",
                    "; the job's store gave no cause");
  }
}

Job::Job(const InitOptions& options, int rank, int size)
    : rank_(rank),
      size_(size),
      timeout_(options.timeout),
      process_(::getpid()),
      exceptions_(std::uncaught_exceptions()) {
  note_.set_phase(Phase::rendezvous);
}

std::shared_ptr<Job> Job::join(const InitOptions& options, const Place& place, Card card) {
  const auto positive = [](const char* name, double value) {
    if (!(value > 0))
      fail<ConfigError>("init_process_group: ", name, " is ", value, " seconds; give a positive number");
  };
  positive("timeout", options.timeout);
  positive("rendezvous_timeout", options.rendezvous_timeout);
  positive("silence", options.silence);
  const int world = place.world, rank = place.rank;
  if (world < 1 || rank < 0 || rank >= world) {
    fail<ConfigError>("init_process_group: the environment gives rank ", rank, " of ", world,
                      " ranks; ranks are 0 .. world size - 1");
  }
  const JobSecret secret = job_secret();
  Endpoint at = place.main;
  if (at.host.empty())
    fail<ConfigError>("init_process_group: the address of rank 0 is not known; set MASTER_ADDR on all ranks");
  if (!secret.key && !secret.refused && !is_loopback(at.host)) {
    fail<ConfigError>("init_process_group: rank 0 is at ", at.host, ", on a network, and LEVIN_JOB_SECRET is not set: ",
                      "anybody there could join the job; set it to one random text on all ranks (openssl rand -hex ",
                      "32), or to `none` on a network that you trust");
  }
  if (secret.key && !can_prove()) (void)hmac_sha256(*secret.key, "");  // throws, with the package's name
  card.rank = rank;
  card.local_rank = place.local_rank;
  card.node_rank = place.node_rank;
  card.run = place.run;
  card.restart = place.restart;

  const bool published = place.port_is_taken;
  const string key = "levin/" + card.run + "/" + text(card.restart) + "/store";
  if (!published && at.port == 0) {
    fail<ConfigError>(
        "init_process_group: the port of rank 0 is not known; set MASTER_PORT on all ranks to a free "
        "port of rank 0's machine");
  }
  std::shared_ptr<Job> job(new Job(options, rank, world));
  Job* self = job.get();  // the watcher and the points end before the job
  arm_points(rank, job->note_, [self] {
    if (self->client_) self->sync_note();
  });
  point("rendezvous");
  if (rank == 0) {
    const bool only_here = is_literally_loopback(at.host) || (!secret.key && !secret.refused);
    Fd listener = listen_at({at.host, published ? 0 : at.port}, only_here ? Reach::loopback : Reach::network,
                            std::min(kTakenPortSeconds, options.rendezvous_timeout));
    const Endpoint own = own_end(listener);
    job->store_ =
        std::make_unique<Store>(std::move(listener), Store::Options{.world = world,
                                                                    .run = card.run,
                                                                    .restart = card.restart,
                                                                    .secret = secret.key,
                                                                    .rendezvous_timeout = options.rendezvous_timeout,
                                                                    .silence = options.silence,
                                                                    .timeout = options.timeout});
    if (published) publish(at, key, address_text({at.host, own.port}), options.rendezvous_timeout);
    at = own;
  } else if (published) {
    at = endpoint_of(look_up(at, key, options.rendezvous_timeout));
  }
  job->client_ = std::make_unique<Client>(Client::Options{.at = at,
                                                          .card = std::move(card),
                                                          .secret = secret.key,
                                                          .rendezvous_timeout = options.rendezvous_timeout,
                                                          .silence = options.silence});
  job->world_ = std::make_shared<Group>();
  job->world_->key = kWorldKey;
  job->world_->rank = rank;
  for (int r = 0; r < world; ++r) job->world_->ranks.push_back(r);
  job->world_plans_ = job->plans_of(job->world_);
  job->client_->watch(job->note_, job->alarm_,
                      {.passed = [self] { return self->passed(); }, .words = [self] { return self->last_words(); }});
  return job;
}

Job::~Job() { close(); }

std::mutex Job::groups_mutex_;
std::vector<std::pair<std::weak_ptr<const ProcessGroup>, std::weak_ptr<Job>>> Job::groups_;

void Job::serves(const std::shared_ptr<ProcessGroup>& group) {
  const std::lock_guard lock(groups_mutex_);
  std::erase_if(groups_, [](const auto& entry) { return entry.first.expired(); });
  groups_.emplace_back(group, weak_from_this());
}

std::shared_ptr<Job> Job::of(const ProcessGroup& group) {
  const std::shared_ptr<const ProcessGroup> wanted = group.weak_from_this().lock();
  const std::lock_guard lock(groups_mutex_);
  for (const auto& [known, job] : groups_) {
    if (wanted && known.lock() == wanted) return job.lock();
  }
  return nullptr;
}

string Job::name(int rank) const { return client_->members()[static_cast<std::size_t>(rank)].name; }

Passed Job::passed() {
  Passed out;
  const std::lock_guard lock(mutex_);
  for (const Counted& counted : plans_) out.emplace_back(counted.group, *counted.passed);
  return out;
}

string Job::last_words() {
  std::vector<std::shared_ptr<Plans>> all;  // which may end here, outside of the lock
  {
    const std::lock_guard lock(mutex_);
    for (const Counted& counted : plans_) all.push_back(counted.plans.lock());
  }
  Plans::Last newest;
  for (const auto& plans : all) {
    if (!plans) continue;
    if (Plans::Last last = plans->last(); last.order > newest.order) newest = std::move(last);
  }
  return newest.words;
}

std::shared_ptr<Plans> Job::plans_of(const std::shared_ptr<Group>& group) {
  constexpr std::size_t kMostCounted = 256;  // so that counts of groups that have ended stay few
  auto exchange = std::make_shared<EntryExchange>(weak_from_this(), group);
  const bool alone = group->ranks.size() == 1;
  auto plans = std::make_shared<Plans>(alone ? nullptr : exchange);
  exchange->serves(*plans);
  const std::lock_guard lock(mutex_);
  if (plans_.size() >= kMostCounted) std::erase_if(plans_, [](const Counted& c) { return c.plans.expired(); });
  plans_.push_back({group->key, plans, plans->count()});
  return plans;
}

std::shared_ptr<Rendezvous> Job::rendezvous() {
  return std::make_shared<Part>(shared_from_this(), world_, world_plans_);
}

std::vector<string> Job::gather(Group& group, GatherKind kind, std::uint64_t ordinal, string_view what,
                                string_view mine, double timeout) {
  alarm_->check();
  const auto k = static_cast<std::size_t>(kind);
  const GatherCall call{.group = group.key,
                        .nth = group.gathers[k]++ * group.gathers.size() + k,
                        .kind = kind,
                        .ordinal = ordinal,
                        .what = string(what)};
  // The store finds ranks that do not come, and gives a verdict; the longer limit is for a store that does not.
  const double limit = kind == GatherKind::close ? timeout : timeout + kCloseSeconds;
  const string answer = client_->request(Message::gather, 0, packed(call, mine), limit, what);
  Unpacker in(answer);
  std::vector<string> out;
  for (std::size_t i = 0; i < group.ranks.size(); ++i) out.emplace_back(in.get_text());
  if (!in.good()) fail<CommError>(string(what), ": the store's answer is cut");
  return out;
}

void Job::set(string_view key, string_view value) {
  (void)client_->request(Message::set, 0, string(Packer().put_text(key).bytes()).append(value), timeout_,
                         "set of " + string(key));
}

string Job::get(string_view key) {
  return client_->request(Message::get, 0, Packer().put_text(key).bytes(), timeout_, "get of " + string(key));
}

void Job::failed(string_view text) noexcept {
  failed_ = true;
  client_->sync_note();  // the verdict names this rank's phase and step
  (void)client_->post(Message::failed, text);
}

Verdict Job::await_verdict(double seconds) const {
  std::mutex mutex;
  std::condition_variable changed;
  bool raised = false;
  const std::uint64_t id = alarm_->add([&] {
    const std::lock_guard lock(mutex);
    raised = true;
    changed.notify_all();
  });
  {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return raised; });
  }
  alarm_->remove(id);
  return alarm_->raised() ? alarm_->verdict() : Verdict{};
}

// Note [Life of a job]
void Job::close() noexcept {
  struct Disarm {
    const Note& note;
    ~Disarm() { disarm_points(note); }
  } const disarm{note_};
  if (!client_) {  // it did not begin
    if (store_) store_->close(kRefusalSeconds);
    return;
  }
  const bool throws = !failed_ && !agreed_to_end_ && std::uncaught_exceptions() > exceptions_;
  if (!failed_ && !throws) note_.set_phase(Phase::exit);  // a failure is of the phase before
  bool together = false;
  try {
    point("exit");
    if (throws) failed("an exception ended its use of the process group");
    if (!failed_ && !alarm_->raised()) {
      client_->sync_note();  // with the number of this rank's collectives
      (void)gather(*world_, GatherKind::close, 0, "the end of the job", "", kCloseSeconds);
      together = true;
      point("leave");
    }
  } catch (const Error& e) {
    // Nothing waits for this rank's result: it is told, and the rank ends.
    warn("W-COMM-EXIT", WarningCategory::runtime, "a process group closes without all ranks: " + string(e.message()));
  } catch (...) {}
  if (failed_ && !alarm_->raised()) (void)await_verdict(1);  // the store has heard why
  client_->expect_end();
  if (!failed_ && !alarm_->raised()) {
    try {
      (void)client_->request(Message::bye, 0, "", 1, "the farewell");
    } catch (...) {  // the store is gone, which is as good
    }
  }
  client_.reset();
  if (store_) store_->close(together ? kCloseSeconds : failed_ ? kRefusalSeconds : kVerdictSeconds);
  store_.reset();
}

}  // namespace levin::dist
