// Readers of datasets: CIFAR-10, JPEG, folders of images, CSV, .npz.
//
// Readers check a file before anything changes and throw FileError for one that cannot be read (absent, a folder,
// without permission), FormatError with file, position, actual and expected value for other content than expected, and
// OutOfMemoryError where its content does not fit. A packed file is known by its first bytes, not by its name. A build
// without libjpeg or liblzma throws UnsupportedError for JPEG or xz files (Meson's options `jpeg` and `lzma`).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/data.h"
#include "levin/serialize.h"

namespace levin::data {

// ---- CIFAR-10 in its binary version: https://www.cs.toronto.edu/~kriz/cifar.html, plain, gzip or xz

// Pictures and labels as they are in the files.
struct Cifar10 {
  Tensor images;                     // u8 [N, 3, 32, 32]: planes red, green, blue
  Tensor labels;                     // u8 [N], 0 to 9
  std::vector<std::string> files{};  // that were read, in order
};
// The files of `dir`, each as it is or with .gz or .xz after its name. train: data_batch_1.bin to data_batch_5.bin.
// test: test_batch.bin; where that is absent test_batch_first1000.bin, a file of the first 1,000 of its 10,000 records,
// on which an accuracy is no test accuracy: `files` names what was read. Throws FileError when a file is absent.
[[nodiscard]] LEVIN_API Cifar10 load_cifar10(const std::string& dir, Split split);
// Any files of such records, in this order: load_cifar10_files({"data_batch_5.bin.xz"}). Several files are unpacked at
// once. Throws FormatError for a file that is damaged, empty, no whole number of 3,073-byte records, has a label over 9
// or unpacks to more than 256 MiB and 64 times its size; ConfigError for no files.
[[nodiscard]] LEVIN_API Cifar10 load_cifar10_files(const std::vector<std::string>& files);
// True when load_cifar10 finds all files of the split.
[[nodiscard]] LEVIN_API bool has_cifar10(const std::string& dir, Split split);
// The names of the ten classes in the order of labels, from batches.meta.txt: "airplane", "automobile" and so on.
[[nodiscard]] LEVIN_API std::vector<std::string> cifar10_classes(const std::string& dir);
// The same pictures as samples {f32 [3, 32, 32], i64 []}, each channel (x / 255 - mean) / std.
[[nodiscard]] LEVIN_API DatasetRef cifar10(const std::string& dir, Split split,
                                           const std::array<Normalization, 3>& channels = {});
// The usual normalization of CIFAR-10: mean and deviation of each channel of the training pixels.
inline constexpr std::array<Normalization, 3> kCifar10Normalization{{{0.4914f, 0.2470f},  //
                                                                     {0.4822f, 0.2435f},
                                                                     {0.4465f, 0.2616f}}};

// ---- Images, known by their first bytes: u8 [H, W] grey or [H, W, 3] RGB, on cpu, as load_png gives and save_png
// takes them. An orientation that EXIF notes, and colour profiles, are not applied.

// A JPEG file, baseline or progressive, of 8 bits a sample; pixels as Pillow and torchvision decode them. CMYK becomes
// RGB. Throws FormatError for a damaged or cut file, also where libjpeg would guess lost pixels, for other kinds of
// JPEG, and for more than 2^28 pixels.
[[nodiscard]] LEVIN_API Tensor load_jpeg(const std::string& path);
// PNG or JPEG. With `colors` a grey image becomes RGB by three equal channels, an RGB image grey by 0.299 R + 0.587 G +
// 0.114 B.
enum class Colors : std::uint8_t { rgb, grey };
[[nodiscard]] LEVIN_API Tensor load_image(const std::string& path);
[[nodiscard]] LEVIN_API Tensor load_image(const std::string& path, Colors colors);
// An image scaled to height x width by a triangle filter over all pixels that a new pixel covers (bilinear with
// antialias), along rows, then along columns, each rounded: the pixels of Pillow and torchvision.transforms.Resize,
// which may differ by 1 where they begin with columns. Throws DTypeError and ShapeError unless the image is u8 [H, W]
// or [H, W, 3] on cpu, ConfigError for a side that is not 1 to 2^20.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
};
[[nodiscard]] LEVIN_API Tensor resize_image(const Tensor& image, ImageSize size);

