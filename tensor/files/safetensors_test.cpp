#include <doctest/doctest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
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

const auto reads = [](detail::Source& s) { (void)detail::read_safetensors(s); };

TensorFile parsed(const std::string& bytes) {
  detail::MemorySource source("memory", std::as_bytes(std::span<const char>(bytes)));
  return detail::read_safetensors(source);
}

std::string file_of(const std::string& json, const std::string& data) {
  const std::uint64_t n = json.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + json + data;
}

Tensor filled(const Shape& shape, DType t) {
  Tensor x = empty(shape, Device::cpu(), t);
  const std::size_t bytes = detail::bytes_of(x).size();
  for (std::size_t i = 0; i < bytes; ++i) {
    x.get().storage->data[i] = static_cast<std::byte>(t == DType::b8 ? i % 2 : 37 * i + 11);
  }
  return x;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  const auto x = detail::bytes_of(a), y = detail::bytes_of(b);
  return a.dtype() == b.dtype() && a.shape() == b.shape() && std::equal(x.begin(), x.end(), y.begin(), y.end());
}

// safetensors.numpy.save of zeros of these kinds, version 0.8: dtypes from wide to narrow, then names.
const char kGoldenHeader[] =
    "{\"__metadata__\":{\"z\":\"1\",\"y\":\"a\\\"/\xe2\x82\xac\"},\"a\":{\"dtype\":\"I64\",\"shape\":[1],"
    "\"data_offsets\":[0,8]},\"h\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[8,16]},\"b\":{\"dtype\":\"F32\","
    "\"shape\":[2],\"data_offsets\":[16,24]},\"i\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[24,24]},"
    "\"\xc3\xa9\\\"\\n/"
    "\x7f\\u0001\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[24,28]},\"g\":{\"dtype\":\"I32\","
    "\"shape\":[1],\"data_offsets\":[28,32]},\"f\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[32,34]},\"d\":{"
    "\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[34,35]},\"c\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":"
    "["
    "35,36]}}      ";
std::string golden() { return file_of(kGoldenHeader, std::string(36, '\0')); }

}  // namespace

TEST_CASE("a saved file is byte for byte what the reference implementation writes") {
  const TemporaryFolder folder;
  const TensorFile content = parsed(golden());
  REQUIRE(content.tensors.size() == 9);
  CHECK(content.tensors[4].first == "\xc3\xa9\"\n/\x7f\x01");
  CHECK(content.metadata == Metadata{{"z", "1"}, {"y", "a\"/\xe2\x82\xac"}});
  NamedTensors shuffled(content.tensors.rbegin(), content.tensors.rend());
  save_safetensors(folder / "x.safetensors", shuffled, content.metadata);
  CHECK(read_file(folder / "x.safetensors", 10000) == golden());
}

TEST_CASE("tensors of every dtype come back from a file bit for bit, and views as what they show") {
  const TemporaryFolder folder;
  NamedTensors tensors;
  for (int t = 0; t < kDTypeCount; ++t) {
    for (const Shape& shape : {Shape{}, Shape{5}, Shape{2, 0, 3}, Shape{2, 3, 4}}) {
      tensors.emplace_back(text(static_cast<DType>(t)) + text(shape), filled(shape, static_cast<DType>(t)));
    }
  }
  const Tensor base = filled({4, 3}, DType::f32);
  tensors.emplace_back("view", as_strided(base, {3, 2}, Strides{{1, 6}}, 0));
  save_safetensors(folder / "x.safetensors", tensors);
  const TensorFile back = load_safetensors(folder / "x.safetensors");
  CHECK(back.tensors.size() == tensors.size());
  CHECK(back.metadata.empty());
  for (const auto& [name, x] : back.tensors) {
    const auto wanted = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.first == name; });
    REQUIRE(wanted != tensors.end());
    CHECK(same_bytes(x, detail::dense_on_host("", wanted->second)));
  }
}

TEST_CASE("a file has its tensors by falling width, signed integers before unsigned ones and these before bools") {
  const TemporaryFolder folder;
  NamedTensors tensors;
  for (int t = 0; t < kDTypeCount; ++t)
    tensors.emplace_back(text(static_cast<DType>(t)), filled({1}, static_cast<DType>(t)));
  save_safetensors(folder / "x", tensors);
  std::string order;
  for (const auto& [name, x] : load_safetensors(folder / "x").tensors) order += name + " ";
  CHECK(order == "i64 f64 f32 i32 bf16 f16 i16 i8 u8 bool ");
}

