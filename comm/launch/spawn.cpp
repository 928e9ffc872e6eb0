// The spawn launcher: ranks that are copies of the calling process.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "comm/launch/driver.h"
#include "comm/launch/environments.h"
#include "comm/launch/job_variables.h"
#include "comm/launch/supervisor.h"
#include "levin/comm/launch.h"
#include "levin/device.h"
#include "levin/error.h"
#include "tensor/device/cpus.h"

namespace levin::dist {
namespace {

// Kinds of errors by a letter, so that one can be thrown again in another process.
template <class F>
void each_error_type(F&& f) {
  const auto call = [&]<class... E>(std::type_identity<E>... types) {
    char letter = 'a';
    (f(types, letter++), ...);
  };
  call(std::type_identity<ShapeError>{}, std::type_identity<DTypeError>{}, std::type_identity<DeviceError>{},
       std::type_identity<IndexError>{}, std::type_identity<AutogradError>{}, std::type_identity<CaptureError>{},
       std::type_identity<UnsupportedError>{}, std::type_identity<OutOfMemoryError>{}, std::type_identity<CudaError>{},
       std::type_identity<FormatError>{}, std::type_identity<FileError>{}, std::type_identity<ConfigError>{},
       std::type_identity<StateError>{}, std::type_identity<DataError>{}, std::type_identity<InterruptedError>{},
       std::type_identity<InternalError>{}, std::type_identity<CommError>{});
}
constexpr char kResult = '=';

char letter_of(const Error& e) {
  char found = 'q';  // CommError's
  each_error_type([&]<class E>(std::type_identity<E>, char letter) {
    if (dynamic_cast<const E*>(&e) != nullptr) found = letter;
  });
  return found;
}

[[noreturn]] void rethrow(char letter, const std::string& text) {
  each_error_type([&]<class E>(std::type_identity<E>, char own) {
    if (own == letter) fail<E>(text);
  });
  fail<CommError>(text);
}

// What a child leaves: a letter and bytes, in memory that the parent reads after the child's end.
class Mailbox {
 public:
  Mailbox() : file_(above_stderr(::memfd_create("levin-spawn", MFD_CLOEXEC), "no memory for a result")) {}
  bool put(char letter, std::string_view bytes) noexcept {
    return write_all(file_.get(), {&letter, 1}) && write_all(file_.get(), bytes);
  }
  [[nodiscard]] std::string take() const {
    struct stat what {};
    if (::fstat(file_.get(), &what) != 0) return "";
    std::string out(static_cast<std::size_t>(what.st_size), '\0');
    std::size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = ::pread(file_.get(), out.data() + done, out.size() - done, static_cast<off_t>(done));
      if (n <= 0 && !(n < 0 && errno == EINTR)) return "";
      if (n > 0) done += static_cast<std::size_t>(n);
    }
    return out;
  }

 private:
  Fd file_;
};

// In the child. The result is its exit code.
int run_body(const Function<std::string(int)>& body, int rank, Mailbox& mail) {
  char letter = kResult;
  std::string bytes;
  int code = 0;
  try {
    bytes = body(rank);
  } catch (const Error& e) {
    letter = letter_of(e);
    bytes = e.what();
    code = dynamic_cast<const CommError*>(&e) != nullptr ? kSurvivorCode : 1;
  } catch (const std::exception& e) {
    letter = 'q';
    bytes = e.what();
    code = 1;
  } catch (...) {
    letter = 'q';
    bytes = "an exception that is no std::exception";
    code = 1;
  }
  std::fflush(nullptr);
  return mail.put(letter, bytes) ? code : 1;
}

}  // namespace

bool driver_is_open(const char* descriptors) {
  DIR* const folder = ::opendir(descriptors);
  if (folder == nullptr) return false;
  bool found = false;
  while (const dirent* entry = ::readdir(folder)) {
    std::array<char, 256> target{};
    const std::string path = std::string(descriptors) + "/" + entry->d_name;
    if (::readlink(path.c_str(), target.data(), target.size() - 1) <= 0) continue;
    const std::string_view name = target.data();
    found = found || name.starts_with("/dev/nvidia") || name == "/dev/dxg";  // dxg: WSL
  }
  ::closedir(folder);
  return found;
}

std::vector<std::string> spawn(int processes, const Function<std::string(int)>& body, const SpawnOptions& o) {
  if (processes < 1 || processes > 4096 || !(o.grace >= 0)) {
    fail<ConfigError>("spawn: processes is ", processes, " (expected 1 to 4096), grace ", o.grace, " (0 or more)");
  }
  if (!body) fail<ConfigError>("spawn: the function is empty");
  if (driver_is_open("/proc/self/fd")) {
    fail<StateError>(
        "spawn: this process has opened the CUDA driver, which does not survive a fork; call spawn before "
        "the first use of a GPU, or use launch_script (strategy ddp)");
  }
  const HeldPort port;
  JobShape job{.launcher = "spawn", .processes = processes, .port = port.port()};
  name_job(job);
  const VariableList variables = job_variables(job);
  Supervisor ranks("levin", Output::To::screen, o.grace);
  const std::string hold = ranks.hold_variable();
  std::vector<Mailbox> mail(static_cast<std::size_t>(processes));
  std::fflush(nullptr);  // or each child would print it again
  for (int rank = 0; rank < processes; ++rank) {
    const auto inside = [&] {
      set_variables(variables);
      set_variables(rank_variables(job, rank));
      const std::size_t equals = hold.find('=');
      set_variables({{hold.substr(0, equals), hold.substr(equals + 1)}});
      if (const int threads = detail::threads_by_environment(); threads > 0) set_num_threads(threads);
      return run_body(body, rank, mail[static_cast<std::size_t>(rank)]);
    };
    ranks.fork_rank(rank, rank == 0 ? Supervisor::Streams::inherited : Supervisor::Streams::prefixed, inside);
  }
  ranks.output().start();
  ranks.run();
  std::vector<std::string> results(mail.size());
  if (const auto first = ranks.failure()) {
    const std::string left = mail[static_cast<std::size_t>(first->rank)].take();
    if (!left.empty() && left[0] != kResult && first->signal == 0)
      rethrow(left[0], "rank " + std::to_string(first->rank) + ": " + left.substr(1));
    fail<CommError>("spawn: ", text(*first), processes > 1 ? "; the other ranks were ended" : "");
  }
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    std::string left = mail[rank].take();
    if (left.empty() || left[0] != kResult) {
      fail<CommError>("spawn: rank ", static_cast<int>(rank), " ended without a result; a body must return, not exit");
    }
    results[rank] = left.erase(0, 1);
  }
  return results;
}

}  // namespace levin::dist
