// The corpora, file by file, in the ordinary build: bugs that a fuzzer found stay fixed, and targets work without a
// fuzzer.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "data/image.h"
#include "levin/serialize.h"
#include "tests/fuzz/chooser.h"
#include "tests/fuzz/target.h"
#include "tests/skip.h"
#include "tests/where.h"

namespace {

namespace fs = std::filesystem;
using namespace levin;

const fs::path& corpora() {
  static const fs::path folder = fs::path(test::source_dir()) / "tests" / "fuzz" / "corpus";
  return folder;
}

// Runs a target on its files, whole and cut, so that the called functions both accept and refuse.
void run_corpus(const std::string& name) {
  const auto all = fuzz::targets();
  const auto target = std::find_if(all.begin(), all.end(), [&](const auto& t) { return name == t.name; });
  REQUIRE(target != all.end());
  int taken = 0, refused = 0;
  for (const auto& entry : fs::directory_iterator(corpora() / name)) {
    const std::string path = entry.path().string();
    CAPTURE(path);
    const std::string content = read_file(path, 1 << 20);
    const fuzz::Bytes bytes(reinterpret_cast<const std::uint8_t*>(content.data()), content.size());
    for (const std::size_t size : {bytes.size(), bytes.size() / 2, std::size_t{0}}) {
      bool took = false;
      CHECK_NOTHROW(took = target->run(bytes.first(size)));
      ++(took ? taken : refused);
    }
  }
  CHECK(taken > 0);
  CHECK(refused > 0);
}

}  // namespace

TEST_CASE("fuzz: the corpus of checkpoint_file is read or refused by a typed error") { run_corpus("checkpoint_file"); }
TEST_CASE("fuzz: the corpus of checkpoint_state is read or refused by a typed error") {
  run_corpus("checkpoint_state");
}
TEST_CASE("fuzz: the corpus of cifar is read or refused by a typed error") { run_corpus("cifar"); }
TEST_CASE("fuzz: the corpus of csv is read or refused by a typed error") { run_corpus("csv"); }
TEST_CASE("fuzz: the corpus of idx is read or refused by a typed error") { run_corpus("idx"); }
TEST_CASE("fuzz: the corpus of jpeg is read or refused by a typed error") {
  if (!data::has_jpeg()) return test::skip("no libjpeg in this build");
  run_corpus("jpeg");
}
TEST_CASE("fuzz: the corpus of npy is read or refused by a typed error") { run_corpus("npy"); }
TEST_CASE("fuzz: the corpus of npz is read or refused by a typed error") { run_corpus("npz"); }
TEST_CASE("fuzz: the corpus of ops is computed or refused by typed errors") { run_corpus("ops"); }
TEST_CASE("fuzz: the corpus of options is read or refused by a typed error") { run_corpus("options"); }
TEST_CASE("fuzz: the corpus of planetoid is read or refused by a typed error") { run_corpus("planetoid"); }
TEST_CASE("fuzz: the corpus of png is read or refused by a typed error") { run_corpus("png"); }
TEST_CASE("fuzz: the corpus of safetensors is read or refused by a typed error") { run_corpus("safetensors"); }
TEST_CASE("fuzz: the corpus of store is read or refused by a typed error") { run_corpus("store"); }
TEST_CASE("fuzz: the corpus of text is read or refused by a typed error") { run_corpus("text"); }
TEST_CASE("fuzz: the corpus of tu is read or refused by a typed error") { run_corpus("tu"); }

TEST_CASE("fuzz: a byte chooses each form of a call of ops, by its place among the families") {
  const auto all = fuzz::forms();
  CHECK(all.size() <= 256);
  std::set<std::string> names;
  for (const fuzz::Form& form : all) CHECK_MESSAGE(names.insert(form.name).second, form.name);
  const auto place = [&](const char* name) {
    return std::find_if(all.begin(), all.end(), [&](const fuzz::Form& f) { return f.name == std::string(name); }) -
           all.begin();
  };
  std::ptrdiff_t before = -1;  // the last form of each family
  for (const char* last : {"unbind", "einsum", "augment::mixup and cutmix", "scaled_dot_product_attention",
                           "transposed pattern", "checkpoint"}) {
    CHECK_MESSAGE(place(last) > before, last);
    before = place(last);
  }
  CHECK(before + 1 == std::ssize(all));
}

TEST_CASE("fuzz: each target has a corpus of its name, of a few kB") {
  std::set<std::string> targets, folders;
  for (const auto& t : fuzz::targets()) targets.insert(t.name);
  for (const auto& folder : fs::directory_iterator(corpora())) {
    folders.insert(folder.path().filename().string());
    std::uintmax_t bytes = 0;
    for (const auto& file : fs::directory_iterator(folder)) bytes += file.file_size();
    CAPTURE(folder.path().string());
    CHECK(bytes < 32'000);
  }
  CHECK(targets == folders);
}

TEST_CASE("fuzz: a target passes on what is no typed error, and an InternalError") {
  CHECK(fuzz::refused([] { fail<ShapeError>("add: no"); }));
  CHECK_FALSE(fuzz::refused([] {}));
  CHECK_THROWS_AS((void)fuzz::refused([] { fail<InternalError>("add: a bug"); }), InternalError);
  CHECK_THROWS_AS((void)fuzz::refused([] { throw std::bad_alloc(); }), std::bad_alloc);
  CHECK_THROWS_AS((void)fuzz::refused([] { fuzz::expect(false, "it holds"); }), std::logic_error);
}
