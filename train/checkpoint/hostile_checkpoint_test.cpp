// Files that were made to do harm, and memory that runs out.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <new>

#include "levin/train/checkpoint.h"
#include "tests/allocations.h"
#include "tests/warnings.h"
#include "train/checkpoint/content.h"
#include "train/checkpoint/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

namespace fs = std::filesystem;

// One epoch of two steps; the checkpoint is in `folder`.
TrainerOptions options_in(const std::string& folder, std::int64_t epochs) {
  TrainerOptions options = silent();
  options.enable_checkpointing = true;
  options.max_epochs = epochs;
  options.callbacks = {std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder, .monitor = "train_loss", .save_top_k = 1})};
  return options;
}
std::string run(const std::string& folder, std::int64_t epochs, const std::string& from = {}) {
  Net net({.gen = Generator(1), .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 0.1});
  data::DataLoader train = loader(8, 4);
  Trainer trainer(options_in(folder, epochs));
  trainer.fit(opt, train, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); }, {.ckpt_path = from});
  std::string newest;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") newest = entry.path().string();
  }
  return newest;
}

std::string all_replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

}  // namespace

TEST_CASE("a checkpoint that names other files as its own makes no run delete them") {
  const TemporaryFolder dir;
  const Warnings quiet;
  const std::string good = run(dir / "good", 1), evil = dir / "evil.safetensors";
  fs::create_directories(dir / "ck");
  for (const char* name : {"precious.txt", "precious.safetensors"})
    write_file_atomically(dir / (std::string("ck/") + name), "x");
  const std::string newest = dir / ("ck/" + fs::path(good).filename().string());
  fs::copy_file(good, newest);
  for (const std::string& name :
       {std::string("precious.txt"), std::string("precious.safetensors"), fs::path(good).filename().string()}) {
    CAPTURE(name);
    rewrite(good, evil, [&](std::string s) {
      s = replaced(s, "\"dirpath\":\"" + (dir / "good") + "\"", "\"dirpath\":\"" + (dir / "ck") + "\"");
      s = replaced(s, "dirpath=" + (dir / "good"), "dirpath=" + (dir / "ck"));
      s = replaced(s, "\"kept_path_0\":\"" + good + "\"", "\"kept_path_0\":\"" + (dir / ("ck/" + name)) + "\"");
      const std::size_t at = s.find("\"kept_score_0\":\""), end = s.find('"', at + 16);
      return s.replace(at + 16, end - at - 16, "1e9");  // every score is better
    });
    (void)run(dir / "ck", 2, evil);
    CHECK(fs::exists(dir / ("ck/" + name)) == name.starts_with("precious"));  // a checkpoint is removed
  }
}

TEST_CASE("a state that is not what it should be is a FormatError: numbers out of range, wrong types, missing parts") {
  const TemporaryFolder dir;
  const std::string good = run(dir.path() + "/good", 1), bad = dir / "bad.safetensors";
  const std::pair<std::string, std::string> changes[] = {
      {"\"epochs_completed\":", "\"epochs_completed\":1e300,\"x\":"},
      {"\"epochs_completed\":", "\"epochs_completed\":18446744073709551615,\"x\":"},
      {"\"epochs_completed\":", "\"epochs_completed\":\"1\",\"x\":"},
      {"\"epochs_completed\":", "\"x\":"},
      {"\"due\":", "\"due\":9,\"x\":"},
      {"\"due\":", "\"due\":\"never\",\"x\":"},
      {"\"due\":", "\"due\":[],\"x\":"},
      {"\"optimizers\":[", "\"optimizers\":[1,"},
      {"\"optimizers\":[", "\"optimizers\":[[],"},
      {"\"log\":[", "\"log\":[{},"},
      {"\"log\":[", "\"log\":[1,"},
      {"\"metrics\":[", "\"metrics\":[[[],1],"},
      {"\"metrics\":[", "\"metrics\":[[\"a\"],"},
      {"\"metrics\":[", "\"metrics\":[{\"a\":1},"},
      {"\"generators\":{", "\"generators\":{\"a\":[1],"},
      {"\"callbacks\":{", "\"callbacks\":{\"a\":1,"},
      {"\"callbacks\":{", "\"callbacks\":{\"a\":{\"b\":1},"},
      {"\"callbacks\":{", "\"callbacks\":{\"a\":{\"b\":[]},"},
      {"\"version\":4", "\"version\":2"},
      {"\"version\":4", "\"version\":5"},
      {"\"version\":4", "\"version\":[]"},
      {"{", "[{"},
  };
  for (const auto& [what, by] : changes) {
    CAPTURE(by);
    rewrite(good, bad, [&](std::string s) { return replaced(std::move(s), what, by); });
    CHECK_THROWS_AS((void)train::read_checkpoint(bad), FormatError);
  }
  rewrite(good, bad, [&](std::string s) {
    return replaced(std::move(s), "\"due\":", "\"due\":\"" + std::string(1 << 20, 'a') + "\",\"x\":");
  });
  try {
    (void)train::read_checkpoint(bad);
    FAIL("expected FormatError");
  } catch (const FormatError& e) { CHECK(std::string_view(e.what()).size() < 1000); }
  std::string deep(40, '[');
  rewrite(good, bad, [&](std::string s) { return replaced(s, "{", "{\"x\":" + deep + std::string(40, ']') + ","); });
  CHECK_THROWS_WITH_AS((void)train::read_checkpoint(bad), doctest::Contains("nested deeper than 32"), FormatError);
  rewrite(good, bad, [&](std::string s) { return replaced(s, "{", "{\"x\":[{\"y\":[1,\"a\"]},null],"); });
  (void)train::read_checkpoint(bad);  // unknown names are ignored
  const CheckpointInfo info = read_checkpoint_info(bad);
  CHECK(info.damage.empty());
  CHECK(std::count(info.state.begin(), info.state.end(),
                   std::pair<std::string, std::string>("x", "[{\"y\":[1,\"a\"]},null]")) == 1);
}