TEST_CASE("a file without tensors, or with metadata alone, is valid") {
  const TemporaryFolder folder;
  save_safetensors(folder / "none", {});
  CHECK(read_file(folder / "none", 100) == file_of("{}      ", ""));
  CHECK(load_safetensors(folder / "none").tensors.empty());
  save_safetensors(folder / "none", {}, {{"a", ""}});
  CHECK(load_safetensors(folder / "none").metadata == Metadata{{"a", ""}});
}

TEST_CASE("signed integers keep their width, unsigned ones are widened") {
  const TensorFile f =
      parsed(file_of("{\"a\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                     "\"b\":{\"dtype\":\"U32\",\"shape\":[1],\"data_offsets\":[2,6]},"
                     "\"c\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[6,8]},"
                     "\"d\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[8,10]}}",
                     std::string("\x80\x7f\xff\xff\xff\xff\0\x80\0\x80", 10)));
  CHECK(values<std::int8_t>(f.tensors[0].second) == std::vector<std::int8_t>{-128, 127});
  CHECK(values<std::int64_t>(f.tensors[1].second) == std::vector<std::int64_t>{4294967295});
  CHECK(values<std::int16_t>(f.tensors[2].second) == std::vector<std::int16_t>{-32768});
  CHECK(values<std::int32_t>(f.tensors[3].second) == std::vector<std::int32_t>{32768});
}

TEST_CASE("every wrong header is refused with the tensor, the value got and the value expected") {
  const auto message = [](const std::string& json, const std::string& data = "12345678") {
    return refusal(file_of(json, data), reads);
  };
  const auto tensor = [&](const std::string& inside) { return message("{\"w\":{" + inside + "}}"); };
  CHECK(tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]") == "");
  CHECK(contains(tensor("\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]"),
                 "tensor 'w' has dtype 'F31', expected F64"));
  CHECK(contains(tensor("\"dtype\":\"U64\",\"shape\":[1],\"data_offsets\":[0,8]"), "'U64'"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"),
                 "tensor 'w' has data_offsets [0, 8], expected 12 bytes for F32 [3]"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), "[8, 0]"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]"), "inside of the file's 8"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[18446744073709551615,7]"),
                 "expected 8 bytes"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,99999999999999999999]"),
                 "two byte offsets"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]"), "expected two"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4,8]"), "has 8 where two byte offsets"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), "has -2 where a dimension"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), "has 2.0 where a dimension"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[[2]],\"data_offsets\":[0,8]"), "has an array where a dimension"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":\"2\",\"data_offsets\":[0,8]"), "has '2' where an array"));
  CHECK(contains(tensor("\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]"), "has 7 where a string"));
  CHECK(contains(tensor("\"dtype\":null,\"shape\":[2],\"data_offsets\":[0,8]"), "has null"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]"),
                 "more than 8 dimensions"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[1099511627776,1099511627776],\"data_offsets\":[0,8]"), "2^48"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[0,1099511627776,1099511627776],\"data_offsets\":[0,0]"), "2^48"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[2]"), "lacks a member"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), "dtype twice"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[],\"shape\":[2],\"data_offsets\":[0,8]"), "shape twice"));
  CHECK(contains(tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1"), "the member 'x'"));
  CHECK(contains(message("{\"w\":3}"), "tensor 'w' has 3"));
  CHECK(contains(message("{\"__metadata__\":{\"a\":1}}", ""), "has 1 where a string"));
  CHECK(contains(message("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", ""), "'a' is given twice"));
  CHECK(contains(message("{\"__metadata__\":{},\"__metadata__\":{}}", ""), "__metadata__ is given twice"));
  CHECK(contains(message("{\"__metadata__\":[]}", ""), "an object of strings"));
  CHECK(contains(message("{} x", ""), "valid JSON"));
  CHECK(contains(message("{\"a\":}", ""), "valid JSON"));
  CHECK(contains(message(" {}", ""), "'{'"));
  CHECK(contains(message("[]", ""), "'{'"));
  CHECK(contains(message("", ""), "'{'"));
  CHECK(contains(message("{\"\xff\":1}", ""), "valid JSON"));
  CHECK(contains(message("{\"a\\u0000b\":1}", ""), "NUL"));
  CHECK(contains(message("{\"" + std::string(513, 'n') + "\":1}", ""), "513 bytes"));
}

TEST_CASE("tensors that overlap, leave a gap, share a name or do not end with the file are refused") {
  const auto two = [&](const std::string& a, const std::string& b, const char* second = "b") {
    return refusal(file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + a + "},\"" + second +
                               "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + b + "}}",
                           "12345678"),
                   reads);
  };
  CHECK(two("[0,4]", "[4,8]") == "");
  CHECK(two("[4,8]", "[0,4]") == "");
  CHECK(contains(two("[0,4]", "[3,7]"), "tensor 'b' begins at data byte 3, expected 4"));
  CHECK(contains(two("[0,4]", "[0,4]"), "overlap"));
  CHECK(contains(two("[1,5]", "[5,9]"), "data_offsets [5, 9]"));
  CHECK(contains(two("[1,5]", "[4,8]"), "expected 0"));
  CHECK(contains(two("[0,4]", "[4,8]", "a"), "'a' is given twice"));
  CHECK(contains(refusal(file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "12345"), reads),
                 "end at data byte 4, the file at 5"));
}

