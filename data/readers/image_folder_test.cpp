#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstddef>

#include <filesystem>
#include <functional>
#include <memory>

#include "data/image.h"
#include "levin/data/readers.h"
#include "levin/memory.h"
#include "levin/serialize.h"
#include "tensor/core/formats_test.h"
#include "tests/skip.h"
#include "tests/temporary.h"
#include "tests/where.h"

using namespace levin;
using namespace levin::data;
using namespace levin::test;

namespace {

namespace fs = std::filesystem;

Tensor picture(const Shape& shape) {
  Tensor x = empty(shape, Device::cpu(), DType::u8);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.mutable_data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 37 + i / 7);
  return x;
}
Tensor filled(const Shape& shape, int value) {
  Tensor x = empty(shape, Device::cpu(), DType::u8);
  std::fill_n(x.mutable_data<std::uint8_t>(), x.numel(), static_cast<std::uint8_t>(value));
  return x;
}
unsigned long checksum(const Tensor& x) { return crc32(0, x.data<std::uint8_t>(), static_cast<uInt>(x.numel())); }
std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "";
}
void save(const std::string& path, const Tensor& image) {
  fs::create_directories(fs::path(path).parent_path());
  save_png(path, image);
}
std::vector<std::uint8_t> values(const Tensor& x) {
  return {x.data<std::uint8_t>(), x.data<std::uint8_t>() + x.numel()};
}

}  // namespace

TEST_CASE("images are known by their first bytes, and become RGB or grey on request") {
  const TemporaryFolder folder;
  save(folder / "named.jpg", picture({5, 7, 3}));
  CHECK(load_image(folder / "named.jpg").shape() == Shape{5, 7, 3});
  CHECK(load_image(folder / "named.jpg", Colors::rgb).shape() == Shape{5, 7, 3});
  const Tensor grey = load_image(folder / "named.jpg", Colors::grey);
  CHECK(grey.shape() == Shape{5, 7});
  CHECK(checksum(grey) == 0x9330df5bu);  // Pillow's convert("L")
  save(folder / "grey.png", picture({1, 2}));
  CHECK(values(load_image(folder / "grey.png", Colors::rgb)) == std::vector<std::uint8_t>{0, 0, 0, 37, 37, 37});
  write_file_atomically(folder / "x.png", "GIF89a");
  CHECK(contains(message_of([&] { (void)load_image(folder / "x.png"); }), "it begins with bytes 71 73 70 56,"));
  write_file_atomically(folder / "empty.png", "");
  CHECK_THROWS_AS((void)load_image(folder / "empty.png"), FormatError);
  CHECK_THROWS_AS((void)load_image(folder.path()), FileError);
}

TEST_CASE("resize_image gives Pillow's pixels: smaller, larger, both, and one pixel") {
  struct Known {
    Shape shape;
    ImageSize to;
    unsigned long sum;  // CRC-32 of Pillow's resize(..., Image.BILINEAR)
  };
  const Known all[] = {
      {{13, 17, 3}, {5, 8}, 0x109cc3edu}, {{5, 4, 3}, {11, 9}, 0xdb8f58a0u}, {{7, 31}, {31, 7}, 0xe7527ac2u},
      {{40, 40}, {40, 3}, 0x68aac160u},   {{1, 1, 3}, {4, 5}, 0x8eb45bacu},  {{64, 48, 3}, {1, 1}, 0xc8f1ffebu},
  };
  for (const Known& known : all) {
    CAPTURE(known.shape.rank());
    const Tensor x = resize_image(picture(known.shape), known.to);
    CHECK(x.size(0) == known.to.height);
    CHECK(x.size(1) == known.to.width);
    CHECK(checksum(x) == known.sum);
  }
  CHECK_THROWS_AS((void)resize_image(picture({2, 2}), {0, 1}), ConfigError);
  CHECK_THROWS_AS((void)resize_image(picture({2, 2}), {1, std::int64_t{1} << 40}), ConfigError);
  CHECK_THROWS_AS((void)resize_image(picture({2, 2, 4}), {1, 1}), ShapeError);
  CHECK_THROWS_AS((void)resize_image(picture({0, 2}), {1, 1}), ShapeError);
  CHECK_THROWS_AS((void)resize_image(empty({2, 2}, Device::cpu()), {1, 1}), DTypeError);
}

