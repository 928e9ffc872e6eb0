#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <vector>

#include "levin/tensor.h"

namespace levin {
namespace {

constexpr std::int64_t kSummarizeAbove = 1000;  // elements; the figures of PyTorch's printer
constexpr std::int64_t kEdgeItems = 3;
constexpr std::size_t kLineWidth = 80;

// The common properties of the shown elements decide the format of all, so that columns align.
struct Style {
  enum class Kind { integer, boolean, whole, fixed, scientific } kind = Kind::integer;
  std::size_t width = 1;
};

struct Value {
  double real = 0;
  std::int64_t integer = 0;
};

std::string formatted(Value v, Style::Kind kind) {
  switch (kind) {
    case Style::Kind::integer: return fmt::format("{}", v.integer);
    case Style::Kind::boolean: return v.integer ? "true" : "false";
    case Style::Kind::whole: return std::isfinite(v.real) ? fmt::format("{:.0f}.", v.real) : fmt::format("{}", v.real);
    case Style::Kind::fixed: return fmt::format("{:.4f}", v.real);
    case Style::Kind::scientific: return fmt::format("{:.4e}", v.real);
  }
  return {};
}

class Printer {
 public:
  explicit Printer(const Tensor& host) : x_(host), shorten_(host.numel() > kSummarizeAbove) {}

  std::string print() {
    if (x_.numel() == 0) return "[]";
    visit(0, x_.offset(), [&](Value v) { values_.push_back(v); });
    choose_style();
    std::string out;
    row(0, x_.offset(), out);
    return out;
  }

 private:
  Value at(std::int64_t index) const {
    const std::byte* data = x_.get().storage->data;
    const auto read = [&]<class T>(T) { return reinterpret_cast<const T*>(data)[index]; };
    const auto real = [](double r) { return Value{r, 0}; };
    const auto integer = [](std::int64_t i) { return Value{static_cast<double>(i), i}; };
    switch (x_.dtype()) {
      case DType::f32: return real(read(float{}));
      case DType::f64: return real(read(double{}));
      case DType::f16: return real(static_cast<double>(read(f16{})));
      case DType::bf16: return real(static_cast<double>(read(bf16{})));
      case DType::i32: return integer(read(std::int32_t{}));
      case DType::i64: return integer(read(std::int64_t{}));
      case DType::u8: return integer(read(std::uint8_t{}));
      case DType::b8: return integer(read(bool{}));
      case DType::i8: return integer(read(std::int8_t{}));
      case DType::i16: return integer(read(std::int16_t{}));
    }
    return {};
  }

  bool shortened(int d) const { return shorten_ && x_.shape()[d] > 2 * kEdgeItems; }

  // The indices of dimension d that are shown, in order; -1 stands for the omitted ones.
  template <class F>
  void shown(int d, F&& f) const {
    const std::int64_t n = x_.shape()[d];
    for (std::int64_t i = 0; i < n; ++i) {
      if (shortened(d) && i == kEdgeItems) {
        f(std::int64_t{-1});
        i = n - kEdgeItems;
      }
      f(i);
    }
  }

  template <class F>
  void visit(int d, std::int64_t index, const F& f) const {
    if (d == x_.rank()) return f(at(index));
    shown(d, [&](std::int64_t i) {
      if (i >= 0) visit(d + 1, index + i * x_.strides()[d], f);
    });
  }

  void choose_style() {
    style_.kind = x_.dtype() == DType::b8 ? Style::Kind::boolean : Style::Kind::integer;
    if (is_float(x_.dtype())) {
      bool whole = true;
      double least = INFINITY, most = 0;
      for (const Value& v : values_) {
        if (!std::isfinite(v.real)) continue;
        whole = whole && v.real == std::floor(v.real);
        if (v.real != 0) least = std::min(least, std::abs(v.real));
        most = std::max(most, std::abs(v.real));
      }
      if (most > 1e8) {
        style_.kind = Style::Kind::scientific;
      } else if (whole) {
        style_.kind = Style::Kind::whole;
      } else {
        // Four decimals would hide small elements beside large ones.
        style_.kind = least < 1e-4 || most / least > 1000 ? Style::Kind::scientific : Style::Kind::fixed;
      }
    }
    for (const Value& v : values_) style_.width = std::max(style_.width, formatted(v, style_.kind).size());
  }

  void row(int d, std::int64_t index, std::string& out) const {
    if (d == x_.rank()) {
      out += fmt::format("{:>{}}", formatted(at(index), style_.kind), x_.rank() == 0 ? 0 : style_.width);
      return;
    }
    const bool last = d == x_.rank() - 1;
    const std::string indent(static_cast<std::size_t>(d) + 1, ' ');
    const std::size_t cell = style_.width + 2;
    const std::size_t per_line = std::max<std::size_t>(1, (kLineWidth - indent.size()) / cell);
    std::size_t count = 0;
    out += '[';
    shown(d, [&](std::int64_t i) {
      if (count) {
        if (last) {
          out += count % per_line == 0 ? ",\n" + indent : ", ";
        } else {
          // A blank line between matrices, two between blocks of them.
          out += ',' + std::string(static_cast<std::size_t>(x_.rank() - 1 - d), '\n') + indent;
        }
      }
      ++count;
      if (i < 0) {
        out += "...";
      } else {
        row(d + 1, index + i * x_.strides()[d], out);
      }
    });
    out += ']';
  }

  const Tensor& x_;
  bool shorten_;
  std::vector<Value> values_;
  Style style_;
};

}  // namespace

std::string text(const Tensor& x) {
  if (!x.defined()) return "undefined";
  return fmt::format("{} {} on {}", name(x.dtype()), text(x.shape()), text(x.device()));
}

std::string to_string(const Tensor& x) {
  if (!x.defined() || x.device().is_meta()) return text(x);
  const Tensor host = x.device().is_cpu() ? x.detach() : x.detach().to(Device::cpu());
  return Printer(host).print() + "\n" + text(x);
}

std::ostream& operator<<(std::ostream& out, const Tensor& x) { return out << to_string(x); }

}  // namespace levin
