#include "data/readers/csv.h"

#include <doctest/doctest.h>

#include <clocale>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>

#include "data/readers/csv_text.h"
#include "levin/memory.h"
#include "levin/serialize.h"
#include "tensor/core/formats_test.h"
#include "tests/temporary.h"

using namespace levin;
using namespace levin::data;
using namespace levin::test;

namespace {

CsvTable parsed(const std::string& bytes, const CsvSchema& schema = {}, std::size_t block = kCsvBlock) {
  detail::MemorySource source("t.csv", std::as_bytes(std::span<const char>(bytes)));
  return read_csv(source, schema, block);
}
template <class T>
std::vector<T> values(const Tensor& x) {
  return {x.data<T>(), x.data<T>() + x.numel()};
}
std::string refused(const std::string& bytes, const CsvSchema& schema = {}) {
  try {
    (void)parsed(bytes, schema);
  } catch (const FormatError& e) { return e.what(); }
  return "";
}
using Floats = std::vector<float>;
using Longs = std::vector<std::int64_t>;
using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("a CSV file without a schema is columns of f32 by the names of its header") {
  const CsvTable t = parsed("x,y\n1,2.5\n-3,4e2\n");
  CHECK(t.columns.size() == 2);
  CHECK(t.columns[1].first == "y");
  CHECK(values<float>(t["x"]) == Floats{1, -3});
  CHECK(values<float>(t["y"]) == Floats{2.5f, 400});
  CHECK_THROWS_AS((void)t["z"], IndexError);
}

TEST_CASE("columns of every kind are read in the order of the schema, and others are passed over") {
  const std::string text =
      "id,skip,weight,class,flag,byte,big\r\n"
      "7,\"a,\"\"b\"\"\nc\",0.1,dog,true,255,-9223372036854775808\r\n"
      "-8,,1e-3,\"cat\",FALSE,0,9223372036854775807\r\n"
      "9,x,nan,dog,1,17,\"5\"";
  const CsvTable t = parsed(text, {.columns = {{"big", CsvKind::i64},
                                               {"weight", CsvKind::f64},
                                               {"class", CsvKind::category},
                                               {"flag", CsvKind::boolean},
                                               {"byte", CsvKind::u8},
                                               {"id", CsvKind::i32}}});
  CHECK(t.columns[0].first == "big");
  CHECK(values<std::int64_t>(t["big"]) == Longs{INT64_MIN, INT64_MAX, 5});
  CHECK(values<double>(t["weight"])[0] == 0.1);
  CHECK(values<double>(t["weight"])[1] == 1e-3);
  CHECK(std::isnan(values<double>(t["weight"])[2]));
  CHECK(values<std::int64_t>(t["class"]) == Longs{1, 0, 1});
  CHECK(t.categories[2] == Words{"cat", "dog"});
  CHECK(t.categories[0].empty());
  CHECK(t["flag"].dtype() == DType::b8);
  CHECK(std::memcmp(t["flag"].get().storage->data, "\1\0\1", 3) == 0);
  CHECK(values<std::uint8_t>(t["byte"]) == std::vector<std::uint8_t>{255, 0, 17});
  CHECK(values<std::int32_t>(t["id"]) == std::vector<std::int32_t>{7, -8, 9});
}

TEST_CASE("numbers may have signs, spaces and quotes; small ones become 0, those that do not fit are refused") {
  const CsvTable t = parsed("x\n+1\n  2 \n\"3\"\n.5\n-.5\n1e-60\n1e-42\ninf\n-Infinity\n4.\n");
  const float inf = INFINITY;
  CHECK(values<float>(t["x"]) == Floats{1, 2, 3, .5f, -.5f, 0, 1e-42f, inf, -inf, 4});
  const CsvSchema doubles{.columns = {{"x", CsvKind::f64}}}, ints{.columns = {{"x", CsvKind::i32}}};
  CHECK(values<double>(parsed("x\n1e-400\n1.7976931348623157e308\n", doubles)["x"])[0] == 0);
  for (const std::string& small : Words{"1e-400", "-1e-5000", "1e-99999999999", "0." + std::string(6000, '0') + "1"}) {
    CHECK(values<float>(parsed("x\n" + small + "\n")["x"]) == Floats{0});
    CHECK(values<double>(parsed("x\n" + small + "\n", doubles)["x"])[0] == 0);
    CHECK(std::signbit(values<float>(parsed("x\n" + small + "\n")["x"])[0]) == (small[0] == '-'));
  }
  for (const std::string& large :
       Words{"1e400", "-1e5000", "1E+5000", "1e99999999999", "1" + std::string(6000, '0') + ".5"}) {
    CHECK(contains(refused("x\n" + large + "\n"), "is no f32"));
    if (large != "1e400") CHECK(contains(refused("x\n" + large + "\n", doubles), "is no f64"));
  }
  CHECK(contains(refused("x\n1e39\n"), "t.csv: line 2, column 1 ('x'): '1e39' is no f32"));
  CHECK(contains(refused("x\n1e309\n", doubles), "'1e309' is no f64"));
  CHECK(contains(refused("x\n1\n2147483648\n", ints), "line 3, column 1 ('x'): '2147483648' is no i32"));
  for (const char* bad : {"1.5", "1e2", "0x10", "--1", "+-1", "1 2", "one", "1;"}) {
    CAPTURE(bad);
    CHECK(contains(refused(std::string("x\n") + bad + "\n", ints), "is no i32"));
  }
}

TEST_CASE("missing values are NaN, the value that the schema gives, or refused") {
  const std::string text = "x,n,c\n,,\nNA,null,None\n1,2,b\n\"NA\",3,NA2\n";
  const CsvSchema schema{.columns = {{"x", CsvKind::category, {}, -1},
                                     {"n", CsvKind::i64, {}, -7},
                                     {"c", CsvKind::category, {"b", "NA2"}, 0}}};
  const CsvTable t = parsed(text, schema);
  CHECK(values<std::int64_t>(t["n"]) == Longs{-7, -7, 2, 3});
  CHECK(values<std::int64_t>(t["x"]) == Longs{-1, -1, 0, 1});  // a quoted NA is a word
  CHECK(t.categories[0] == Words{"1", "NA"});
  CHECK(values<std::int64_t>(t["c"]) == Longs{0, 0, 0, 1});
  CHECK(std::isnan(values<float>(parsed("x,y\n,1\n")["x"])[0]));
  CHECK(contains(refused("x,y\n1,2\n3,\n", {.columns = {{"y", CsvKind::i64}}}),
                 "line 3, column 2 ('y'): the value is missing; set CsvColumn::missing"));
  // Words that look like numbers also count as missing.
  CHECK(std::isnan(values<float>(parsed("x\n-999\n2\n", {.missing_words = {"-999"}})["x"])[0]));
  CHECK(values<float>(parsed("x\n-999\n2\n", {.columns = {{"x", CsvKind::f32, {}, 5}},
                                              .missing_words = {"-999"}})["x"]) == Floats{5, 2});
}

TEST_CASE("lines, quotes, delimiters and marks of every program that writes CSV are understood") {
  CHECK(values<float>(parsed("\xef\xbb\xbfx\n1\n")["x"]) == Floats{1});
  CHECK(values<float>(parsed("x\r\n\r\n1\r\n\n2\r\n\n")["x"]) == Floats{1, 2});  // empty lines
  CHECK(values<float>(parsed("x\n1\n2")["x"]) == Floats{1, 2});
  CHECK(values<float>(parsed("x\n1\n2\r")["x"]) == Floats{1, 2});
  CHECK(values<float>(parsed("a;x\n1;2\n", {.delimiter = ';'})["x"]) == Floats{2});
  CHECK(values<float>(parsed("a\tx\n1\t2\n", {.delimiter = '\t'})["x"]) == Floats{2});
  CHECK(values<float>(parsed("a,x\n'1,1',2\n", {.columns = {{"x"}}, .quote = '\''})["x"]) == Floats{2});
  CHECK(values<float>(parsed("a,x\n5\" pipe,2\n", {.columns = {{"x"}}, .quote = '\0'})["x"]) == Floats{2});
  const CsvTable none =
      parsed("1,a\n2,b\n", {.columns = {{"n", CsvKind::i64}, {"w", CsvKind::category}}, .header = false});
  CHECK(values<std::int64_t>(none["n"]) == Longs{1, 2});
  CHECK(parsed("", {.columns = {{"n"}}, .header = false})["n"].shape() == Shape{0});
  CHECK(parsed("x,y\n")["y"].shape() == Shape{0});
  const CsvTable words =
      parsed("w,x\n\"two\nlines, \"\"quoted\"\"\",1\n\"\",2\n", {.columns = {{"w", CsvKind::category}}});
  CHECK(words.categories[0] == Words{"", "two\nlines, \"quoted\""});
  CHECK(values<float>(parsed("\"x \"\"1\"\"\",y\n1,2\n")["x \"1\""]) == Floats{1});
}

TEST_CASE("wrong records are refused with line and column, lines inside of quotes counted") {
  CHECK(contains(refused(""), "t.csv: is empty, expected a header"));
  CHECK(contains(refused("x,y\n1,2\n1\n"), "line 3: has 1 fields, expected 2"));
  CHECK(contains(refused("x,y\n1,2,3,4\n"), "line 2: has 4 fields, expected 2"));
  const CsvSchema y{.columns = {{"y"}}};
  CHECK(contains(refused("x,y\n\"a\nb\n\",1\n\n2,q\n", y), "line 6, column 2 ('y'): 'q' is no f32"));
  CHECK(contains(refused("x,y\n\"a\" ,1\n", y), "line 2, column 1 ('x'): bytes follow a closing quote"));
  CHECK(contains(refused("x,y\na\"b\",1\n", y), "line 2, column 1 ('x'): a quote inside of a field"));
  CHECK(contains(refused("x,y\n1,2\n\"a,1\n", y), "line 3, column 1 ('x'): a quoted field does not end"));
  CHECK(contains(refused("x,x\n1,2\n"), "line 1: has column 'x' more than once"));
  CHECK(contains(refused("x,z\n1,2\n", y), "line 1: has no column 'y', the first are 'x' 'z'"));
  CHECK(
      contains(refused("1,2\n", {.columns = {{"a"}}, .header = false}), "has 2 fields, expected the 1 of the schema"));
  const CsvSchema given{.columns = {{"y", CsvKind::category, {"a", "b"}}}};
  CHECK(contains(refused("y\na\nc\n", given), "line 3, column 1 ('y'): 'c' is none of the column's 2 categories"));
  CHECK(contains(refused("y\n\xff\n", {.columns = {{"y", CsvKind::category}}}), "the word is not UTF-8"));
  CHECK(contains(refused("\xff,y\n1,2\n", y), "line 1, column 1: the name is not UTF-8"));
  CHECK(contains(refused("y\nyes\n", {.columns = {{"y", CsvKind::boolean}}}), "'yes' is no boolean"));
  CHECK(contains(refused("x,y\n\"" + std::string(3 << 20, 'a') + "\",1\n", y), "line 2: the record has more than"));
  CHECK(contains(refused("x,y\n1,2\n" + std::string(3 << 20, '1') + ",1\n", y), "line 3: the record has more than"));
  CHECK(contains(refused(std::string(kCsvColumns, ',') + "\n"), "more than 100000 columns"));
  const TemporaryFolder folder;
  CHECK_THROWS_AS((void)load_csv(folder.path()), FileError);
  CHECK_THROWS_AS((void)load_csv(folder / "absent.csv"), FileError);
}

TEST_CASE("a schema that contradicts itself is refused before the file is read") {
  const auto wrong = [](const CsvSchema& schema) { CHECK_THROWS_AS((void)parsed("x\n1\n", schema), ConfigError); };
  wrong({.delimiter = '"'});
  wrong({.delimiter = '.'});
  wrong({.delimiter = 'e'});
  wrong({.delimiter = '\n'});
  wrong({.delimiter = '\0'});
  wrong({.quote = '-'});
  wrong({.header = false});
  wrong({.columns = {{"x"}, {"x"}}});
  wrong({.columns = {{"x", CsvKind::f32, {"a"}}}});
  wrong({.columns = {{"x", CsvKind::category, {"a", "a"}}}});
  wrong({.columns = {{"x", CsvKind::category, {"a"}, 1}}});
  wrong({.columns = {{"x", CsvKind::category, {}, 0}}});
  wrong({.columns = {{"x", CsvKind::u8, {}, 256}}});
  wrong({.columns = {{"x", CsvKind::i64, {}, 0.5}}});
  wrong({.columns = {{"x", CsvKind::i64, {}, std::nan("")}}});
  wrong({.columns = {{"x", static_cast<CsvKind>(99)}}});
}

TEST_CASE("a file of many blocks reads like one of one block, whichever bytes a block ends with") {
  std::string text = "n,w,x\n";
  Longs expected;
  for (int i = 0; text.size() < 5 * kCsvRecord; ++i) {
    const auto n = static_cast<std::int64_t>(i) * 7919 % 1000003;
    expected.push_back(n);
    text += levin::text(n) + ",\"" + std::string(static_cast<std::size_t>(i % 977), 'q') + "\"\"\r\n\"," +
            levin::text(i) + (i % 3 ? "\r\n" : "\n");
  }
  const CsvSchema schema{.columns = {{"n", CsvKind::i64}, {"x", CsvKind::i64}}};
  for (const std::size_t block : {std::size_t{1}, kCsvRecord + 3, kCsvBlock, std::size_t{1} << 30}) {
    const CsvTable t = parsed(text, schema, block);
    CHECK(values<std::int64_t>(t["n"]) == expected);
    CHECK(values<std::int64_t>(t["x"]).back() == static_cast<std::int64_t>(expected.size()) - 1);
  }
}

TEST_CASE("a file whose rows become shorter has more rows than its beginning promised, and they are all read") {
  std::string text = "x\n";
  Floats expected;
  for (int i = 0; i < 60'000; ++i) {
    text += levin::text(i % 10) + (i < 300 ? "." + std::string(200, '0') : "") + "\n";
    expected.push_back(static_cast<float>(i % 10));
  }
  CHECK(values<float>(parsed(text)["x"]) == expected);
}

TEST_CASE("a CSV file of more bytes than any memory is refused, and not read to its end") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "x.csv", "x\n1\n");
  for (const std::uintmax_t bytes : {std::uintmax_t{9223372036854775807}, std::uintmax_t{1} << 43}) {
    std::error_code refused;
    std::filesystem::resize_file(folder / "x.csv", bytes, refused);  // sparse, where it can be made
    if (!refused) CHECK_THROWS_AS((void)load_csv(folder / "x.csv"), Error);
  }
}

