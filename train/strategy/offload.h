// Memory of a file, for what a rank need not have in memory between its uses.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "levin/optim.h"
#include "levin/tensor.h"

namespace levin::train {

// Note [Offload]
//
// Of sharded strategies the slices that a rank owns, and the optimizer's state, may lie elsewhere than the module:
//
//               the optimizer's state   the slices that it updates     slices between gathers (params)
//   none        module's device         module's device                module's device
//   cpu         CPU                     CPU, page-locked               CPU, the same slices
//   nvme        file                    file                           file, the same slices
//
// A module on the CPU has its slices there already: cpu changes nothing then, and nvme of the optimizer moves its state
// alone.
//
// On another device a pass copies this rank's averaged gradients to the host when its reductions are done. All copies
// go through the current stream, and the host waits for it once, at the end of backward(). The optimizer then works on
// the CPU alone. gather() copies the new slices back on the stream, before it gathers them from there, without a wait.
// The optimizer writes the slices again after the next pass, whose wait has seen those copies end.
//
// A file is mapped (MAP_SHARED), so its tensors are tensors like others. After each part of an update, and after each
// gather, the part's pages leave the process (rest()): its memory is bounded by the part, and the system writes the
// pages and reuses them as it needs memory. The space of a file is taken when the fit attaches the optimizer, so no
// later write meets a full disk. Its name is removed as soon as it is open: the system frees it with the last tensor,
// after an error and a kill, too. A disk that fails to read a page ends the process (SIGBUS).
class OffloadFile final : public optim::StateMemory, public std::enable_shared_from_this<OffloadFile> {
 public:
  // In the folder, of this process alone. Throws ConfigError for parts of less than one element, FileError where the
  // folder is not there or takes no file.
  [[nodiscard]] static std::shared_ptr<OffloadFile> make(const std::string& folder, std::int64_t elements_at_once);
  ~OffloadFile() override;
  OffloadFile(const OffloadFile&) = delete;
  OffloadFile& operator=(const OffloadFile&) = delete;

  // Takes space for tensors of so many bytes in all, each at a multiple of kAlignment. Throws OutOfMemoryError where
  // there is none, FileError.
  static constexpr std::int64_t kAlignment = 64;
  void reserve(std::int64_t bytes);
  [[nodiscard]] Tensor allocate(const Shape& shape, DType dtype) override;  // reserves what is missing
  [[nodiscard]] std::int64_t elements_at_once() const override { return elements_at_once_; }
  void rest(std::span<const Part> parts) noexcept override;
  void rest(const Tensor& t) noexcept;

  struct Report {
    std::int64_t bytes = 0;      // of the file
    std::int64_t peak_part = 0;  // the most of them that rested at once: what was in memory
  };
  [[nodiscard]] Report report() const;

 private:
  struct Disk;  // what tensors keep
  OffloadFile(std::shared_ptr<Disk> disk, std::int64_t elements_at_once);
  std::shared_ptr<Disk> disk_;
  std::int64_t elements_at_once_;
};

}  // namespace levin::train
