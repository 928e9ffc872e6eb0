#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>

#include "levin/data/readers.h"

namespace levin::data {
namespace {

constexpr std::string_view kRead[] = {".jpg", ".jpeg", ".png"};
constexpr std::string_view kNotRead[] = {".bmp", ".pgm", ".ppm", ".tif", ".tiff", ".webp"};

bool ends_in(const std::string& name, std::span<const std::string_view> endings) {
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);  // in any locale
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view e) { return lower.ends_with(e); });
}

struct Entries {
  std::vector<std::string> folders{}, files{};  // names, sorted
};
Entries entries_of(const std::string& folder) {
  const auto close = [](DIR* d) { ::closedir(d); };
  const std::unique_ptr<DIR, decltype(close)> all(::opendir(folder.c_str()), close);
  if (!all) fail<FileError>(folder, ": is no folder that can be read: ", std::generic_category().message(errno));
  Entries entries;
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(all.get());
    if (!entry && errno != 0)
      fail<FileError>(folder, ": reading the folder failed: ", std::generic_category().message(errno));
    if (!entry) break;
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat info {};
    const bool is_folder = ::stat((folder + "/" + name).c_str(), &info) == 0 && S_ISDIR(info.st_mode);
    (is_folder ? entries.folders : entries.files).push_back(name);
  }
  std::sort(entries.folders.begin(), entries.folders.end());
  std::sort(entries.files.begin(), entries.files.end());
  return entries;
}

// The pictures below a folder in the order of their folders' paths. A folder that links lead to again is read once.
std::vector<std::string> pictures_below(const std::string& top) {
  std::vector<std::string> waiting{top}, folders, pictures;
  std::set<std::pair<dev_t, ino_t>> seen;
  std::vector<Entries> content;
  while (!waiting.empty()) {
    const std::string folder = waiting.back();
    waiting.pop_back();
    struct stat info {};
    if (::stat(folder.c_str(), &info) == 0 && !seen.insert({info.st_dev, info.st_ino}).second) continue;
    Entries entries = entries_of(folder);
    for (const std::string& name : entries.folders) waiting.push_back(folder + "/" + name);
    for (const std::string& name : entries.files) {
      if (ends_in(name, kNotRead)) {
        fail<UnsupportedError>(folder, "/", name, ": is in a format that is not read; convert it to PNG or JPEG");
      }
      if (ends_in(name, kRead)) pictures.push_back(folder + "/" + name);
    }
  }
  // torchvision's order: by folder, then by name.
  const auto key = [](const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return std::pair(std::string_view(path).substr(0, slash), std::string_view(path).substr(slash + 1));
  };
  std::sort(pictures.begin(), pictures.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return pictures;
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root, const ImageFolderOptions& options) : options_(options) {
  if (options_.size && std::min(options_.size->height, options_.size->width) < 1) {
    fail<ConfigError>("ImageFolder: the size is ", options_.size->height, " x ", options_.size->width,
                      ", expected sides of 1 or more");
  }
  classes_ = entries_of(root).folders;
  if (classes_.empty()) fail<FileError>(root, ": has no folders, expected one for each class");
  for (std::size_t label = 0; label < classes_.size(); ++label) {
    const std::string folder = root + "/" + classes_[label];
    const std::vector<std::string> pictures = pictures_below(folder);
    if (pictures.empty()) fail<FileError>(folder, ": has no files that end in .png, .jpg or .jpeg");
    for (const std::string& path : pictures) files_.push_back({path, static_cast<std::int64_t>(label)});
  }
}

ImageFolder::~ImageFolder() = default;

Sample ImageFolder::get(std::int64_t index, Generator&) const {
  if (index < 0 || index >= size()) fail<IndexError>("ImageFolder: index is ", index, ", expected 0 to ", size() - 1);
  const File& file = files_[static_cast<std::size_t>(index)];
  Tensor image = load_image(file.path, options_.colors);
  if (options_.size) image = resize_image(image, *options_.size);
  const std::int64_t height = image.size(0), width = image.size(1), channels = image.rank() == 2 ? 1 : 3;
  Tensor planes = empty({channels, height, width}, Device::cpu(), DType::u8);
  Tensor label = empty({}, Device::cpu(), DType::i64);
  const std::uint8_t* from = image.data<std::uint8_t>();
  std::uint8_t* to = planes.mutable_data<std::uint8_t>();
  const std::int64_t pixels = height * width;
  for (std::int64_t i = 0; i < pixels; ++i) {
    for (std::int64_t c = 0; c < channels; ++c) to[c * pixels + i] = *from++;
  }
  *label.mutable_data<std::int64_t>() = file.label;
  return {planes, label};
}

}  // namespace levin::data
