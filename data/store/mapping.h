// A store's bytes, mapped read-only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/store/layout.h"

namespace levin::data::store {

// Owner of a descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

// Maps the whole of an open file. Throws FileError where the system refuses, FormatError for what is no store.
class Mapping : public std::enable_shared_from_this<Mapping> {
 public:
  Mapping(Descriptor descriptor, std::string where);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  [[nodiscard]] const std::vector<Section>& sections() const { return sections_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] int descriptor() const { return descriptor_.get(); }
  // Section i as a tensor without a copy, which keeps the mapping.
  [[nodiscard]] Tensor view(std::size_t i) const;
  void verify() const;
  void verify(std::size_t i) const;  // section i

 private:
  Descriptor descriptor_;
  std::string where_;
  std::span<const std::byte> bytes_;
  std::vector<Section> sections_;
};

// Makes the file large enough, with its memory or disk space taken at once, so that no later write fails. Throws
// OutOfMemoryError or FileError.
void allocate(int fd, std::uint64_t bytes, const std::string& where);
// Fills an allocated file with the tensors; the ready flag comes last. Throws FileError.
void fill(int fd, const Layout& plan, const NamedTensors& tensors, const std::string& where);

}  // namespace levin::data::store