TEST_CASE("a header larger than the file or the limit is refused before it is read") {
  const std::string huge(8, '\xff');
  CHECK(contains(refusal(huge + "{}", reads), "18446744073709551615 bytes"));
  const auto limited = [](detail::Source& s) { (void)detail::read_safetensors(s, {.header_bytes = 10}); };
  CHECK(contains(refusal(golden(), limited), "at most 10"));
  CHECK_THROWS_AS((void)load_safetensors("absent", {.header_bytes = 100'000'001}), Error);
}

TEST_CASE("a file that is saved is loaded, however long its header") {
  const TemporaryFolder folder;
  const Metadata metadata = {{"text", std::string(std::size_t{17} << 20, 'x')}};
  save_safetensors(folder / "x.safetensors", {}, metadata);
  CHECK(load_safetensors(folder / "x.safetensors").metadata == metadata);
}

#ifndef __SANITIZE_ADDRESS__
namespace {
// Loads a file of `header` alone in a child whose address space may grow by twenty times the file's size. 0 on success.
int load_in_bounds(const std::string& header, std::size_t tensors, std::size_t keys) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.safetensors";
  std::size_t bytes = 0;
  {
    const std::string file = file_of(header, "");
    bytes = file.size();
    write_file_atomically(path, file);
  }
  ::malloc_trim(0);  // the parent's spare memory would cost the child nothing
  const pid_t child = ::fork();
  if (child == 0) {
    std::size_t pages = 0;
    std::FILE* statm = std::fopen("/proc/self/statm", "r");
    if (!statm || std::fscanf(statm, "%zu", &pages) != 1) ::_exit(2);
    const rlim_t most = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + 20 * bytes;
    const rlimit limit{most, most};
    ::setrlimit(RLIMIT_AS, &limit);
    int rc = 1;
    try {
      const TensorFile loaded = load_safetensors(path);
      rc = loaded.tensors.size() == tensors && loaded.metadata.size() == keys ? 0 : 3;
    } catch (...) {}
    ::_exit(rc);
  }
  int status = -1;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}
}  // namespace

TEST_CASE("a header of nothing but names costs no more than twenty times its size") {
  constexpr std::size_t kCount = 200'000;
  std::string tensors = "{", keys = "{\"__metadata__\":{";
  for (std::size_t i = 0; i < kCount; ++i) {
    tensors += "\"" + std::to_string(i) + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},";
    keys += "\"" + std::to_string(i) + "\":\"\",";
  }
  tensors.back() = '}';
  keys.back() = '}';
  CHECK(load_in_bounds(tensors, kCount, 0) == 0);
  CHECK(load_in_bounds(keys + "}", 0, kCount) == 0);
}
#endif

TEST_CASE("deep nesting is refused at its first level too many") {
  CHECK(contains(refusal(file_of("{\"a\":" + std::string(1 << 20, '['), ""), reads), "an array"));
  std::string objects = "{";
  for (int i = 0; i < 100000; ++i) objects += "\"a\":{";
  CHECK(contains(refusal(file_of(objects, ""), reads), "tensor 'a'"));
}

