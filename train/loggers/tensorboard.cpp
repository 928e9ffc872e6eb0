// Note [Event files]
// A file of records as TensorFlow frames them: length (u64), masked CRC-32C of the length, the bytes, masked CRC-32C of
// the bytes. The bytes are an Event message in protobuf's wire format: a field is a key (number << 3 | kind) and a
// varint, or eight or four bytes, or a length and content. Numbers of fields are those of tensorflow's event.proto,
// summary.proto, tensor.proto and of tensorboard's hparams/plugin_data.proto.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "levin/data.h"
#include "levin/train/loggers.h"
#include "tensor/files/file.h"
#include "train/loggers/folder.h"

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kFlushBytes = std::size_t{1} << 20;
constexpr std::size_t kMostWaitingBytes = std::size_t{16} << 20;  // of records in memory while the disk refuses them

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// ---- Framing
// Castagnoli's polynomial, reflected.
std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 255];
  return ~crc;
}
// Masked, so that a CRC of bytes that contain CRCs is not trivial.
std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

template <class T>
void append_raw(std::string& to, T value) {
  static_assert(std::endian::native == std::endian::little, "event files are little-endian");
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  to.append(bytes, sizeof(T));
}

constexpr std::size_t kFraming = 8 + 4 + 4;
std::string framed(const std::string& event) {
  std::string out;
  append_raw(out, static_cast<std::uint64_t>(event.size()));
  append_raw(out, masked(crc32c(out)));
  out += event;
  append_raw(out, masked(crc32c(event)));
  return out;
}

// ---- Protobuf
class Message {
 public:
  Message& integer(int field, std::int64_t value) {
    key(field, 0);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& f64(int field, double value) {
    key(field, 1);
    append_raw(bytes_, value);
    return *this;
  }
  Message& f32(int field, float value) {
    key(field, 5);
    append_raw(bytes_, value);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.bytes_); }
  Message& packed(int field, std::span<const double> values) {
    std::string raw;
    for (const double x : values) append_raw(raw, x);
    return bytes(field, raw);
  }
  [[nodiscard]] const std::string& text() const { return bytes_; }

 private:
  void key(int field, int kind) { varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(kind)); }
  void varint(std::uint64_t x) {
    for (; x >= 128; x >>= 7) bytes_ += static_cast<char>(x | 128);
    bytes_ += static_cast<char>(x);
  }
  std::string bytes_;
};

Message event(std::int64_t step) { return std::move(Message().f64(1, unix_time()).integer(2, step)); }
Message plugin(std::string_view name, std::string_view content = {}) {
  return std::move(Message().message(1, Message().bytes(1, name).bytes(2, content)));
}

// A value as the hparams plugin reads it: google.protobuf.Value.
Message hparam(const std::string& text) {
  if (const auto number = train::plain_number(text)) return std::move(Message().f64(2, *number));
  if (text == "true" || text == "false") return std::move(Message().integer(4, text == "true"));
  return std::move(Message().bytes(3, text));
}

constexpr std::size_t kBins = 64;

// HistogramProto of the finite elements of `values`.
Message histogram(const std::vector<double>& values) {
  double least = std::numeric_limits<double>::infinity(), greatest = -least, sum = 0, squares = 0, count = 0;
  for (const double x : values) {
    if (!std::isfinite(x)) continue;
    least = std::min(least, x);
    greatest = std::max(greatest, x);
    sum += x;
    squares += x * x;
    ++count;
  }
  if (count == 0) least = greatest = 0;
  const double width = greatest / kBins - least / kBins;  // no overflow for the widest range
  const std::size_t bins = width > 0 ? kBins : 1;
  std::array<double, kBins> limits{}, counts{};
  for (std::size_t i = 0; i < bins; ++i) limits[i] = least + width * static_cast<double>(i + 1);
  limits[bins - 1] = greatest;
  for (const double x : values) {
    if (!std::isfinite(x)) continue;
    const double bin = width > 0 ? std::floor((x - least) / width) : 0;
    ++counts[static_cast<std::size_t>(std::clamp(bin, 0.0, static_cast<double>(bins - 1)))];
  }
  Message m;
  m.f64(1, least)
      .f64(2, greatest)
      .f64(3, count)
      .f64(4, sum)
      .f64(5, squares)
      .packed(6, std::span(limits).first(bins))
      .packed(7, std::span(counts).first(bins));
  return m;
}

}  // namespace

struct TensorBoardLogger::File {
  explicit File(TensorBoardLoggerOptions o)
      : folder(std::move(o.save_dir), std::move(o.name), std::move(o.version)), flush_seconds(o.flush_seconds) {}

  void open(std::int64_t completed_steps, bool trains);
  void add(const Message& event);
  void add_value(const Message& value, std::int64_t step) { add(event(step).message(5, Message().message(1, value))); }
  void add_hparams(std::string_view tag, int field, const Message& content) {
    const Message data = std::move(Message().integer(1, 0).message(field, content));
    add_value(std::move(Message().bytes(1, tag).message(9, plugin("hparams", data.text()))), 0);
  }
  void flush();

  train::LogFolder folder;
  double flush_seconds;
  std::string path;      // of this start; empty before the first
  bool session = false;  // hyper-parameters were written, so finalize writes the end of the session
  std::string waiting;   // framed events
  std::int64_t events_waiting = 0;
  std::size_t next_flush_bytes = kFlushBytes;
  Clock::time_point last_flush = Clock::now();
  train::Attempts attempts{"TensorBoardLogger"};
};

