#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "data/store/layout.h"
#include "levin/data/store.h"
#include "levin/error.h"
#include "levin/ops.h"
#include "tests/temporary.h"

using namespace levin;
using namespace levin::data;

namespace {

Tensor numbers(std::int64_t n, std::int64_t first = 0) {
  Tensor t = empty({n}, Device::cpu(), DType::i64);
  for (std::int64_t i = 0; i < n; ++i) t.mutable_data<std::int64_t>()[i] = first + i;
  return t;
}

// Runs f in a forked process. Returns what waitpid reports; 0 where f returned true.
template <class F>
int in_child(F&& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    bool good = false;
    try {
      good = f();
    } catch (...) {}
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

// A name that no other run of the tests uses, removed at the end.
struct Name {
  std::string name = "test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
  Name() = default;
  Name(const Name&) = delete;
  Name& operator=(const Name&) = delete;
  ~Name() { (void)SharedStore::remove(name); }
  [[nodiscard]] std::string path() const { return "/dev/shm/levin-" + name; }
  static inline int count = 0;
};

std::size_t open_descriptors() {
  std::size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++n;
  }
  return n;
}

// kB of this process by /proc/self/smaps_rollup: "Pss", "Private_Dirty", ...
std::int64_t kilobytes(const std::string& what) {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  std::int64_t value = 0;
  while (file >> word) {
    if (word == what + ":" && file >> value) return value;
  }
  return -1;
}

}  // namespace