TEST_CASE("a safetensors file cut at any byte, or with any bit flipped, is refused or read, nothing else") {
  check_truncations(golden(), reads);
  const std::size_t accepted = check_bit_flips(golden(), 0, 8 + sizeof(kGoldenHeader) - 1, reads);
  CHECK(accepted < 400);  // flips inside of names, of metadata, and of one dtype to another of its size
  const std::string bools =
      file_of("{\"a\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}", std::string(2, '\1'));
  CHECK(check_bit_flips(bools, bools.size() - 2, bools.size(), reads) == 2);
}

TEST_CASE("thousands of randomly damaged safetensors files never do more than throw FormatError") {
  const std::vector<std::string> tokens = {"{",
                                           "}",
                                           "[",
                                           "]",
                                           ",",
                                           ":",
                                           "\"",
                                           "\"dtype\":\"F32\"",
                                           "\"shape\":[1]",
                                           "18446744073709551615",
                                           "-1",
                                           "1e9",
                                           "\\u0000",
                                           "\\ud800",
                                           "null",
                                           "\"__metadata__\":{}",
                                           std::string(300, '[')};
  // With the leading length corrected, the damage reaches the header's parser and the checks after it.
  const auto framed = [](detail::Source& s) {
    std::string bytes(static_cast<std::size_t>(s.size()), '\0');
    s.read(0, bytes.data(), bytes.size());
    const std::size_t data = std::min<std::size_t>(bytes.size(), 36);
    const std::string whole = file_of(bytes.substr(0, bytes.size() - data), bytes.substr(bytes.size() - data));
    detail::MemorySource again("damaged", std::as_bytes(std::span<const char>(whole)));
    (void)detail::read_safetensors(again);
  };
  check_mutations(golden(), 10000, tokens, reads);
  check_mutations(golden().substr(8), 10000, tokens, framed);
}

TEST_CASE("names and metadata that a reader would refuse are not written") {
  const TemporaryFolder folder;
  const std::string path = folder / "x.safetensors";
  const Tensor x = filled({2}, DType::f32);
  CHECK_THROWS_AS(save_safetensors(path, {{"a", x}, {"a", x}}), ConfigError);
  CHECK_THROWS_AS(save_safetensors(path, {{"__metadata__", x}}), ConfigError);
  CHECK_THROWS_AS(save_safetensors(path, {{std::string(513, 'a'), x}}), ConfigError);
  CHECK_THROWS_AS(save_safetensors(path, {{std::string("a\0b", 3), x}}), ConfigError);
  CHECK_THROWS_AS(save_safetensors(path, {{"a", Tensor()}}), ConfigError);
  CHECK_THROWS_AS(save_safetensors(path, {{"a", empty({2}, Device::meta())}}), UnsupportedError);
  CHECK_THROWS_AS(save_safetensors(path, {}, {{"k", "1"}, {"k", "2"}}), ConfigError);
  for (const char* bad : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\xe0\x80\x80", "\x80"}) {
    CHECK_THROWS_AS(save_safetensors(path, {{bad, x}}), ConfigError);
    CHECK_THROWS_AS(save_safetensors(path, {}, {{"k", bad}}), ConfigError);
  }
  CHECK(!std::filesystem::exists(path));
  for (const char* good : {"", "\xc2\x80", "\xed\x9f\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "\xe0\xa0\x80"}) {
    save_safetensors(path, {{good, x}});
    CHECK(load_safetensors(path).tensors[0].first == good);
  }
}

TEST_CASE("a content hash tells name, dtype, shape and values apart and is that of XXH3") {
  CHECK(content_hash("") == "99aa06d3014798d86001c324468d497f");
  const Tensor x = filled({2, 3}, DType::f32);
  const std::string base = content_hash("w", x);
  CHECK(base.size() == 32);
  CHECK(content_hash("w", filled({2, 3}, DType::f32)) == base);
  CHECK(content_hash("v", x) != base);
  CHECK(content_hash("w", filled({3, 2}, DType::f32)) != base);
  CHECK(content_hash("w", filled({2, 3}, DType::i32)) != base);
  Tensor y = filled({2, 3}, DType::f32);
  y.mutable_data<float>()[5] = 1;
  CHECK(content_hash("w", y) != base);
  CHECK(content_hash("w", as_strided(x, {3, 2}, Strides{{1, 3}}, 0)) != content_hash("w", filled({3, 2}, DType::f32)));
}