TEST_CASE("CSV numbers do not depend on the locale") {
  const char* before = std::setlocale(LC_NUMERIC, nullptr);
  const std::string kept = before ? before : "C";
  for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "C.UTF-8"}) {
    if (std::setlocale(LC_NUMERIC, name) == nullptr) continue;
    CHECK(values<float>(parsed("x\n1.5\n1e-60\n\" 2.25\"\n")["x"]) == Floats{1.5f, 0, 2.25f});
  }
  std::setlocale(LC_NUMERIC, kept.c_str());
}

TEST_CASE("lines and columns without values cost memory of the file's size, not of their product") {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += ",c" + levin::text(i);
  text = text.substr(1) + std::string(100000, '\n');  // 20,000 columns, 100,000 empty lines
  reset_peak_memory(Device::cpu());
  const std::int64_t before = memory_stats(Device::cpu()).peak;
  const CsvTable t = parsed(text);
  CHECK(t.columns.size() == 20000);
  CHECK(t.columns[0].second.numel() == 0);
  CHECK(memory_stats(Device::cpu()).peak - before < 16 << 20);
}

TEST_CASE("columns of a CSV table become the fields of samples") {
  const CsvTable t = parsed("a,b,y\n1,2,0\n3,4,1\n", {.columns = {{"a"}, {"b"}, {"y", CsvKind::i64}}});
  const DatasetRef data = csv_dataset(t, {{"b", "a"}, {"y"}});
  CHECK(data->size() == 2);
  Generator rng(0);
  const Sample sample = data->get(1, rng);
  CHECK(values<float>(sample[0]) == Floats{4, 3});
  CHECK(sample[1].shape() == Shape{});
  CHECK(sample[1].data<std::int64_t>()[0] == 1);
  CHECK_THROWS_AS((void)csv_dataset(t, {{"a", "y"}}), DTypeError);
  CHECK_THROWS_AS((void)csv_dataset(t, {{"q"}}), IndexError);
  CHECK_THROWS_AS((void)csv_dataset(t, {{}}), ConfigError);
}