TEST_CASE("a shared store gives the tensors as views of one mapping, of any shape and dtype") {
  Generator gen(1);
  const Tensor x = rand({3, 4}, gen, Device::cpu());
  const SharedStore store = SharedStore::create({x, numbers(5), transpose(x, 0, 1), empty({0, 2}, Device::cpu()),
                                                 tensor({true, false}, Device::cpu()), full({}, 2.5, Device::cpu()),
                                                 tensor({std::int8_t{-128}, std::int8_t{127}}, Device::cpu()),
                                                 tensor({std::int16_t{-32768}, std::int16_t{32767}}, Device::cpu())});
  CHECK(store.size() == 8);
  const Tensors all = store.views();
  CHECK(all[0].to_vector<float>() == x.to_vector<float>());
  CHECK(all[1].to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  CHECK(all[2].shape() == Shape{4, 3});
  CHECK(all[2].to_vector<float>() == transpose(x, 0, 1).contiguous().to_vector<float>());
  CHECK(all[3].shape() == Shape{0, 2});
  CHECK(all[4].to_vector<bool>() == std::vector<bool>{true, false});
  CHECK(all[5].item<double>() == 2.5);
  CHECK(all[6].to_vector<std::int8_t>() == std::vector<std::int8_t>{-128, 127});
  CHECK(all[7].to_vector<std::int16_t>() == std::vector<std::int16_t>{-32768, 32767});
  CHECK(store.view(0).data<float>() == all[0].data<float>());
  CHECK_NOTHROW(store.verify());
  CHECK_THROWS_AS((void)store.view(8), IndexError);
  CHECK_THROWS_AS((void)store.view(-1), IndexError);
  CHECK_THROWS_AS((void)SharedStore::create({Tensor()}), StateError);
  CHECK_THROWS_AS((void)SharedStore::create({empty({2}, Device::meta())}), UnsupportedError);
  CHECK(SharedStore::create({}).size() == 0);
}

TEST_CASE("views of a store keep the mapping, and end it") {
  Tensor view = SharedStore::create({numbers(100000)}).view(0);
  CHECK(view.data<std::int64_t>()[99999] == 99999);
  const std::size_t before = open_descriptors();
  view = {};
  CHECK(open_descriptors() == before - 1);
}

TEST_CASE("a write to a view of a store is a StateError, and a fault where nothing asks") {
  Tensor view = SharedStore::create({numbers(10)}).view(0);
  CHECK_THROWS_WITH_AS((void)view.mutable_data<std::int64_t>(), doctest::Contains("read-only view of a store"),
                       StateError);
  CHECK_THROWS_AS(fill_(view, 1), StateError);
  CHECK_THROWS_AS(copy_(view, numbers(10, 5)), StateError);
  CHECK(view.data<std::int64_t>()[3] == 3);
  Tensor copy = view.clone();
  CHECK_NOTHROW(fill_(copy, 1));
  const int status = in_child([&] {
    ::signal(SIGSEGV, SIG_DFL);
    *const_cast<std::int64_t*>(view.data<std::int64_t>()) = 7;
    return true;
  });
  // A sanitizer may turn the fault into an exit.
  CHECK((WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0));
}

TEST_CASE("ten thousand tensors in a store open one descriptor") {
  Tensors many;
  for (int i = 0; i < 10000; ++i) many.push_back(numbers(1, i));
  const std::size_t before = open_descriptors();
  const SharedStore store = SharedStore::create(many);
  const Tensors views = store.views();
  CHECK(open_descriptors() == before + 1);
  CHECK(views[9999].item<std::int64_t>() == 9999);
}

TEST_CASE("four processes over a store of 400 MB hold one copy together") {
  constexpr std::int64_t kBytes = std::int64_t{400} << 20;
  Tensor source = empty({kBytes / 8}, Device::cpu(), DType::i64);
  std::fill_n(source.mutable_data<std::int64_t>(), source.numel(), 3);
  const SharedStore store = SharedStore::create({source});
  source = {};
  std::array<int, 2> report{}, go{};
  REQUIRE(::pipe(report.data()) == 0);
  REQUIRE(::pipe(go.data()) == 0);
  struct Answer {
    std::int64_t grown, pss, right;
  };
  std::vector<pid_t> children;
  for (int rank = 0; rank < 4; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    const std::int64_t before = kilobytes("Private_Dirty") + kilobytes("Private_Clean"), pss = kilobytes("Pss");
    const Tensor view = store.view(0);
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < view.numel(); ++i) sum += view.data<std::int64_t>()[i];
    char byte = 0;
    // All have read before one measures.
    (void)!::write(report[1], "r", 1);
    (void)!::read(go[0], &byte, 1);
    const Answer answer{kilobytes("Private_Dirty") + kilobytes("Private_Clean") - before, kilobytes("Pss") - pss,
                        sum == 3 * view.numel()};
    (void)!::write(report[1], &answer, sizeof answer);
    (void)!::read(go[0], &byte, 1);
    ::_exit(0);
  }
  char byte = 0;
  for (int rank = 0; rank < 4; ++rank) REQUIRE(::read(report[0], &byte, 1) == 1);
  REQUIRE(::write(go[1], "gggg", 4) == 4);
  std::int64_t grown = 0, pss = 0;
  for (int rank = 0; rank < 4; ++rank) {
    Answer answer{};
    REQUIRE(::read(report[0], &answer, sizeof answer) == sizeof answer);
    CHECK(answer.right == 1);
    grown += answer.grown;
    pss += answer.pss;
  }
  REQUIRE(::write(go[1], "gggg", 4) == 4);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  for (const int fd : {report[0], report[1], go[0], go[1]}) ::close(fd);
  CHECK(grown < 100 << 10);  // kB
  CHECK(pss < (400 << 10) + (100 << 10));
}

TEST_CASE("a handle attaches in another process, and is inherited by a spawned program") {
  const SharedStore store = SharedStore::create({numbers(1000, 5)});
  const int handle = store.handle();
  CHECK(in_child([&] {
          const SharedStore other = SharedStore::attach(::dup(handle));
          other.verify();
          return other.view(0).data<std::int64_t>()[999] == 1004;
        }) == 0);
  // A program that is not Levin's sees the store behind the same number.
  const std::string command = "test \"$(head -c 8 <&" + std::to_string(handle) + ")\" = LVNSTORE";
  const char* const words[] = {"sh", "-c", command.c_str(), nullptr};
  pid_t child = 0;
  REQUIRE(::lseek(handle, 0, SEEK_SET) == 0);
  REQUIRE(::posix_spawn(&child, "/bin/sh", nullptr, nullptr, const_cast<char**>(words), environ) == 0);
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK_THROWS_AS((void)SharedStore::attach(-1), FileError);
  CHECK_THROWS_AS((void)SharedStore::attach(::open("/dev/null", O_RDONLY | O_CLOEXEC)), FormatError);
  CHECK_THROWS_AS((void)SharedStore::attach(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), FormatError);
}

