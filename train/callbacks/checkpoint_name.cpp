#include "train/callbacks/checkpoint_name.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "levin/error.h"
#include "train/callbacks/monitored.h"
#include "train/checkpoint/folder.h"

namespace levin::train {
namespace {

constexpr std::int64_t kMostWidth = 40, kMostPrecision = 30;
constexpr std::size_t kMostChars = 400;  // of the largest f64 as "f", with that precision

[[noreturn]] void fail_form(std::string_view form, std::string_view why) {
  fail<ConfigError>("ModelCheckpoint: filename \"", form, "\" ", why,
                    "; fields are {name} or {name:[0][width][.precision][d|e|f|g]}");
}

struct Format {
  bool zeros = false;
  std::int64_t width = 0, precision = -1;
  char type = 0;
};

Format read_format(std::string_view form, std::string_view spec) {
  Format f;
  const char* at = spec.data();
  const char* const end = at + spec.size();
  const auto number = [&](std::int64_t& to, std::int64_t most) {
    const auto [next, error] = std::from_chars(at, end, to);
    if (error != std::errc() || to < 0 || to > most) fail_form(form, "has a format that can not be read");
    at = next;
  };
  if (at != end && *at == '0') {
    f.zeros = true;
    ++at;
  }
  if (at != end && *at >= '1' && *at <= '9') number(f.width, kMostWidth);
  if (at != end && *at == '.') {
    ++at;
    number(f.precision, kMostPrecision);
  }
  if (at != end && std::string_view("defg").find(*at) != std::string_view::npos) f.type = *at++;
  if (at != end) fail_form(form, "has a format that can not be read");
  return f;
}

std::string written(double x, const Format& f) {
  std::string out;
  if (f.type == 0 && f.precision < 0) {
    out = text(x);
  } else {
    const std::chars_format style = f.type == 'e'                    ? std::chars_format::scientific
                                    : f.type == 'f' || f.type == 'd' ? std::chars_format::fixed
                                                                     : std::chars_format::general;
    constexpr int kUsual = 6;
    const int precision = f.type == 'd' ? 0 : f.precision < 0 ? kUsual : static_cast<int>(f.precision);
    std::array<char, kMostChars> buffer{};
    const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), x, style, precision);
    out.assign(buffer.data(), error == std::errc() ? end : buffer.data());
  }
  const auto width = static_cast<std::size_t>(f.width);
  if (out.size() < width) {
    const bool zeros = f.zeros && std::isfinite(x);
    const std::size_t sign = zeros && !out.empty() && out.front() == '-' ? 1 : 0;
    out.insert(sign, width - out.size(), zeros ? '0' : ' ');
  }
  return out;
}

}  // namespace

std::string checkpoint_name(std::string_view form, InsertNames insert, std::int64_t epoch, std::int64_t step,
                            const Metrics& metrics) {
  if (form.empty()) fail_form(form, "is empty");
  for (const std::string_view ending : {kFileEnding, kFolderEnding}) {
    if (form.ends_with(ending)) form.remove_suffix(ending.size());
  }
  std::string out;
  for (std::size_t at = 0; at < form.size();) {
    if (form[at] == '}') fail_form(form, "closes a brace that is not open");
    if (form[at] == '/') fail_form(form, "has a slash; dirpath says the folder");
    if (form[at] != '{') {
      out += form[at++];
      continue;
    }
    const std::size_t close = form.find('}', at);
    if (close == std::string_view::npos) fail_form(form, "does not close a brace");
    const std::string_view field = form.substr(at + 1, close - at - 1);
    const std::size_t colon = std::min(field.find(':'), field.size());
    const std::string_view name = field.substr(0, colon);
    if (name.empty() || name.find('{') != std::string_view::npos) fail_form(form, "has a field without a name");
    const Format format = read_format(form, colon < field.size() ? field.substr(colon + 1) : std::string_view());
    if (insert == InsertNames::yes) {
      std::string shown(name);
      std::replace(shown.begin(), shown.end(), '/', '_');
      shown += '=';
      if (!out.ends_with(shown)) out += shown;
    }
    const double value = name == "epoch"  ? static_cast<double>(epoch)
                         : name == "step" ? static_cast<double>(step)
                                          : metric(metrics, name).value_or(0);
    out += written(value, format);
    at = close + 1;
  }
  return out;
}

}  // namespace levin::train
