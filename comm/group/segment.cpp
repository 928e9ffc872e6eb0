#include "comm/group/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

#include "levin/error.h"
#include "tensor/text/number_text.h"

namespace levin::dist {
namespace {

std::string reason_of(int error) { return std::strerror(error); }

// A file descriptor, closed at the end.
struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

std::uint64_t nonce_of(const void* address) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::uint64_t x = static_cast<std::uint64_t>(now.tv_sec) * 1000000007ull + static_cast<std::uint64_t>(now.tv_nsec);
  x ^= static_cast<std::uint64_t>(getpid()) << 40 ^ reinterpret_cast<std::uintptr_t>(address);
  return x * 0x9e3779b97f4a7c15ull | 1;
}

}  // namespace

struct Segment::Head {
  std::uint64_t nonce;
  std::atomic<std::uint32_t> aborted;  // 1: the reason is being written, 2: written
  char reason[2048];
};

Segment::Head& Segment::head() const { return *reinterpret_cast<Head*>(memory_); }

Segment::Segment(Rendezvous& ranks, std::size_t bytes) : bytes_(kHead + bytes) {
  Descriptor file;
  std::string mine, error;
  const auto map = [&] {
    void* const at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    if (at == MAP_FAILED) {
      error = "mmap of " + text(bytes_) + " bytes: " + reason_of(errno);
    } else {
      memory_ = static_cast<std::byte*>(at);
    }
  };
  if (ranks.rank() == 0) {
    file.fd = memfd_create("levin", MFD_CLOEXEC);
    if (file.fd < 0) {
      error = "memfd_create: " + reason_of(errno);
    } else if (ftruncate(file.fd, static_cast<off_t>(bytes_)) != 0) {
      error = "a segment of " + text(bytes_) + " bytes: " + reason_of(errno);
    } else {
      map();
    }
    if (memory_) {
      head().nonce = nonce_of(memory_);
      mine = "/proc/" + text(getpid()) + "/fd/" + text(file.fd) + " " + text(head().nonce);
    }
  }
  try {
    const std::string from = ranks.gather("the shared memory's name", mine)[0];
    if (ranks.rank() != 0 && !from.empty()) {
      const std::string path = from.substr(0, from.find(' '));
      file.fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
      struct stat info {};
      if (file.fd < 0) {
        error = path + ": " + reason_of(errno);
      } else if (fstat(file.fd, &info) != 0 || info.st_size != static_cast<off_t>(bytes_)) {
        error = path + " is another file than rank 0's segment";
      } else {
        map();
      }
      if (memory_ && text(head().nonce) != from.substr(from.find(' ') + 1)) {
        error = path + " is another file than rank 0's segment";
      }
    }
    // All ranks have mapped the file, or all fail.
    const std::vector<std::string> errors = ranks.gather("the shared memory's mapping", error);
    for (int r = 0; r < ranks.size(); ++r) {
      if (errors[static_cast<std::size_t>(r)].empty()) continue;
      fail<CommError>("shm: rank ", ranks.world_rank(r), " on ", ranks.host(r), " cannot share memory with rank ",
                      ranks.world_rank(0), ": ", errors[static_cast<std::size_t>(r)],
                      "; processes of one host need one user and one PID namespace, or backend \"gloo:all\"");
    }
  } catch (...) {
    if (memory_) munmap(memory_, bytes_);
    throw;
  }
}

Segment::~Segment() { munmap(memory_, bytes_); }

void Segment::abort(std::string_view reason) noexcept {
  Head& h = head();
  std::uint32_t none = 0;
  if (!h.aborted.compare_exchange_strong(none, 1)) return;
  const std::size_t n = std::min(reason.size(), sizeof h.reason - 1);
  std::memcpy(h.reason, reason.data(), n);
  h.reason[n] = '\0';
  h.aborted.store(2);
}
bool Segment::aborted() const noexcept { return head().aborted.load(std::memory_order_acquire) != 0; }
std::string Segment::reason() const {
  // A rank that was killed while it wrote its reason leaves none.
  return head().aborted.load(std::memory_order_acquire) == 2 ? head().reason : "another rank aborted the group";
}

void Segment::raise(Flag& flag, std::uint32_t value) noexcept {
  flag.value.store(value, std::memory_order_seq_cst);
  wake(flag);
}
void Segment::wake(Flag& flag) noexcept {
  // A sleeper counts itself first and then looks at the value: one of the two sees the other.
  if (flag.sleepers.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, &flag.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}
void Segment::sleep(Flag& flag, std::uint32_t value, double seconds) noexcept {
  flag.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t now = flag.value.load(std::memory_order_seq_cst);
  if (static_cast<std::int32_t>(now - value) < 0) {
    const auto whole = static_cast<time_t>(seconds);
    const timespec bound{.tv_sec = whole, .tv_nsec = static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
    syscall(SYS_futex, &flag.value, FUTEX_WAIT, now, &bound, nullptr, 0);
  }
  flag.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace levin::dist
