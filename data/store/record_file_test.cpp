#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "levin/data/store.h"
#include "levin/error.h"
#include "levin/serialize.h"
#include "tensor/files/file.h"
#include "tests/temporary.h"

using namespace levin;
using namespace levin::data;

namespace {

// Sample i: an image [2, 3] of i, a random number and a label; where `ragged`, the image has i % 3 rows.
class Made final : public Dataset {
 public:
  Made(std::int64_t n, bool ragged) : n_(n), ragged_(ragged) {}
  std::int64_t size() const override { return n_; }
  Sample get(std::int64_t index, Generator& rng) const override {
    ++calls;
    if (index == throws_at) fail<DataError>("no sample");
    Tensor image = empty({ragged_ ? index % 3 : 2, 3}, Device::cpu());
    for (std::int64_t i = 0; i < image.numel(); ++i) image.mutable_data<float>()[i] = static_cast<float>(index);
    Tensor drawn = empty({}, Device::cpu(), DType::f64), label = empty({}, Device::cpu(), DType::i64);
    *drawn.mutable_data<double>() = rng.uniform();
    *label.mutable_data<std::int64_t>() = index;
    return {image, drawn, label};
  }
  mutable std::atomic<int> calls = 0;
  std::int64_t throws_at = -1;

 private:
  std::int64_t n_;
  bool ragged_;
};

void check_equal(const Dataset& found, const Dataset& made) {
  REQUIRE(found.size() == made.size());
  const EpochRandom random(Generator(7), 0);
  for (std::int64_t i = 0; i < made.size(); ++i) {
    Generator a = random.sample(i), b = random.sample(i);
    const Sample x = found.get(i, a), y = made.get(i, b);
    REQUIRE(x.size() == y.size());
    CHECK(x[0].shape() == y[0].shape());
    CHECK(x[0].to_vector<float>() == y[0].to_vector<float>());
    CHECK(x[1].item<double>() == y[1].item<double>());
    CHECK(x[2].item<std::int64_t>() == i);
  }
}

void change(const std::string& path, std::int64_t at, char to) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(at);
  file.put(to);
}

}  // namespace

TEST_CASE("a dataset in memory has the samples of the first epoch, loaded once, of one shape or several") {
  for (const bool ragged : {false, true}) {
    const auto made = std::make_shared<Made>(50, ragged);
    const DatasetRef kept = in_memory(made, Generator(7));
    CHECK(made->calls == 50);
    check_equal(*kept, *made);
    check_equal(*kept, *made);
    CHECK(made->calls == 150);  // the comparison's own
    Generator gen(1);
    kept->get(4, gen)[0].requires_grad_();
    CHECK_THROWS_AS((void)kept->get(50, gen), IndexError);
  }
  CHECK(in_memory(std::make_shared<Made>(0, false))->size() == 0);
  CHECK_THROWS_AS((void)in_memory(nullptr), ConfigError);
  const auto failing = std::make_shared<Made>(5, false);
  failing->throws_at = 3;
  CHECK_THROWS_WITH_AS((void)in_memory(failing), doctest::Contains("no sample; loading sample 3"), DataError);
}

TEST_CASE("a cached dataset is computed once, and read from the file as it was") {
  const test::TemporaryFolder folder;
  for (const bool ragged : {false, true}) {
    const std::string path = folder / (ragged ? "ragged" : "even");
    const auto made = std::make_shared<Made>(9000, ragged);
    check_equal(*cached(made, path, {.transform = "made 1"}, Generator(7)), *made);
    made->calls = 0;
    const DatasetRef again = cached(made, path, {.transform = "made 1"}, Generator(7));
    CHECK(made->calls == 0);
    check_equal(*again, *made);
    Generator gen(1);
    Sample sample = again->get(8999, gen);
    CHECK_NOTHROW((void)sample[0].mutable_data<float>());  // a copy
    CHECK_THROWS_AS((void)again->get(9000, gen), IndexError);
    CHECK(again->gather(std::vector<std::int64_t>{2, 5}, EpochRandom(gen, 0))[2].to_vector<std::int64_t>() ==
          std::vector<std::int64_t>{2, 5});
  }
  CHECK(cached(std::make_shared<Made>(0, false), folder / "none", {.transform = "x"})->size() == 0);
  CHECK(RecordFile(folder / "none").size() == 0);
}

