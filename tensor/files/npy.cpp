#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <vector>

#include "levin/serialize.h"
#include "tensor/core/formats.h"
#include "tensor/files/file.h"

// The format: numpy.lib.format, "NPY format" (versions 1.0, 2.0 and 3.0).
namespace levin {
namespace {

using detail::ByteOrder;
using detail::FileType;
using detail::Source;

constexpr char kMagic[] = "\x93NUMPY";
constexpr std::size_t kMagicBytes = 6;
constexpr std::size_t kMaxHeader = 10000;  // NumPy's own limit
constexpr std::size_t kAlignment = 64;

struct Description {
  FileType type;
  ByteOrder order = ByteOrder::little;
  bool fortran = false;
  std::vector<std::int64_t> dims;
};

// The header is a Python dict literal. This reads the few forms that NumPy writes and refuses all else.
class HeaderParser {
 public:
  HeaderParser(const std::string& file, std::string_view text) : file_(file), rest_(text), size_(text.size()) {}

  Description parse() {
    expect('{');
    while (!take('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !descr_) {
        descr_ = quoted();
      } else if (key == "fortran_order" && !fortran_) {
        fortran_ = boolean();
      } else if (key == "shape" && !dims_) {
        dims_ = tuple();
      } else {
        refuse("key '", key, "' is unknown or given twice, expected descr, fortran_order and shape once each");
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty() && rest_.front() == '\n') rest_.remove_prefix(1);
    if (!rest_.empty()) refuse("bytes follow the dict");
    if (!descr_ || !fortran_ || !dims_) refuse("a key is missing, expected descr, fortran_order and shape");
    Description d;
    read_descr(d);
    d.fortran = *fortran_;
    d.dims = *dims_;
    return d;
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail<FormatError>(file_, ": header byte ", size_ - rest_.size(), ": ", parts...);
  }
  void skip_space() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  bool take(char c) {
    skip_space();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) refuse("'", std::string(1, c), "' is expected");
  }
  std::string_view quoted() {
    skip_space();
    const char quote = rest_.empty() ? '\0' : rest_.front();
    if (quote == '[') refuse("a list: structured arrays are not supported; save the fields one by one");
    if (quote != '\'' && quote != '"') refuse("a quoted string is expected");
    const std::size_t end = rest_.find(quote, 1);
    if (end == std::string_view::npos) refuse("a string does not end");
    const std::string_view inside = rest_.substr(1, end - 1);
    if (inside.find('\\') != std::string_view::npos) refuse("a string has a backslash");
    rest_.remove_prefix(end + 1);
    return inside;
  }
  bool word(std::string_view w) {
    skip_space();
    if (rest_.substr(0, w.size()) != w) return false;
    rest_.remove_prefix(w.size());
    return true;
  }
  bool boolean() {
    if (word("True")) return true;
    if (word("False")) return false;
    refuse("True or False is expected");
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> dims;
    expect('(');
    bool comma = true;
    while (!take(')')) {
      skip_space();
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
      if (!comma || error != std::errc() || value < 0) refuse("a dimension from 0 to 2^40 is expected");
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      dims.push_back(value);
      comma = take(',');
      if (!comma && dims.size() == 1) refuse("a tuple of one element needs a comma");
    }
    return dims;
  }
  void read_descr(Description& d) const {
    struct Known {
      std::string_view code;
      FileType type;
    };
    static constexpr Known kTypes[] = {
        {"f4", {DType::f32, 4}}, {"f8", {DType::f64, 8}}, {"f2", {DType::f16, 2}}, {"i4", {DType::i32, 4}},
        {"i8", {DType::i64, 8}}, {"u1", {DType::u8, 1}},  {"b1", {DType::b8, 1}},  {"i1", {DType::i8, 1}},
        {"i2", {DType::i16, 2}}, {"u2", {DType::i32, 2}}, {"u4", {DType::i64, 4}},
    };
    const std::string_view descr = *descr_;
    const char order = descr.empty() ? '\0' : descr.front();
    for (const Known& known : kTypes) {
      const bool single = known.type.width == 1;
      const bool ordered = order == '<' || order == '>' || order == '=' || (single && order == '|');
      if (!ordered || descr.substr(1) != known.code) continue;
      d.type = known.type;
      d.order = order == '>' ? ByteOrder::big : ByteOrder::little;
      return;
    }
    fail<FormatError>(file_, ": dtype is '", descr,
                      "', expected f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 or b1 after '<', '>' or '|'; convert it with astype");
  }

