#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "data/store/mapping.h"
#include "data/store/samples.h"
#include "levin/data/store.h"
#include "tensor/files/file.h"

// Note [Record files]
// A record file has the bytes of a store. Section "key" is the key; "first" has the first sample of each chunk, and at
// its end the number of samples; "fields" has the number of fields of each chunk; then come the fields of the chunks in
// order, each stacked over the samples of its chunk. A chunk ends where the shape of a sample changes.
namespace levin::data {
namespace {

using namespace store;
constexpr std::uint64_t kAlignment = 64;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20, kChunkSamples = 4096;

[[noreturn]] void fail_system(const std::string& where, const char* what) {
  fail<FileError>(where, ": ", what, " failed: ", std::generic_category().message(errno));
}

// A file that no other writer has: Note [Temporary files of the dead].
struct Temporary {
  explicit Temporary(const std::string& path) {
    struct stat made {};
    do {
      do {  // a process of another container may have our number
        name = levin::detail::temporary_name(path);
        file = Descriptor(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      } while (file.get() < 0 && errno == EEXIST);
      if (file.get() < 0) fail_system(name, "making the file");
      (void)::flock(file.get(), LOCK_EX | LOCK_NB);
    } while (::fstat(file.get(), &made) == 0 && made.st_nlink == 0);  // it looked stale before it was locked
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!kept) ::unlink(name.c_str());
  }

  std::string name;
  Descriptor file;
  bool kept = false;
};

class Writer {
 public:
  explicit Writer(const std::string& path) : path_(path), temporary_(path) {
    append(std::array<std::byte, kHeader>{}.data(), kHeader);
  }

  void add(Sample sample) {
    if (!chunk_.empty() && !are_alike(chunk_.front(), sample)) flush();
    for (const Tensor& t : sample) bytes_ += levin::detail::bytes_of(t).size();
    chunk_.push_back(std::move(sample));
    ++samples_;
    if (bytes_ >= kChunkBytes || chunk_.size() >= kChunkSamples) flush();
  }

  void finish(const std::string& key) {
    flush();
    first_.push_back(samples_);
    Tensor letters = empty({static_cast<std::int64_t>(key.size())}, Device::cpu(), DType::u8);
    if (!key.empty()) std::memcpy(letters.mutable_data<std::uint8_t>(), key.data(), key.size());
    section("key", letters);
    section("first", list(first_));
    section("fields", list(fields_));
    const std::uint64_t table_at = end_;
    append(table_.data(), table_.size());
    std::array<std::byte, kHeader> header{};
    write_header(header.data(), end_, sections_, table_at, table_);
    alignas(4) std::array<std::byte, kHeader> complete = header;
    set_ready(complete.data());
    put(complete.data(), complete.size(), 0);
    if (::fsync(temporary_.file.get()) != 0 && errno != EINVAL && errno != EROFS) fail_system(temporary_.name, "fsync");
    if (::rename(temporary_.name.c_str(), path_.c_str()) != 0)
      fail_system(path_, "renaming the complete file to this name");
    temporary_.kept = true;
    const std::string folder = path_.substr(0, path_.find_last_of('/') + 1);
    const Descriptor directory(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory.get() >= 0) (void)::fsync(directory.get());
  }

 private:
  static Tensor list(const std::vector<std::int64_t>& values) {
    return from_data<std::int64_t>(values, {static_cast<std::int64_t>(values.size())}, Device::cpu());
  }
  void put(const void* data, std::size_t bytes, std::uint64_t at) {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t n = ::pwrite(temporary_.file.get(), static_cast<const char*>(data) + done, bytes - done,
                                 static_cast<off_t>(at + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail_system(temporary_.name, "writing");
      done += static_cast<std::size_t>(n);
    }
  }
  void append(const void* data, std::size_t bytes) {
    put(data, bytes, end_);
    end_ += bytes;
  }
  void section(const std::string& name, const Tensor& t) {
    end_ = (end_ + kAlignment - 1) / kAlignment * kAlignment;
    const Section s = section_of(name, t, end_);
    add_entry(s, table_);
    ++sections_;
    append(levin::detail::bytes_of(t).data(), s.bytes);
  }
  void flush() {
    if (chunk_.empty()) return;
    first_.push_back(samples_ - static_cast<std::int64_t>(chunk_.size()));
    const Tensors fields = collate(chunk_);
    fields_.push_back(static_cast<std::int64_t>(fields.size()));
    for (const Tensor& t : fields) section("", t);
    chunk_.clear();
    bytes_ = 0;
  }

  std::string path_, table_;
  Temporary temporary_;
  std::vector<Sample> chunk_;
  std::size_t bytes_ = 0;
  std::vector<std::int64_t> first_, fields_;
  std::uint64_t end_ = 0, sections_ = 0;
  std::int64_t samples_ = 0;
};

std::string key_text(const CacheKey& key, std::int64_t samples, const Generator& generator) {
  std::string all =
      "transform " + key.transform + "\nsamples " + text(samples) + "\nseed " + std::to_string(generator.seed()) + "\n";
  for (const std::string& source : key.sources) {
    struct stat status {};
    if (::stat(source.c_str(), &status) != 0) fail_system(source, "looking at the source of a cache");
    all += "source " + source + " " + text(static_cast<std::int64_t>(status.st_size)) + " " +
           text(static_cast<std::int64_t>(status.st_mtim.tv_sec)) + "." +
           text(static_cast<std::int64_t>(status.st_mtim.tv_nsec)) + "\n";
  }
  return all;
}

class Cached final : public Dataset {
 public:
  explicit Cached(RecordFile file) : file_(std::move(file)) {}
  std::int64_t size() const override { return file_.size(); }
  Sample get(std::int64_t index, Generator&) const override {
    Sample sample = file_.sample(index);
    for (Tensor& t : sample) t = t.clone();
    return sample;
  }

