#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "levin/data.h"
#include "levin/serialize.h"
#include "tests/temporary.h"

using namespace levin;
using namespace levin::data;
using levin::test::TemporaryFolder;

namespace {

Tensor picture(const Shape& shape) {
  Tensor x = empty(shape, Device::cpu(), DType::u8);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.mutable_data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 37 + i / 7);
  return x;
}
std::vector<std::uint8_t> values(const Tensor& x) {
  return {x.data<std::uint8_t>(), x.data<std::uint8_t>() + x.numel()};
}

}  // namespace

TEST_CASE("grey and colour pictures come back from PNG byte for byte") {
  const TemporaryFolder folder;
  for (const Shape& shape : {Shape{1, 1}, Shape{28, 28}, Shape{3, 200}, Shape{5, 7, 3}}) {
    const Tensor x = picture(shape);
    save_png(folder / "x.png", x);
    const Tensor y = load_png(folder / "x.png");
    CHECK(y.shape() == shape);
    CHECK(values(y) == values(x));
  }
  const Tensor x = picture({4, 6});
  save_png(folder / "t.png", as_strided(x, {6, 4}, Strides{{1, 6}}, 0));
  CHECK(load_png(folder / "t.png").data<std::uint8_t>()[1] == x.data<std::uint8_t>()[6]);
}

TEST_CASE("what is no picture is not written") {
  const TemporaryFolder folder;
  const std::string path = folder / "x.png";
  CHECK_THROWS_AS(save_png(path, empty({2, 2}, Device::cpu())), DTypeError);
  CHECK_THROWS_AS(save_png(path, picture({4})), ShapeError);
  CHECK_THROWS_AS(save_png(path, picture({4, 4, 4})), ShapeError);
  CHECK_THROWS_AS(save_png(path, picture({0, 4})), ShapeError);
  CHECK(!std::filesystem::exists(path));
}

TEST_CASE("a PNG file that is cut or damaged is a FormatError that names it") {
  const TemporaryFolder folder;
  save_png(folder / "good.png", picture({9, 9}));
  const std::string good = read_file(folder / "good.png", 10000);
  std::size_t refused = 0, wrong = 0;
  const auto attempt = [&](const std::string& bytes) {
    std::FILE* file = std::fopen((folder / "bad.png").c_str(), "wb");
    std::fwrite(bytes.data(), 1, bytes.size(), file);
    std::fclose(file);
    try {
      (void)load_png(folder / "bad.png");
    } catch (const FormatError& e) { refused += std::string(e.what()).starts_with(folder / "bad.png: "); } catch (...) {
      ++wrong;
    }
  };
  // The last 12 bytes are the closing chunk: without it all pixels are present.
  for (std::size_t n = 0; n < good.size() - 12; ++n) attempt(good.substr(0, n));
  CHECK(refused >= good.size() - 12 - 8);
  for (std::size_t bit = 0; bit < 33 * 8; ++bit) {  // signature and header
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    attempt(bad);
  }
  CHECK(wrong == 0);
  CHECK_THROWS_AS((void)load_png(folder / "absent.png"), FileError);
}

TEST_CASE("a PNG chunk that claims more bytes than the file has is refused before memory is taken for it") {
  const TemporaryFolder folder;
  save_png(folder / "x.png", picture({3, 3}));
  std::string content = read_file(folder / "x.png", 10000);
  constexpr std::size_t kBehindHeader = 33;
  content.insert(kBehindHeader, std::string("\x60\0\0\0eXIf", 8));  // 1.6 GB
  write_file_atomically(folder / "x.png", content);
  std::string message;
  try {
    (void)load_png(folder / "x.png");
  } catch (const FormatError& e) { message = e.what(); }
  CHECK(message.find("the chunk at byte 33 claims 1610612736 bytes, the file has ") != std::string::npos);
}

TEST_CASE("a contact sheet puts pictures side by side with a line around each") {
  Tensor images = empty({3, 2, 2}, Device::cpu(), DType::u8);
  for (std::int64_t i = 0; i < 12; ++i) images.mutable_data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i + 1);
  const Tensor sheet = contact_sheet(images, 2, 0);
  CHECK(sheet.shape() == Shape{7, 7});
  CHECK(values(sheet) == std::vector<std::uint8_t>{0, 0,  0,  0, 0, 0, 0,  //
                                                   0, 1,  2,  0, 5, 6, 0,  //
                                                   0, 3,  4,  0, 7, 8, 0,  //
                                                   0, 0,  0,  0, 0, 0, 0,  //
                                                   0, 9,  10, 0, 0, 0, 0,  //
                                                   0, 11, 12, 0, 0, 0, 0,  //
                                                   0, 0,  0,  0, 0, 0, 0});
  CHECK(contact_sheet(images, 100).shape() == Shape{4, 10});
  CHECK_THROWS_AS((void)contact_sheet(images, 0), ConfigError);
  CHECK_THROWS_AS((void)contact_sheet(picture({2, 2}), 1), ShapeError);
  CHECK_THROWS_AS((void)contact_sheet(empty({1, 2, 2}, Device::cpu()), 1), DTypeError);
}