  const std::string& file_;
  std::string_view rest_;
  std::size_t size_;
  std::optional<std::string_view> descr_;
  std::optional<bool> fortran_;
  std::optional<std::vector<std::int64_t>> dims_;
};

// Column-major values as a row-major tensor.
Tensor transposed(const Tensor& columns, const Shape& shape) {
  Strides strides;
  std::int64_t step = 1;
  for (int d = 0; d < shape.rank(); ++d) {
    strides[d] = step;
    step *= std::max<std::int64_t>(shape[d], 1);
  }
  return detail::dense_on_host("", as_strided(columns, shape, strides, 0));
}

const char* code_of(const Tensor& x, const std::string& what) {
  switch (x.dtype()) {
    case DType::f32: return "<f4";
    case DType::f64: return "<f8";
    case DType::f16: return "<f2";
    case DType::i32: return "<i4";
    case DType::i64: return "<i8";
    case DType::u8: return "|u1";
    case DType::b8: return "|b1";
    case DType::i8: return "|i1";
    case DType::i16: return "<i2";
    case DType::bf16: break;
  }
  fail<DTypeError>(what, ": NumPy has no bf16; convert with to(DType::f32), or use save_safetensors");
}

}  // namespace

namespace detail {

Tensor read_npy(Source& source) {
  const std::string& file = source.name();
  std::array<unsigned char, 12> head{};
  if (source.size() < 10) fail<FormatError>(file, ": the file has ", source.size(), " bytes, a .npy file at least 10");
  source.read(0, head.data(), 10);
  if (std::memcmp(head.data(), kMagic, kMagicBytes) != 0) {
    fail<FormatError>(file, ": is no .npy file: it does not begin with \\x93NUMPY");
  }
  const unsigned major = head[6], minor = head[7];
  if (major < 1 || major > 3 || minor != 0) {
    fail<FormatError>(file, ": .npy version is ", major, ".", minor, ", expected 1.0, 2.0 or 3.0");
  }
  std::size_t header = head[8] | static_cast<std::size_t>(head[9]) << 8;
  std::uint64_t begin = 10;
  if (major >= 2) {
    if (source.size() < 12) fail<FormatError>(file, ": the file ends inside of the header's length");
    source.read(10, head.data() + 10, 2);
    header |= static_cast<std::size_t>(head[10]) << 16 | static_cast<std::size_t>(head[11]) << 24;
    begin = 12;
  }
  if (header > kMaxHeader) fail<FormatError>(file, ": header has ", header, " bytes, expected at most ", kMaxHeader);
  if (header > source.size() - begin) {
    fail<FormatError>(file, ": header has ", header, " bytes, the file only ", source.size() - begin, " more");
  }
  std::string text(header, '\0');
  source.read(begin, text.data(), header);
  const Description d = HeaderParser(file, text).parse();
  const Shape shape = checked_shape(file + ":", d.dims);
  const std::uint64_t wanted = static_cast<std::uint64_t>(shape.numel()) * d.type.width;  // at most 2^51
  const std::uint64_t found = source.size() - begin - header;
  if (wanted != found) {
    fail<FormatError>(file, ": the data have ", found, " bytes, expected ", wanted, " for shape ", shape, " of ",
                      static_cast<unsigned>(d.type.width), "-byte elements");
  }
  Tensor x = read_tensor(source, file + ":", begin + header, shape, d.type, d.order);
  return d.fortran && shape.rank() > 1 ? transposed(x, shape) : x;
}

}  // namespace detail

Tensor load_npy(const std::string& path) {
  detail::FileSource source(path);
  return detail::read_npy(source);
}

std::string detail::npy_header(const std::string& what, const Tensor& x) {
  const char* code = code_of(x, what);
  std::string dict = std::string("{'descr': '") + code + "', 'fortran_order': False, 'shape': (";
  for (const std::int64_t size : x.shape()) dict += text(size) + ", ";
  if (x.rank() > 1) dict.resize(dict.size() - 2);
  if (x.rank() == 1) dict.resize(dict.size() - 1);
  dict += "), }";
  // NumPy leaves room for the first dimension to grow to 21 digits in place.
  if (x.rank() > 0) dict.append(21 - text(x.shape()[0]).size(), ' ');
  const std::size_t unpadded = kMagicBytes + 4 + dict.size() + 1;
  dict.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  dict += '\n';
  std::string head(kMagic, kMagicBytes);
  head += {'\1', '\0', static_cast<char>(dict.size() & 0xff), static_cast<char>(dict.size() >> 8)};
  return head + dict;
}

void save_npy(const std::string& path, const Tensor& x) {
  const std::string head = detail::npy_header("save_npy: " + path, x);
  const Tensor dense = detail::dense_on_host("save_npy: " + path, x);
  const std::array parts{std::as_bytes(std::span<const char>(head)), detail::bytes_of(dense)};
  write_file_atomically(path, parts);
}

}  // namespace levin