 private:
  RecordFile file_;
};

}  // namespace

struct RecordFile::Impl {
  std::shared_ptr<const Mapping> mapping;
  std::string key;
  std::vector<std::int64_t> first;               // of each chunk, and the number of samples
  std::vector<std::size_t> sections;             // the first section of each chunk, and the end
  std::unique_ptr<std::atomic<bool>[]> checked;  // sections that have their hash

  void check(std::size_t section) const {
    if (checked[section].load(std::memory_order_acquire)) return;
    mapping->verify(section);
    checked[section].store(true, std::memory_order_release);
  }
};

RecordFile::RecordFile(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail_system(path, "opening");
  auto impl = std::make_shared<Impl>();
  impl->mapping = std::make_shared<Mapping>(std::move(file), path);
  const std::vector<Section>& sections = impl->mapping->sections();
  impl->checked = std::make_unique<std::atomic<bool>[]>(sections.size());
  const auto bad = [&](const char* what) { fail<FormatError>(path, ": no record file: ", what); };
  if (sections.size() < 3) bad("it has less than three sections");
  const std::size_t end = sections.size() - 3;
  const std::array<const char*, 3> names{"key", "first", "fields"};
  for (std::size_t i = 0; i < 3; ++i) {
    const Section& s = sections[end + i];
    if (s.name != names[i] || s.shape.rank() != 1 || s.dtype != (i == 0 ? DType::u8 : DType::i64))
      bad("key, first and fields are not its last sections");
    impl->check(end + i);
  }
  const Tensor key = impl->mapping->view(end);
  if (key.numel() > 0)
    impl->key.assign(reinterpret_cast<const char*>(key.data<std::uint8_t>()), static_cast<std::size_t>(key.numel()));
  impl->first = impl->mapping->view(end + 1).to_vector<std::int64_t>();
  const std::vector<std::int64_t> fields = impl->mapping->view(end + 2).to_vector<std::int64_t>();
  if (impl->first.size() != fields.size() + 1 || impl->first.front() != 0) bad("its chunks do not begin at sample 0");
  impl->sections.push_back(0);
  for (std::size_t c = 0; c < fields.size(); ++c) {
    const std::size_t at = impl->sections.back();
    if (impl->first[c + 1] <= impl->first[c] || fields[c] < 1 || static_cast<std::size_t>(fields[c]) > end - at)
      bad("a chunk has no samples, or no fields");
    const std::int64_t samples = impl->first[c + 1] - impl->first[c];  // both are 0 or more
    for (std::size_t s = at; s < at + static_cast<std::size_t>(fields[c]); ++s) {
      if (sections[s].shape.rank() == 0 || sections[s].shape[0] != samples)
        bad("a field has another number of samples");
    }
    impl->sections.push_back(at + static_cast<std::size_t>(fields[c]));
  }
  if (impl->sections.back() != end) bad("it has sections that belong to no chunk");
  impl_ = std::move(impl);
}
std::int64_t RecordFile::size() const { return impl_->first.back(); }
const std::string& RecordFile::key() const { return impl_->key; }

Sample RecordFile::sample(std::int64_t i) const {
  if (i < 0 || i >= size()) fail<IndexError>("RecordFile: sample is ", i, ", expected 0 to ", size() - 1);
  const std::vector<std::int64_t>& first = impl_->first;
  const auto chunk = static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), i) - first.begin()) - 1;
  Sample sample;
  for (std::size_t s = impl_->sections[chunk]; s < impl_->sections[chunk + 1]; ++s) {
    impl_->check(s);
    const Tensor stacked = impl_->mapping->view(s);
    const Shape shape = stacked.shape().removed(0);
    sample.push_back(as_strided(stacked, shape, contiguous_strides(shape), (i - first[chunk]) * shape.numel()));
  }
  return sample;
}

void write_records(const std::string& path, const Dataset& dataset, const std::string& key,
                   const Generator& generator) {
  const std::size_t slash = path.find_last_of('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  levin::detail::remove_stale_temporaries(folder, std::string_view(path).substr(slash + 1));
  Writer writer(path);
  const EpochRandom random(generator, 0);
  for (std::int64_t i = 0; i < dataset.size(); ++i) writer.add(sample_of(dataset, random, i));
  writer.finish(key);
}

DatasetRef cached(const DatasetRef& dataset, const std::string& path, const CacheKey& key, const Generator& generator) {
  if (!dataset) fail<ConfigError>("cached: the dataset is null");
  if (key.transform.empty()) fail<ConfigError>("cached: the key has no transform; name the preprocessing");
  const std::string wanted = key_text(key, dataset->size(), generator);
  if (::access(path.c_str(), F_OK) == 0) {
    RecordFile file(path);
    if (file.key() == wanted) return std::make_shared<Cached>(std::move(file));
  }
  write_records(path, *dataset, wanted, generator);
  return std::make_shared<Cached>(RecordFile(path));
}

}  // namespace levin::data