TEST_CASE("a checkpoint names what is due and how a value is reduced, and one with their numbers is read as well") {
  const TemporaryFolder dir;
  const std::string good = run(dir.path() + "/good", 1), old = dir / "old.safetensors";
  const train::Checkpoint now = train::read_checkpoint(good);
  std::string state;
  rewrite(good, old, [&](std::string s) {
    state = s;
    for (int i = 0; i < 5; ++i) {
      const char* const names[] = {"nothing", "record", "validation", "plateaus", "epoch_end"};
      s = all_replaced(s, std::string("\"due\":\"") + names[i] + "\"", "\"due\":" + text(i));
    }
    for (int i = 0; i < 4; ++i) {
      const char* const names[] = {"mean", "sum", "min", "max"};
      s = all_replaced(s, std::string("\"reduce\":\"") + names[i] + "\"", "\"reduce\":" + text(i));
    }
    return all_replaced(s, "\"version\":4", "\"version\":3");
  });
  CHECK(state.find("\"due\":\"") != std::string::npos);
  CHECK(state.find("\"reduce\":\"mean\"") != std::string::npos);
  const train::Checkpoint before = train::read_checkpoint(old);
  CHECK(before.progress.due == now.progress.due);
  REQUIRE(before.log.size() == now.log.size());
  REQUIRE_FALSE(now.log.empty());
  for (std::size_t i = 0; i < now.log.size(); ++i) CHECK(before.log[i].reduce == now.log[i].reduce);
  const Warnings quiet;  // about the folder, which is not that of the file
  CHECK_NOTHROW((void)run(dir / "good", 2, old));
}

TEST_CASE("texts of a checkpoint take no more memory than four times their bytes and 16 MiB") {
  if (!counts_allocations()) return skip_allocations();
  const TemporaryFolder dir;
  const std::string good = run(dir.path() + "/good", 1), bad = dir / "bad.safetensors";
  std::string lists, keys, hashes;
  for (int i = 0; i < 1'000'000; ++i) lists += "[],";
  for (int i = 0; i < 300'000; ++i) {
    keys += "\"k" + std::to_string(i) + "\":1,";
    hashes += "\"h" + std::to_string(i) + "\":\"\",";
  }
  const auto peak_of = [&](const Function<void()>& reads) {
    const std::int64_t before = bytes_in_use();
    reset_peak_bytes();
    reads();
    return peak_bytes() - before;
  };
  const auto bound = [&] { return 4 * static_cast<std::int64_t>(fs::file_size(bad)) + (16 << 20); };
  const auto reads = [&] {
    try {
      (void)train::read_checkpoint(bad);
    } catch (const FormatError&) {}
  };
  const auto shows = [&] {
    try {
      (void)read_checkpoint_info(bad);
    } catch (const FormatError&) {}
  };
  const Function<std::string(std::string)> with[] = {
      [&](std::string s) { return replaced(s, "{", "{\"x\":[" + lists + "1],"); },
      [&](std::string s) { return replaced(s, "{", "{" + keys); },
      [&](std::string s) { return replaced(s, "\"callbacks\":{", "\"callbacks\":{\"a\":{},"); }};
  for (int i = 0; i < 3; ++i) {
    CAPTURE(i);
    rewrite(good, bad, with[i], i == 2 ? hashes : "");
    CHECK(peak_of(reads) < bound());
    CHECK(peak_of(shows) < bound());
  }
}

TEST_CASE(
    "no memory at any place of reading or writing a checkpoint is an error that is caught, and the next try works") {
  if (!counts_allocations()) return skip_allocations();
  const TemporaryFolder dir;
  const std::string good = run(dir.path() + "/good", 1);
  Net net({.gen = Generator(1), .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 0.1});
  data::DataLoader train = loader(8, 4);
  TrainerOptions options = silent();
  options.max_epochs = 1;
  Trainer trainer(options);
  trainer.fit(opt, train, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); });
  const Function<void()> all[] = {[&] { (void)train::read_checkpoint(good); },
                                  [&] { (void)read_checkpoint_info(good); },
                                  [&] { trainer.save_checkpoint(dir / "saved.safetensors"); }};
  for (const auto& call : all) {
    call();
    std::int64_t failed = 0, typed = 0;
    for (const bool later_too : {false, true}) {
      for (std::int64_t n = 1;; ++n) {
        bool threw = false;
        fail_allocations(n, later_too);
        try {
          call();
        } catch (const OutOfMemoryError&) {
          threw = true;
          ++typed;
        } catch (const std::bad_alloc&) { threw = true; }
        const bool reached = allocation_failed();
        fail_allocations(0, false);
        if (!reached) break;
        failed += threw;
      }
    }
    CHECK(failed > 100);
    CHECK(typed > failed / 3);
    call();
  }
}