struct ImageFolderOptions {
  Colors colors = Colors::rgb;
  std::optional<ImageSize> size{};  // scales each image to this size by resize_image, whatever its shape
};
// Images in a folder for each class, as torchvision's ImageFolder: root/cat/1.jpg, root/dog/a/2.png. Class k is folder
// k in the order of names' bytes; its images are the files below it, also through links, whose names end in .png, .jpg
// or .jpeg, in the order of their folders and names. Sample: {u8 [C, H, W], i64 []}, C = 3 for RGB and 1 for grey, the
// layout that transforms take. Images keep their sizes unless `size` is given; the loader does not stack unequal ones
// (ShapeError).
//
// Files are listed once, and each is read when its sample is. Throws FileError where a folder cannot be read, there is
// no class, or a class has no image; UnsupportedError for files that end in .bmp, .pgm, .ppm, .tif, .tiff or .webp.
class LEVIN_API ImageFolder final : public Dataset {
 public:
  // A file and the index of its class.
  struct File {
    std::string path;
    std::int64_t label = 0;
  };
  explicit ImageFolder(const std::string& root, const ImageFolderOptions& options = {});
  ~ImageFolder() override;
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  [[nodiscard]] Sample get(std::int64_t index, Generator& rng) const override;
  [[nodiscard]] const std::vector<std::string>& classes() const { return classes_; }  // names, by label
  [[nodiscard]] const std::vector<File>& files() const { return files_; }             // by index

 private:
  ImageFolderOptions options_;
  std::vector<std::string> classes_;
  std::vector<File> files_;
};

// ---- CSV: columns of a text file as tensors, after RFC 4180, in any locale

// What a column holds.
enum class CsvKind : std::uint8_t {
  f32,  // decimal: 1, -2.5, +1e-3, inf, nan
  f64,
  i32,  // whole numbers
  i64,
  u8,
  boolean,   // true, True, TRUE, 1 and false, False, FALSE, 0, as bool
  category,  // words, as i64 indices
};
struct CsvColumn {
  std::string name;  // in the header; without a header the column's name in the result
  CsvKind kind = CsvKind::f32;
  std::vector<std::string> categories{};  // of `category`: index k is word k. Empty: the words that occur, sorted
  std::optional<double> missing{};        // the value of a missing field; by default NaN for f32 and f64
};
struct CsvSchema {
  std::vector<CsvColumn> columns{};  // to read, in this order; empty: all, as f32
  bool header = true;                // the first record has the names. Else column k of the file is columns[k]
  char delimiter = ',';
  char quote = '"';  // '\0': none
  // Fields that count as missing, quoted ones excepted.
  std::vector<std::string> missing_words{"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"};
};
struct CsvTable {
  NamedTensors columns;                              // each [rows], in the schema's order
  std::vector<std::vector<std::string>> categories;  // of each column; empty where its kind is another
  // Throws IndexError when there is no such column.
  [[nodiscard]] LEVIN_API const Tensor& operator[](std::string_view name) const;
};
// Reads the columns of the schema; others may hold anything. Lines end in LF or CRLF, empty lines are passed over, a
// byte order mark is ignored, spaces around a number are, too. A quoted field may hold delimiters, line ends and
// doubled quotes. Throws FormatError with line and column, both from 1, for a record with another number of fields than
// the first, a value that its kind cannot hold (1.5 or 300 as u8, 1e39 as f32), a missing value of a column without
// `missing` that is neither f32 nor f64, a word that is not among given categories, a quote in the wrong place, words
// that are not UTF-8, a record of more than 1 MiB, more than 100,000 columns or 2^20 words in a column; for a name that
// the header lacks or has twice. Throws ConfigError for a schema that contradicts itself. Memory: at most 16 times
// the file, beside words.
[[nodiscard]] LEVIN_API CsvTable load_csv(const std::string& path, const CsvSchema& schema = {});
// Rows as samples, a field for each group of columns: csv_dataset(table, {{"width", "height"}, {"species"}}) has
// samples {f32 [2], i64 []}. A group of one column gives [], of K columns [K]. Throws IndexError for a name that the
// table lacks, DTypeError for a group of several dtypes, ConfigError for an empty group.
[[nodiscard]] LEVIN_API DatasetRef csv_dataset(const CsvTable& table,
                                               const std::vector<std::vector<std::string>>& fields);

// ---- .npz: NumPy's arrays in a zip file

struct NpzLimits {
  std::uint64_t unpacked_bytes = std::uint64_t{1} << 36;  // of all arrays together
};
// What numpy.savez and savez_compressed write, zip64 included: each member `name.npy`, stored or deflated, read as
// load_npy does, in the file's order. Throws FormatError for a damaged or cut file, a member whose check sum is wrong,
// whose headers contradict each other or that overlaps another, one that is encrypted, packed in another way or no
// array, names that are not unique, valid UTF-8 of at most 512 bytes below the archive, over 10,000 members, and arrays
// of more than NpzLimits allows. Before a member is unpacked, its size is checked against the bytes in the file.
[[nodiscard]] LEVIN_API NamedTensors load_npz(const std::string& path, NpzLimits limits = {});
// Written by write_file_atomically; the same tensors give the same bytes. numpy.load reads it. Throws DTypeError for
// bf16, UnsupportedError for meta tensors, ConfigError for names that load_npz refuses.
enum class NpzPacking : std::uint8_t { stored, deflated };
LEVIN_API void save_npz(const std::string& path, const NamedTensors& tensors, NpzPacking packing = NpzPacking::stored);

}  // namespace levin::data
