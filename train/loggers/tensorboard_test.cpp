#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "levin/data.h"
#include "levin/ops.h"
#include "levin/train/loggers.h"
#include "tests/skip.h"
#include "tests/temporary.h"
#include "tests/warnings.h"

using namespace levin;
using namespace levin::test;

// A reader that shares no code with the writer: the CRC bit by bit, messages as maps of fields.
namespace {

std::uint32_t crc32c_by_bits(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int k = 0; k < 8; ++k) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
  }
  return crc ^ 0xffffffffu;
}
std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c_by_bits(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <class T>
T raw(std::string_view bytes, std::size_t at = 0) {
  T value{};
  REQUIRE(at + sizeof(T) <= bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// The values of every field in order: varints as eight bytes, others unchanged.
struct Proto {
  std::map<int, std::vector<std::string>> fields;
  explicit Proto(std::string_view text) {
    std::size_t at = 0;
    const auto varint = [&] {
      std::uint64_t x = 0;
      for (int shift = 0;; shift += 7) {
        REQUIRE(at < text.size());
        const auto byte = static_cast<unsigned char>(text[at++]);
        x |= static_cast<std::uint64_t>(byte & 127) << shift;
        if (byte < 128) return x;
      }
    };
    while (at < text.size()) {
      const std::uint64_t key = varint();
      const std::uint64_t kind = key & 7;
      std::string value;
      if (kind == 0) {
        const std::uint64_t x = varint();
        value.assign(reinterpret_cast<const char*>(&x), sizeof x);
      } else {
        REQUIRE((kind == 1 || kind == 2 || kind == 5));
        const std::uint64_t size = kind == 1 ? 8 : kind == 5 ? 4 : varint();
        REQUIRE(size <= text.size() - at);
        value = text.substr(at, size);
        at += size;
      }
      fields[static_cast<int>(key >> 3)].push_back(value);
    }
  }
  [[nodiscard]] bool has(int field) const { return fields.contains(field); }
  [[nodiscard]] const std::string& bytes(int field) const { return fields.at(field).at(0); }
  [[nodiscard]] std::int64_t integer(int field) const { return raw<std::int64_t>(bytes(field)); }
  [[nodiscard]] double f64(int field) const { return raw<double>(bytes(field)); }
  [[nodiscard]] Proto in(int field) const { return Proto(bytes(field)); }
  [[nodiscard]] std::vector<double> packed(int field) const {
    std::vector<double> out;
    for (std::size_t at = 0; at < bytes(field).size(); at += 8) out.push_back(raw<double>(bytes(field), at));
    return out;
  }
};

std::vector<Proto> events_of(const std::string& path) {
  const std::string text = read_file(path, std::size_t{1} << 24);
  std::vector<Proto> out;
  for (std::size_t at = 0; at < text.size();) {
    const auto size = raw<std::uint64_t>(text, at);
    REQUIRE(size <= text.size() - at - 16);
    REQUIRE(raw<std::uint32_t>(text, at + 8) == masked_crc(std::string_view(text).substr(at, 8)));
    const std::string_view event = std::string_view(text).substr(at + 12, size);
    REQUIRE(raw<std::uint32_t>(text, at + 12 + size) == masked_crc(event));
    out.emplace_back(event);
    at += 16 + size;
  }
  return out;
}

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

struct ReadScalar {
  std::int64_t step;
  std::string tag;
  float value;
  bool operator==(const ReadScalar&) const = default;
};
std::vector<ReadScalar> scalars_of(const std::vector<Proto>& events) {
  std::vector<ReadScalar> out;
  for (const Proto& event : events) {
    if (!event.has(5)) continue;
    const Proto summary = event.in(5);
    for (const std::string& text : summary.fields.at(1)) {
      const Proto value(text);
      if (value.has(2)) out.push_back({event.integer(2), value.bytes(1), raw<float>(value.bytes(2))});
    }
  }
  return out;
}
// The value of a summary with this tag.
Proto value_of(const std::vector<Proto>& events, const std::string& tag) {
  for (const Proto& event : events) {
    if (!event.has(5)) continue;
    const Proto summary = event.in(5);
    for (const std::string& text : summary.fields.at(1)) {
      if (Proto(text).bytes(1) == tag) return Proto(text);
    }
  }
  FAIL("no value " << tag);
  return Proto("");
}

TensorBoardLoggerOptions in(const TemporaryFolder& folder, double flush_seconds = 10) {
  return {.save_dir = folder.path(), .name = "", .version = "", .flush_seconds = flush_seconds};
}

std::vector<Proto> written(const TemporaryFolder& folder) {
  const std::vector<std::string> files = event_files(folder.path());
  REQUIRE(files.size() == 1);
  return events_of(files.front());
}

}  // namespace

TEST_CASE("the reader of these tests knows the CRC-32C of RFC 3720") {
  CHECK(crc32c_by_bits(std::string(32, '\0')) == 0x8a9136aau);
  CHECK(crc32c_by_bits(std::string(32, '\xff')) == 0x62a8ab43u);
  CHECK(crc32c_by_bits("123456789") == 0xe3069283u);
}

TEST_CASE("TensorBoard scalars read back with their steps, epochs and right CRCs") {
  const TemporaryFolder folder;
  TensorBoardLogger board(in(folder));
  board.start(0, 0);
  std::vector<ReadScalar> expected;
  for (std::int64_t step = 49; step < 2000; step += 50) {
    const double loss = 1 / static_cast<double>(step);
    board.log_metrics({.step = step, .epoch = step / 300, .values = {{"loss", loss}, {"val/acc", NAN}}});
    expected.push_back({step, "loss", static_cast<float>(loss)});
    expected.push_back({step, "epoch", static_cast<float>(step / 300)});
  }
  board.log_metrics({.step = std::int64_t{1} << 40, .epoch = 0, .values = {}});
  expected.push_back({std::int64_t{1} << 40, "epoch", 0});
  board.finalize("success");
  const std::vector<Proto> events = written(folder);
  CHECK(events.front().bytes(3) == "brain.Event:2");
  CHECK(events.front().f64(1) > 1.7e9);  // seconds since 1970
  std::vector<ReadScalar> scalars = scalars_of(events);
  const auto nan = [](const ReadScalar& s) { return s.tag == "val/acc" && std::isnan(s.value); };
  CHECK(std::count_if(scalars.begin(), scalars.end(), nan) == 40);
  std::erase_if(scalars, nan);
  CHECK(scalars == expected);
}

TEST_CASE("a run that resumes has its own event file, which begins with the start of a session at its step") {
  const TemporaryFolder folder;
  for (const std::int64_t from : {0, 20}) {
    TensorBoardLogger board(in(folder));
    board.start(from, 0);
    board.log_metrics({.step = from + 5, .epoch = 0, .values = {{"x", 1}}});
  }  // the destructor saves
  const std::vector<std::string> files = event_files(folder.path());
  REQUIRE(files.size() == 2);
  const std::vector<Proto> first = events_of(files[0]), second = events_of(files[1]);
  CHECK(std::none_of(first.begin(), first.end(), [](const Proto& e) { return e.has(7); }));
  REQUIRE(second.size() == 3);
  CHECK(second[1].integer(2) == 20);
  CHECK(second[1].in(7).integer(1) == 1);  // SessionLog.START
}

TEST_CASE("an evaluation makes an event file that forgets nothing of the run's") {
  const TemporaryFolder folder;
  {
    TensorBoardLogger board(in(folder));
    board.start_evaluation(20, 3);
    board.log_metrics({.step = 25, .epoch = 0, .values = {{"x", 1}}});
  }
  const std::vector<std::string> files = event_files(folder.path());
  REQUIRE(files.size() == 1);
  const std::vector<Proto> events = events_of(files[0]);
  CHECK(events.size() == 2);
  CHECK(std::none_of(events.begin(), events.end(), [](const Proto& e) { return e.has(7); }));
}

TEST_CASE("texts, histograms and pictures have TensorBoard's form") {
  const TemporaryFolder folder;
  TensorBoardLogger board(in(folder));
  board.log_text("notes", "*hello*", 3);
  std::vector<float> values;
  for (int i = 0; i <= 640; ++i) values.push_back(static_cast<float>(i) / 10 - 32);  // [-32, 32], one bin for each unit
  values.push_back(NAN);
  values.push_back(INFINITY);
  board.log_histogram("weights", from_data(values, Shape{static_cast<std::int64_t>(values.size())}, Device::cpu()), 3);
  board.log_histogram("constant", full({4}, 2.5, Device::cpu(), DType::f16), 3);
  board.log_histogram("none", empty({0}, Device::cpu()), 3);
  const Tensor grey = full({5, 7}, 200, Device::cpu(), DType::u8);
  board.log_image("grey", grey, 3);
  board.log_image("rgb", full({5, 7, 3}, 100, Device::cpu(), DType::u8), 3);
  CHECK_THROWS_AS(board.log_image("flat", full({5}, 1, Device::cpu(), DType::u8), 3), ShapeError);
  CHECK_THROWS_AS(board.log_image("float", full({5, 7}, 1, Device::cpu()), 3), DTypeError);
  board.save();
  const std::vector<Proto> events = written(folder);

  const Proto text = value_of(events, "notes");
  CHECK(text.in(9).in(1).bytes(1) == "text");
  CHECK(text.in(8).integer(1) == 7);  // DT_STRING
  CHECK(text.in(8).bytes(8) == "*hello*");

  const Proto weights = value_of(events, "weights").in(5);
  CHECK(weights.f64(1) == -32);
  CHECK(weights.f64(2) == 32);
  CHECK(weights.f64(3) == 641);
  CHECK(std::abs(weights.f64(4)) < 1e-4);
  CHECK(weights.packed(6).size() == 64);
  CHECK(weights.packed(6).front() == -31);
  CHECK(weights.packed(6).back() == 32);
  const std::vector<double> counts = weights.packed(7);
  REQUIRE(counts.size() == 64);
  CHECK(std::all_of(counts.begin(), counts.end() - 1, [](double n) { return n == 10; }));
  CHECK(counts.back() == 11);  // includes the greatest
  CHECK(value_of(events, "constant").in(5).packed(7) == std::vector<double>{4});
  CHECK(value_of(events, "constant").in(5).packed(6) == std::vector<double>{2.5});
  CHECK(value_of(events, "none").in(5).f64(3) == 0);

  const Proto picture = value_of(events, "grey").in(4);
  CHECK(picture.integer(1) == 5);
  CHECK(picture.integer(2) == 7);
  CHECK(picture.integer(3) == 1);
  write_file_atomically(folder / "grey.png", picture.bytes(4));
  CHECK(data::load_png(folder / "grey.png").to_vector<std::uint8_t>() == grey.to_vector<std::uint8_t>());
  CHECK(value_of(events, "rgb").in(4).integer(3) == 3);
}

TEST_CASE("hyper-parameters keep their kind, and the session's end has the run's status") {
  const TemporaryFolder folder;
  TensorBoardLogger board(in(folder));
  board.log_hparams({{"lr", "1e-3"}, {"amp", "true"}, {"optimizer", "adam"}});
  board.finalize("failed");
  const std::vector<Proto> events = written(folder);
  const auto content = [&](const char* tag) {
    const Proto plugin = value_of(events, tag).in(9).in(1);
    CHECK(plugin.bytes(1) == "hparams");
    return plugin.in(2);
  };
  const Proto start = content("_hparams_/session_start_info").in(3);
  std::map<std::string, Proto> values;
  for (const std::string& entry : start.fields.at(1)) values.emplace(Proto(entry).bytes(1), Proto(entry).in(2));
  CHECK(values.at("lr").f64(2) == 1e-3);
  CHECK(values.at("amp").integer(4) == 1);
  CHECK(values.at("optimizer").bytes(3) == "adam");
  CHECK(content("_hparams_/session_end_info").in(4).integer(1) == 2);  // failure
}

TEST_CASE("events come to the file when flush_seconds have passed, and on save") {
  const TemporaryFolder folder;
  TensorBoardLogger lazy(in(folder, 1e9));
  lazy.log_metrics({.step = 0, .epoch = 0, .values = {{"x", 1}}});
  CHECK(event_files(folder.path()).empty());
  lazy.save();
  CHECK(scalars_of(written(folder)).size() == 2);
  lazy.log_metrics({.step = 1, .epoch = 0, .values = {{"x", 1}}});
  CHECK(scalars_of(written(folder)).size() == 2);
  const TemporaryFolder other;
  TensorBoardLogger eager(in(other, 0));
  eager.log_metrics({.step = 0, .epoch = 0, .values = {{"x", 1}}});
  CHECK(scalars_of(written(other)).size() == 2);
  CHECK_THROWS_AS(TensorBoardLogger({.flush_seconds = -1}), ConfigError);
}

TEST_CASE("a disk that refuses event files costs at most 16 MB and two warnings") {
  const TemporaryFolder folder;
  Warnings warnings;
  TensorBoardLogger board(in(folder));
  board.start(0, 0);
  std::filesystem::remove_all(folder.path());
  const std::string text(std::size_t{1} << 20, 'x');
  for (int i = 0; i < 20; ++i) board.log_text("t", text, i);
  CHECK(warnings.ids() == std::vector<std::string>{"W-LOGGER-FILE"});
  SUBCASE("back in the end") {
    std::filesystem::create_directory(folder.path());
    board.finalize("success");
    CHECK(warnings.ids() == std::vector<std::string>{"W-LOGGER-FILE", "W-LOGGER-LOST"});
    const std::vector<Proto> events = written(folder);
    CHECK(events.size() == 15);  // whole ones, of a little more than 1 MB
    CHECK(events.back().integer(2) == 19);
  }
  SUBCASE("gone to the end") {
    board.finalize("success");
    CHECK(warnings.all().back().text.find("21 records") != std::string::npos);  // one of them is the file's header
    board.finalize("success");
    CHECK(warnings.ids().size() == 2);
  }
}

TEST_CASE("TensorBoard itself reads the event files, and forgets what was trained again") {
  const auto python = [](const std::string& command) -> std::optional<std::string> {
    for (const char* interpreter : {"/opt/torch-venv/bin/python3", "python3"}) {
      if (std::system((std::string(interpreter) + " -c 'import tensorboard' 2>/dev/null").c_str()) != 0) continue;
      std::FILE* pipe = ::popen((interpreter + (" -W ignore -c '" + command + "' 2>/dev/null")).c_str(), "r");
      REQUIRE(pipe);
      std::string out;
      for (int c = 0; (c = std::fgetc(pipe)) != EOF;) out += static_cast<char>(c);
      ::pclose(pipe);
      return out;
    }
    return {};
  };
  const TemporaryFolder folder;
  for (const std::int64_t from : {0, 2}) {
    TensorBoardLogger board(in(folder));
    board.start(from, 0);
    for (std::int64_t step = from; step < 4; ++step)
      board.log_metrics({.step = step, .epoch = 0, .values = {{"loss", static_cast<double>(10 * from + step)}}});
    if (from == 0) {
      board.log_text("notes", "hello", 1);
      board.log_histogram("h", tensor({1.f, 2.f, 3.f, 4.f}, Device::cpu()), 1);
      board.log_image("i", full({5, 7}, 200, Device::cpu(), DType::u8), 1);
      board.log_hparams({{"lr", "0.5"}});
    }
    board.finalize("success");
  }
  const auto out = python(
      "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
      "from tensorboard.plugins.hparams import plugin_data_pb2\n"
      "a = EventAccumulator(\"" +
      folder.path() +
      "\"); a.Reload()\n"
      "print([(e.step, e.value) for e in a.Scalars(\"loss\")])\n"
      "print(a.Tensors(\"notes\")[0].tensor_proto.string_val[0].decode())\n"
      "h = a.Histograms(\"h\")[0].histogram_value; print(h.min, h.max, h.num, h.sum, sum(h.bucket))\n"
      "i = a.Images(\"i\")[0]; print(i.width, i.height, i.encoded_image_string[1:4].decode())\n"
      "d = plugin_data_pb2.HParamsPluginData.FromString(\n"
      "    a.SummaryMetadata(\"_hparams_/session_start_info\").plugin_data.content)\n"
      "print(d.session_start_info.hparams[\"lr\"].number_value)\n");
  if (!out) return levin::test::skip("no Python has tensorboard");
  CHECK(*out == "[(0, 0.0), (1, 1.0), (2, 22.0), (3, 23.0)]\nhello\n1.0 4.0 4.0 10.0 4.0\n7 5 PNG\n0.5\n");
}