TEST_CASE("a cache is written again when its transform, seed, sources or number of samples change") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "cache", source = folder / "source";
  std::ofstream(source) << "one";
  const auto calls = [&](std::int64_t n, const CacheKey& key, std::uint64_t seed = 0) {
    const auto made = std::make_shared<Made>(n, false);
    (void)cached(made, path, key, Generator(seed));
    return made->calls.load();
  };
  CacheKey key{.transform = "a", .sources = {source}};
  CHECK(calls(4, key) == 4);
  CHECK(calls(4, key) == 0);
  CHECK(calls(5, key) == 5);
  CHECK(calls(5, key, 3) == 5);
  CHECK(calls(5, key, 3) == 0);
  key.transform = "b";
  CHECK(calls(5, key, 3) == 5);
  std::ofstream(source) << "three";
  CHECK(calls(5, key, 3) == 5);
  std::filesystem::last_write_time(source, std::filesystem::last_write_time(source) + std::chrono::seconds(5));
  CHECK(calls(5, key, 3) == 5);
  CHECK(calls(5, key, 3) == 0);
  CHECK_THROWS_AS((void)cached(nullptr, path, key), ConfigError);
  CHECK_THROWS_AS((void)calls(5, {.transform = ""}), ConfigError);
  CHECK_THROWS_AS((void)calls(5, {.transform = "a", .sources = {folder / "absent"}}), FileError);
}

TEST_CASE("a killed or failing writer of records leaves no file that is read, and writers at once leave one") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "records";
  const pid_t killed = ::fork();
  if (killed == 0) {
    class Deadly final : public Dataset {
     public:
      std::int64_t size() const override { return 10; }
      Sample get(std::int64_t index, Generator&) const override {
        if (index == 5) ::kill(::getpid(), SIGKILL);
        return {empty({300000}, Device::cpu())};
      }
    };
    write_records(path, Deadly(), "k");
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(killed, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK_FALSE(std::filesystem::exists(path));
  Made failing(10, false);
  failing.throws_at = 7;
  CHECK_THROWS_AS(write_records(path, failing, "k"), DataError);
  CHECK_FALSE(std::filesystem::exists(path));
  std::vector<pid_t> writers;
  for (int w = 0; w < 4; ++w) {
    writers.push_back(::fork());
    if (writers.back() != 0) continue;
    bool good = false;
    try {
      good = cached(std::make_shared<Made>(2000, false), path, {.transform = "t"})->size() == 2000;
    } catch (...) {}
    ::_exit(good ? 0 : 1);
  }
  for (const pid_t w : writers) {
    ::waitpid(w, &status, 0);
    CHECK(status == 0);
  }
  CHECK(RecordFile(path).size() == 2000);
  // The killed writer's file is gone, too.
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  CHECK_THROWS_AS(write_records(folder / "absent/records", Made(1, false), "k"), FileError);
}

TEST_CASE("a writer of records passes by the temporary files of another container's process of its number") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "records", next = levin::detail::temporary_name(path), taken = folder / "taken";
  const int other = ::open(taken.c_str(), O_RDWR | O_CREAT, 0600);
  REQUIRE(::flock(other, LOCK_EX | LOCK_NB) == 0);  // its writer lives
  const std::size_t digits = next.rfind('-') + 1;
  const int n = std::stoi(next.substr(digits));
  for (int i = n + 1; i < n + 4; ++i)
    REQUIRE(::link(taken.c_str(), (next.substr(0, digits) + std::to_string(i)).c_str()) == 0);
  write_records(path, Made(3, false), "k");
  CHECK(RecordFile(path).size() == 3);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 5);
  ::close(other);
}

TEST_CASE("a writer of records that cannot write its header leaves no temporary file") {
  const test::TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64, 64};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 1;
    try {
      write_records(folder / "records", Made(3, false), "k");
    } catch (const FileError&) { code = 0; } catch (...) {
    }
    ::_exit(code);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("damage to a record file is a FormatError, at the latest where its chunk is used") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "records";
  write_records(path, Made(100, false), "the key");
  CHECK(RecordFile(path).key() == "the key");
  CHECK_THROWS_AS((void)RecordFile(path).sample(0)[0].mutable_data<float>(), StateError);
  CHECK_THROWS_AS((void)RecordFile(path).sample(100), IndexError);
  const std::string good = read_file(path, 1 << 20);
  int refused = 0;
  for (std::size_t at = 0; at < good.size(); at += at < 300 ? 1 : 37) {
    change(path, static_cast<std::int64_t>(at), static_cast<char>(good[at] ^ 0x11));
    try {
      const RecordFile file(path);
      const Sample sample = file.sample(99);
      (void)sample[0].to_vector<float>();
    } catch (const FormatError&) { ++refused; }
    change(path, static_cast<std::int64_t>(at), good[at]);
  }
  CHECK(refused > 100);
  // A value of the first chunk, whose bytes begin behind the header.
  change(path, 130, 1);
  const RecordFile damaged(path);
  CHECK_THROWS_WITH_AS((void)damaged.sample(3), doctest::Contains("the store is damaged"), FormatError);
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, good.size() / 2, good.size() - 1}) {
    std::filesystem::resize_file(path, size);
    CHECK_THROWS_AS(RecordFile{path}, FormatError);
  }
  CHECK_THROWS_AS(RecordFile(folder / "absent"), FileError);
  CHECK_THROWS_AS(RecordFile{folder.path()}, FormatError);
  (void)cached(std::make_shared<Made>(3, false), folder / "other", {.transform = "t"});
}