void TensorBoardLogger::File::open(std::int64_t completed_steps, bool trains) {
  static std::atomic<int> counter{0};
  flush();
  std::array<char, 256> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  // TensorBoard reads the files of a folder by name, so names have a fine time, and numbers of equal width.
  const auto wide = [](std::int64_t n, std::size_t digits) {
    const std::string text = std::to_string(n);
    return std::string(text.size() < digits ? digits - text.size() : 0, '0') + text;
  };
  const auto microseconds = static_cast<std::int64_t>(unix_time() * 1e6);
  path = folder.path() + "/events.out.tfevents." + wide(microseconds / 1'000'000, 10) + "." +
         wide(microseconds % 1'000'000, 6) + "." + host.data() + "." + std::to_string(::getpid()) + "." +
         wide(counter++, 6);
  add(event(completed_steps).bytes(3, "brain.Event:2"));
  // A session that starts at a step makes TensorBoard forget that step and later ones.
  constexpr int kStart = 1;
  if (trains && completed_steps > 0) add(event(completed_steps).message(7, Message().integer(1, kStart)));
}

void TensorBoardLogger::File::add(const Message& event) {
  if (path.empty()) open(0, true);
  waiting += framed(event.text());
  ++events_waiting;
  if (waiting.size() >= next_flush_bytes || seconds_since(last_flush) >= flush_seconds) flush();
  std::size_t oldest = 0;  // bytes to drop, of whole events
  while (waiting.size() - oldest > kMostWaitingBytes) {
    std::uint64_t size = 0;
    std::memcpy(&size, waiting.data() + oldest, sizeof size);
    oldest += size + kFraming;
    --events_waiting;
    attempts.lose(1);
  }
  waiting.erase(0, oldest);
}

void TensorBoardLogger::File::flush() {
  last_flush = Clock::now();
  if (waiting.empty()) return;
  if (attempts.attempt([&] { detail::append_to_file(path, waiting); })) {
    waiting.clear();
    events_waiting = 0;
  }
  next_flush_bytes = waiting.size() + kFlushBytes;  // a disk that refuses is not tried at every record
}

TensorBoardLogger::TensorBoardLogger(TensorBoardLoggerOptions options)
    : file_(std::make_unique<File>(std::move(options))) {
  if (!(file_->flush_seconds >= 0))
    fail<ConfigError>("TensorBoardLogger: flush_seconds is ", file_->flush_seconds, ", expected 0 or more");
}

TensorBoardLogger::~TensorBoardLogger() {
  try {
    save();
    file_->attempts.finish(file_->events_waiting);
  } catch (...) {}  // no memory for the text
}

void TensorBoardLogger::start(std::int64_t completed_steps, std::int64_t) { file_->open(completed_steps, true); }
void TensorBoardLogger::start_evaluation(std::int64_t completed_steps, std::int64_t) {
  file_->open(completed_steps, false);
}

void TensorBoardLogger::log_metrics(const LogRecord& record) {
  Message summary;
  for (const auto& [name, value] : record.values)
    summary.message(1, Message().bytes(1, name).f32(2, static_cast<float>(value)));
  summary.message(1, Message().bytes(1, "epoch").f32(2, static_cast<float>(record.epoch)));
  file_->add(event(record.step).message(5, summary));
}

void TensorBoardLogger::log_hparams(const Metadata& hparams) {
  Message info;
  for (const auto& [name, value] : hparams) info.message(1, Message().bytes(1, name).message(2, hparam(value)));
  info.f64(5, unix_time());
  file_->session = true;
  file_->add_hparams("_hparams_/session_start_info", 3, info);
}

void TensorBoardLogger::save() { file_->flush(); }

void TensorBoardLogger::finalize(std::string_view status) {
  File& f = *file_;
  constexpr int kSuccess = 1, kFailure = 2;
  if (f.session) {
    const int code = status == "success" ? kSuccess : kFailure;
    f.add_hparams("_hparams_/session_end_info", 4, std::move(Message().integer(1, code).f64(2, unix_time())));
  }
  save();
  f.attempts.finish(f.events_waiting);
  f.waiting.clear();
  f.events_waiting = 0;
}

std::string TensorBoardLogger::log_dir() { return file_->folder.path(); }
std::string TensorBoardLogger::version() { return file_->folder.version(); }

void TensorBoardLogger::log_text(std::string_view tag, std::string_view markdown, std::int64_t step) {
  constexpr int kString = 7;  // DT_STRING
  const Message shape = std::move(Message().message(2, Message().integer(1, 1)));
  const Message tensor = std::move(Message().integer(1, kString).message(2, shape).bytes(8, markdown));
  file_->add_value(std::move(Message().bytes(1, tag).message(9, plugin("text")).message(8, tensor)), step);
}

void TensorBoardLogger::log_histogram(std::string_view tag, const Tensor& values, std::int64_t step) {
  const std::vector<double> host = values.detach().to(Device::cpu()).to(DType::f64).to_vector<double>();
  file_->add_value(std::move(Message().bytes(1, tag).message(5, histogram(host))), step);
}

void TensorBoardLogger::log_image(std::string_view tag, const Tensor& image, std::int64_t step) {
  const std::string png = data::encode_png(image.detach().to(Device::cpu()), "log_image: \"" + std::string(tag) + "\"");
  Message picture;
  picture.integer(1, image.size(0)).integer(2, image.size(1)).integer(3, image.rank() == 2 ? 1 : 3).bytes(4, png);
  file_->add_value(std::move(Message().bytes(1, tag).message(4, picture)), step);
}

}  // namespace levin