TEST_CASE("a named store is made once, and its name goes when all processes have opened it") {
  const Name name;
  const SharedStoreOptions options{.processes = 4};
  int made = 0;
  const SharedStore store = SharedStore::open_or_create(
      name.name, [&] { return ++made, Tensors{numbers(10, 1)}; }, options);
  CHECK(made == 1);
  for (int rank = 1; rank < 4; ++rank) {
    CHECK(std::filesystem::exists(name.path()));
    CHECK(in_child([&] {
            bool again = false;
            const auto make = [&] { return again = true, Tensors{}; };
            return SharedStore::open_or_create(name.name, make, options).view(0).data<std::int64_t>()[9] == 10 &&
                   !again;
          }) == 0);
  }
  CHECK_FALSE(std::filesystem::exists(name.path()));
  CHECK(store.view(0).data<std::int64_t>()[0] == 1);
  CHECK_FALSE(SharedStore::remove(name.name));
}

TEST_CASE("processes that open a named store at once get one store") {
  const Name name;
  const test::TemporaryFolder folder;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 6; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    bool good = false;
    try {
      const SharedStore s = SharedStore::open_or_create(name.name,
                                                        [] {
                                                          std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                                          return Tensors{numbers(1, ::getpid())};
                                                        },
                                                        {.processes = 6});
      // Equal in all: the process number of the maker.
      std::ofstream(folder / "makers", std::ios::app) << s.view(0).item<std::int64_t>() << '\n';
      good = true;
    } catch (...) {}
    ::_exit(good ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  std::ifstream seen(folder / "makers");
  std::vector<std::string> makers;
  for (std::string line; std::getline(seen, line);) makers.push_back(line);
  CHECK(makers.size() == 6);
  CHECK(std::count(makers.begin(), makers.end(), makers.front()) == 6);
  CHECK_FALSE(std::filesystem::exists(name.path()));
}

TEST_CASE("a store whose maker was killed, or threw, is made anew") {
  const Name name;
  const int status = in_child([&] {
    (void)SharedStore::open_or_create(name.name, []() -> Tensors {
      ::kill(::getpid(), SIGKILL);
      return {};
    });
    return true;
  });
  CHECK(WIFSIGNALED(status));
  CHECK(std::filesystem::exists(name.path()));
  CHECK_THROWS_WITH_AS(
      (void)SharedStore::open_or_create(name.name, []() -> Tensors { fail<DataError>("no data today"); }),
      doctest::Contains("no data today"), DataError);
  const SharedStore store = SharedStore::open_or_create(name.name, [] { return Tensors{numbers(3)}; });
  CHECK(store.view(0).data<std::int64_t>()[2] == 2);
}

TEST_CASE("the wait for a maker that blocks ends by a DataError") {
  const Name name;
  std::array<int, 2> begun{};
  REQUIRE(::pipe(begun.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      (void)SharedStore::open_or_create(name.name, [&]() -> Tensors {
        (void)!::write(begun[1], "b", 1);
        for (;;) ::pause();
      });
    } catch (...) {}
    ::_exit(1);
  }
  char byte = 0;
  REQUIRE(::read(begun[0], &byte, 1) == 1);
  CHECK_THROWS_WITH_AS((void)SharedStore::open_or_create(name.name, [] { return Tensors{}; }, {.timeout = 0.05}),
                       doctest::Contains("did not complete the store within 0.05 seconds"), DataError);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  for (const int fd : begun) ::close(fd);
  CHECK(SharedStore::open_or_create(name.name, [] { return Tensors{}; }).size() == 0);
}

TEST_CASE("a damaged store, another version and wrong names are refused by name") {
  const Name name;
  (void)SharedStore::open_or_create(name.name, [] { return Tensors{numbers(100)}; });
  const auto open = [&] { return SharedStore::open_or_create(name.name, [] { return Tensors{}; }); };
  const auto change = [&](std::int64_t at, char to) {
    std::fstream file(name.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char was = static_cast<char>(file.get());
    file.seekp(at);
    file.put(to);
    return was;
  };
  char was = change(0, 'X');
  CHECK_THROWS_WITH_AS((void)open(), doctest::Contains("no store of Levin"), FormatError);
  change(0, was);
  was = change(8, 9);
  CHECK_THROWS_WITH_AS((void)open(), doctest::Contains("version 9, expected 1"), FormatError);
  change(8, was);
  was = change(12, 9);
  CHECK_THROWS_WITH_AS((void)open(), doctest::Contains("byte order"), FormatError);
  change(12, was);
  was = change(130, 9);
  CHECK_THROWS_WITH_AS((void)open(), doctest::Contains("does not have its hash"), FormatError);
  change(130, was);
  const std::int64_t last = static_cast<std::int64_t>(std::filesystem::file_size(name.path())) - 100;
  was = change(last, 9);
  const SharedStore damaged = open();
  CHECK_THROWS_WITH_AS(damaged.verify(), doctest::Contains("the store is damaged"), FormatError);
  change(last, was);
  CHECK_NOTHROW(open().verify());
  std::filesystem::resize_file(name.path(), 500);
  CHECK_THROWS_WITH_AS((void)open(), doctest::Contains("500 bytes, expected"), FormatError);
  for (const std::string& wrong : {std::string(), std::string("a/b"), std::string(201, 'x')})
    CHECK_THROWS_AS((void)SharedStore::open_or_create(wrong, [] { return Tensors{}; }), ConfigError);
  CHECK_THROWS_AS((void)SharedStore::open_or_create("x", {}), ConfigError);
  CHECK_THROWS_AS((void)SharedStore::open_or_create("x", [] { return Tensors{}; }, {.timeout = -1}), ConfigError);
}

TEST_CASE("a store's table that lies about sizes is refused") {
  const NamedTensors tensors{{"a", numbers(4)}, {"b", numbers(4)}};
  store::Layout good = store::plan(tensors, 64);
  const auto parse = [&](const store::Layout& plan) {
    std::vector<std::byte> bytes(good.bytes);
    store::write(plan, tensors, bytes.data());
    store::set_ready(bytes.data());
    return store::parse(bytes, "x").size();
  };
  CHECK(parse(good) == 2);
  const auto lie = [&](std::size_t at, auto value) {
    store::Layout bad = good;
    std::memcpy(bad.table.data() + at, &value, sizeof value);
    return bad;
  };
  CHECK_THROWS_AS((void)parse(lie(0, ~std::uint32_t{0})), FormatError);          // the name's length
  CHECK_THROWS_AS((void)parse(lie(4, std::uint8_t{kDTypeCount})), FormatError);  // dtype
  CHECK_THROWS_AS((void)parse(lie(5, std::uint8_t{9})), FormatError);            // rank
  CHECK_THROWS_AS((void)parse(lie(8, ~std::uint64_t{7})), FormatError);          // offset
  CHECK_THROWS_AS((void)parse(lie(8, std::uint64_t{3})), FormatError);           // an offset that is not aligned
  CHECK_THROWS_AS((void)parse(lie(16, std::uint64_t{8})), FormatError);          // bytes
  CHECK_THROWS_AS((void)parse(lie(56, std::int64_t{-1})), FormatError);          // a size
  std::vector<std::byte> bytes(good.bytes);
  store::write(good, tensors, bytes.data());
  CHECK_THROWS_WITH_AS((void)store::parse(bytes, "x"), doctest::Contains("not complete"), FormatError);
}

TEST_CASE("a bool in a store that is neither 0 nor 1 is found by verify, though it has its hash") {
  const Tensor flags = zeros({3}, Device::cpu(), DType::b8);
  CHECK_NOTHROW(SharedStore::create({flags}).verify());
  flags.get().storage->data[1] = std::byte{2};
  CHECK_THROWS_WITH_AS(SharedStore::create({flags}).verify(), doctest::Contains("a bool of 2"), FormatError);
}