TEST_CASE("an image folder has a class for each folder, in the order of names, and its files below") {
  const TemporaryFolder folder;
  save(folder / "dog/b.PNG", filled({2, 3, 3}, 4));
  save(folder / "dog/a/z.png", filled({2, 3, 3}, 3));
  save(folder / "dog/a.png", filled({2, 3}, 2));
  save(folder / "Cat/1.png", picture({2, 3, 3}));
  write_file_atomically(folder / "dog/notes.txt", "no image");
  write_file_atomically(folder / "list.png", "beside the classes");
  fs::create_directory_symlink(folder / "dog", folder / "dog/loop");
  const ImageFolder data(folder.path());
  CHECK(data.classes() == std::vector<std::string>{"Cat", "dog"});
  CHECK(data.size() == 4);
  std::vector<std::string> names;
  for (const auto& file : data.files()) names.push_back(fs::relative(file.path, folder.path()).string());
  // The files of a folder before those of the folders below it, each sorted.
  CHECK(names == std::vector<std::string>{"Cat/1.png", "dog/a.png", "dog/b.PNG", "dog/a/z.png"});
  CHECK(data.files()[3].label == 1);
  Generator rng(0);
  const Sample cat = data.get(0, rng), dog = data.get(1, rng);
  CHECK(cat[0].shape() == Shape{3, 2, 3});
  CHECK(cat[0].data<std::uint8_t>()[6 + 2] == picture({2, 3, 3}).data<std::uint8_t>()[2 * 3 + 1]);  // green of pixel 2
  CHECK(cat[1].data<std::int64_t>()[0] == 0);
  CHECK(values(dog[0]) == std::vector<std::uint8_t>(18, 2));
  CHECK(dog[1].data<std::int64_t>()[0] == 1);
  CHECK_THROWS_AS((void)data.get(4, rng), IndexError);
  CHECK(ImageFolder(folder.path(), {.colors = Colors::grey}).get(0, rng)[0].shape() == Shape{1, 2, 3});
}

TEST_CASE("images of several sizes are not stacked, unless the folder scales them") {
  const TemporaryFolder folder;
  save(folder / "a/1.png", filled({4, 6, 3}, 10));
  save(folder / "a/2.png", filled({9, 5, 3}, 20));
  const auto batch = [&](const ImageFolderOptions& options) {
    DataLoader loader(std::make_shared<ImageFolder>(folder.path(), options), {.batch_size = 2, .num_workers = 2});
    return (*loader.begin())[0];
  };
  CHECK_THROWS_AS((void)batch({}), ShapeError);
  const Tensor x = batch({.size = ImageSize{3, 3}});
  CHECK(x.shape() == Shape{2, 3, 3, 3});
  CHECK(x.data<std::uint8_t>()[0] == 10);
  CHECK(x.data<std::uint8_t>()[53] == 20);
  CHECK_THROWS_AS((void)batch({.size = ImageSize{3, -1}}), ConfigError);
}

TEST_CASE("an image folder that the disk stops to list is an error, and not a shorter list") {
  const TemporaryFolder folder;
  save(folder / "a/1.png", filled({4, 6, 3}, 10));
  const pid_t child = ::fork();
  if (child == 0) {  // the kernel answers each getdents64 of the child by EIO
    sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getdents64, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog program{4, rules};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
      ::_exit(2);
    ::_exit(contains(message_of([&] { ImageFolder data(folder.path()); }), "reading the folder failed: ") ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) return skip("no seccomp");
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("an image folder without classes or images, or with a damaged or unread one, is refused by name") {
  const TemporaryFolder folder;
  CHECK(contains(message_of([&] { ImageFolder data(folder.path()); }), "has no folders, expected one for each class"));
  CHECK(contains(message_of([&] { ImageFolder data(folder / "absent"); }), "absent: is no folder that can be read"));
  fs::create_directory(folder / "cat");
  CHECK(contains(message_of([&] { ImageFolder data(folder.path()); }), "cat: has no files that end in .png"));
  write_file_atomically(folder / "cat/1.png", "damaged");
  fs::create_directory(folder / "cat/2.png");  // a folder that is named like an image
  const ImageFolder data(folder.path());
  Generator rng(0);
  CHECK(data.size() == 1);
  CHECK(contains(message_of([&] { (void)data.get(0, rng); }), "cat/1.png: is neither PNG nor JPEG"));
  write_file_atomically(folder / "cat/3.WebP", "RIFF");
  CHECK(contains(message_of([&] { ImageFolder again(folder.path()); }), "3.WebP: is in a format that is not read"));
}
