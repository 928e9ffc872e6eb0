#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "tensor/core/formats.h"
#include "tensor/core/formats_test.h"
#include "tests/temporary.h"

using namespace levin;
using namespace levin::test;

namespace {

template <class T>
std::vector<T> values(const Tensor& x) {
  return {x.data<T>(), x.data<T>() + x.numel()};
}

const auto reads = [](detail::Source& s) { (void)detail::read_npy(s); };

Tensor parsed(const std::string& bytes) {
  detail::MemorySource source("memory", std::as_bytes(std::span<const char>(bytes)));
  return detail::read_npy(source);
}

// A file with this dict, padded as NumPy does, and these data.
std::string npy(const std::string& dict, const std::string& data, int version = 1) {
  std::string head = "\x93NUMPY";
  head += static_cast<char>(version);
  head += '\0';
  std::string text = dict;
  const std::size_t fixed = version == 1 ? 10 : 12;
  while ((fixed + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  for (std::size_t i = 0; i < fixed - 8; ++i) head += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return head + text + data;
}

template <class T>
std::string bytes_of_values(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// numpy.save of numpy.arange(6, dtype=numpy.float32).reshape(2, 3), as NumPy 1.24 to 2.4 write it.
std::string golden() {
  return npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", bytes_of_values<float>({0, 1, 2, 3, 4, 5}));
}

}  // namespace

TEST_CASE("a saved array is byte for byte what numpy.save writes") {
  const TemporaryFolder folder;
  const auto saved = [&](const Tensor& x) {
    save_npy(folder / "x.npy", x);
    return read_file(folder / "x.npy", 1000);
  };
  CHECK(saved(parsed(golden())) == golden());
  CHECK(golden().size() == 128 + 24);
  const std::string scalar =
      npy("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", bytes_of_values<double>({3}));
  CHECK(saved(parsed(scalar)) == scalar);
  const std::string vector = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }", "abc");
  CHECK(saved(parsed(vector)) == vector);
}

TEST_CASE("a view is saved as the values it shows") {
  const TemporaryFolder folder;
  const Tensor x = parsed(golden());
  save_npy(folder / "t.npy", as_strided(x, {3, 2}, Strides{{1, 3}}, 0));
  CHECK(read_file(folder / "t.npy", 1000) ==
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", bytes_of_values<float>({0, 3, 1, 4, 2, 5})));
}

TEST_CASE("every dtype NumPy has comes back from a file bit for bit") {
  const TemporaryFolder folder;
  for (const DType t :
       {DType::f32, DType::f64, DType::f16, DType::i32, DType::i64, DType::u8, DType::b8, DType::i8, DType::i16}) {
    for (const Shape& shape : {Shape{}, Shape{5}, Shape{2, 0, 3}, Shape{2, 3, 4}, Shape{1, 1, 1, 1, 1, 1, 1, 1}}) {
      Tensor x = empty(shape, Device::cpu(), t);
      auto bytes = detail::bytes_of(x);
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        x.get().storage->data[i] = static_cast<std::byte>(t == DType::b8 ? i % 2 : 31 * i + 7);
      }
      save_npy(folder / "x.npy", x);
      const Tensor y = load_npy(folder / "x.npy");
      CHECK(y.shape() == shape);
      CHECK(y.dtype() == t);
      const auto back = detail::bytes_of(y);
      CHECK(std::equal(bytes.begin(), bytes.end(), back.begin(), back.end()));
    }
  }
  CHECK_THROWS_AS(save_npy(folder / "x.npy", empty({1}, Device::cpu(), DType::bf16)), DTypeError);
  CHECK_THROWS_AS(save_npy(folder / "x.npy", empty({1}, Device::meta())), UnsupportedError);
}

TEST_CASE("versions 2 and 3, other spacing and quotes read the same") {
  const std::string data = bytes_of_values<float>({0, 1, 2, 3, 4, 5});
  for (const int version : {1, 2, 3}) {
    const Tensor x = parsed(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", data, version));
    CHECK(x.shape() == Shape{2, 3});
    CHECK(x.data<float>()[5] == 5);
  }
  CHECK(parsed(npy("{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"=f4\"}", data)).shape() == Shape{2, 3});
}

TEST_CASE("Fortran order becomes row-major, big-endian becomes little-endian") {
  const Tensor f = parsed(npy("{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3), }",
                              bytes_of_values<std::int32_t>({0, 3, 1, 4, 2, 5})));
  CHECK(f.is_contiguous());
  CHECK(values<std::int32_t>(f) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5});
  const Tensor b = parsed(
      npy("{'descr': '>i4', 'fortran_order': False, 'shape': (2,), }", std::string("\0\0\1\2\xff\xff\xff\xfe", 8)));
  CHECK(values<std::int32_t>(b) == std::vector<std::int32_t>{258, -2});
  const Tensor h = parsed(npy("{'descr': '>f2', 'fortran_order': False, 'shape': (1,), }", std::string("\x3c\0", 2)));
  CHECK(static_cast<float>(h.data<f16>()[0]) == 1.f);
  const Tensor d =
      parsed(npy("{'descr': '>f8', 'fortran_order': True, 'shape': (1, 1), }", std::string("\x3f\xf0\0\0\0\0\0\0", 8)));
  CHECK(d.data<double>()[0] == 1.0);
}

TEST_CASE("signed integers keep their width, unsigned ones are widened without loss") {
  const auto i32 = [](const Tensor& x) { return values<std::int32_t>(x); };
  const std::string bytes = npy("{'descr': '|i1', 'fortran_order': False, 'shape': (2,), }", "\x80\x7f"),
                    shorts = npy("{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }",
                                 std::string("\0\x80\xff\x7f", 4));
  CHECK(values<std::int8_t>(parsed(bytes)) == std::vector<std::int8_t>{-128, 127});
  CHECK(values<std::int16_t>(parsed(shorts)) == std::vector<std::int16_t>{-32768, 32767});
  const TemporaryFolder folder;
  for (const std::string& file : {bytes, shorts}) {
    save_npy(folder / "x.npy", parsed(file));
    CHECK(read_file(folder / "x.npy", 1000) == file);
  }
  CHECK(i32(parsed(npy("{'descr': '<u2', 'fortran_order': False, 'shape': (1,), }", "\xff\xff"))) ==
        std::vector<std::int32_t>{65535});
  CHECK(values<std::int16_t>(parsed(npy("{'descr': '>i2', 'fortran_order': False, 'shape': (1,), }", "\xff\xfe"))) ==
        std::vector<std::int16_t>{-2});
  CHECK(values<std::int64_t>(parsed(npy("{'descr': '<u4', 'fortran_order': False, 'shape': (1,), }",
                                        "\xff\xff\xff\xff"))) == std::vector<std::int64_t>{4294967295});
  // More than one block of the conversion.
  std::string many(400002, '\1');
  many.back() = '\xff';
  const Tensor x = parsed(npy("{'descr': '<u2', 'fortran_order': False, 'shape': (200001,), }", many));
  CHECK(x.data<std::int32_t>()[131072] == 0x0101);
  CHECK(x.data<std::int32_t>()[200000] == 0xff01);
}

TEST_CASE("dtypes that are not numbers are refused by their name") {
  const auto message = [](const std::string& descr) {
    return refusal(npy("{'descr': " + descr + ", 'fortran_order': False, 'shape': (1,), }", "12345678"), reads);
  };
  for (const char* descr :
       {"'|O'", "'<U2'", "'|S8'", "'|V8'", "'<c8'", "'<u8'", "'<M8[ns]'", "'f4'", "'|f4'", "''", "'<f4x'", "'<f16'"}) {
    CHECK(contains(message(descr), "dtype is " + std::string(descr)));
  }
  CHECK(contains(message("[('a', '<f4')]"), "structured"));
}

TEST_CASE("every sort of wrong header is refused with the byte where it goes wrong") {
  const auto message = [](const std::string& dict) { return refusal(npy(dict, "1234"), reads); };
  CHECK(message("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }") == "");
  CHECK(contains(message("{'descr': '<f4', 'fortran_order': False}"), "missing"));
  CHECK(contains(message("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"), "twice"));
  CHECK(contains(message("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}"), "'x'"));
  CHECK(contains(message("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }"), "header byte 34"));
  CHECK(contains(message("{'descr': '<f4', 'fortran_order': False, 'shape': (1), }"), "comma"));
  CHECK(contains(message("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"), "dimension"));
  CHECK(contains(message("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1 1), }"), "dimension"));
  CHECK(contains(message("{'descr': '<f4', 'fortran_order': False, 'shape': [1], }"), "'('"));
  CHECK(contains(message("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x"), "follow"));
  CHECK(contains(message("__import__('os')"), "'{'"));
  CHECK(contains(message("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)"), "'}'"));
  CHECK(contains(message("{'de\\x73cr': '<f4'}"), "backslash"));
}

TEST_CASE("claims larger than the file are refused before anything is allocated") {
  const auto message = [](const std::string& shape) {
    return refusal(npy("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }", "1234"), reads);
  };
  reset_peak_memory(Device::cpu());
  const std::int64_t before = memory_stats(Device::cpu()).peak;
  CHECK(contains(message("(1000000000,)"), "expected 4000000000"));
  CHECK(contains(message("(1099511627776, 1099511627776)"), "2^48"));
  CHECK(contains(message("(0, 1099511627776, 1099511627776)"), "2^48"));
  CHECK(contains(message("(99999999999999999999,)"), "dimension"));
  CHECK(contains(message("(9223372036854775807,)"), "2^40"));
  CHECK(contains(message("(1, 1, 1, 1, 1, 1, 1, 1, 1)"), "rank is 9"));
  CHECK(contains(message("(0,)"), "expected 0"));
  CHECK(memory_stats(Device::cpu()).peak == before);
  std::string long_header = golden();
  long_header[8] = '\xff';
  long_header[9] = '\xff';
  CHECK(contains(refusal(long_header, reads), "at most 10000"));
  std::string version2 = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "1234", 2);
  version2[11] = '\x7f';
  CHECK(contains(refusal(version2, reads), "at most 10000"));
  std::string version9 = golden();
  version9[6] = '\x9';
  CHECK(contains(refusal(version9, reads), "version is 9.0"));
}

TEST_CASE("a bool that is neither 0 nor 1 is refused") {
  CHECK(contains(
      refusal(npy("{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }", std::string("\0\1\2", 3)), reads),
      "element 2"));
}

TEST_CASE("a .npy file cut at any byte, or with any bit of its header flipped, is refused or read, nothing else") {
  check_truncations(golden(), reads);
  check_truncations(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", std::string(24, 'x'), 3), reads);
  const std::size_t accepted = check_bit_flips(golden(), 0, 128, reads);
  CHECK(accepted < 20);  // '<f4' to '<i4', (2, 3) and the like may stay valid; padding and keys do not
}

TEST_CASE("thousands of randomly damaged .npy files never do more than throw FormatError") {
  const std::vector<std::string> tokens = {"(",
                                           ")",
                                           ",",
                                           "'",
                                           "{",
                                           "}",
                                           "1099511627776",
                                           "9223372036854775807",
                                           "-1",
                                           "'descr'",
                                           "True",
                                           "\n",
                                           std::string(300, '(')};
  check_mutations(golden(), 20000, tokens, reads);
}

TEST_CASE("a missing file, a folder and a pipe are file errors that name the path") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS((void)load_npy(folder / "absent.npy"), FileError);
  CHECK_THROWS_AS((void)load_npy(folder.path()), FileError);
  CHECK_THROWS_AS((void)load_npy("/dev/null"), FileError);
  try {
    (void)load_npy(folder / "absent.npy");
  } catch (const FileError& e) { CHECK(std::string(e.op()) == folder / "absent.npy"); }
}
