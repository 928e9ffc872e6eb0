// CheckpointIO: how the files of checkpoints are written, read and removed.
//
//   Trainer trainer({.plugins = {.checkpoint_io = std::make_shared<AsyncCheckpointIO>()}});
//
// Derive from it for files of another form, such as encrypted ones. Paths are names of the file system: the trainer
// makes folders, lists them for ckpt_path = "last", and links last.safetensors. Checkpoints that are folders
// (StateDictType) go past it, and with it none is saved.
#pragma once

#include <memory>
#include <string>

#include "levin/export.h"
#include "levin/serialize.h"

namespace levin {

// By default a checkpoint is one safetensors file, written atomically. Of several ranks rank 0 alone saves, removes and
// asks whether a file exists; every rank loads. A trainer calls it by one thread at a time.
class LEVIN_API CheckpointIO {
 public:
  CheckpointIO() = default;
  virtual ~CheckpointIO();
  CheckpointIO(const CheckpointIO&) = delete;
  CheckpointIO& operator=(const CheckpointIO&) = delete;

  // Writes a file. Its tensors are dense and on cpu, and may share the run's memory: an override that returns before it
  // has read them copies them. A save that fails leaves the file that was there. Throws FileError, as which callbacks
  // count it.
  virtual void save(const std::string& path, TensorFile file);
  // Reads what save() wrote. Throws FileError, and FormatError for another content.
  [[nodiscard]] virtual TensorFile load(const std::string& path);
  // Removes a file, if it is there.
  virtual void remove(const std::string& path);
  [[nodiscard]] virtual bool exists(const std::string& path);
  // Waits for saves that go on after save() returned, and throws the error of one that failed. Called before a file of
  // this run is linked, renamed or read, and at the end of a fit.
  virtual void finish() {}
};

// Copies the tensors and writes them by a thread, while the run trains on. A save waits for the one before, so at most
// one copy is in memory. The error of a write is a warning of the next save (W-CKPT-WRITE), which writes its own file
// all the same, or is thrown at the end of the fit. With ModelCheckpointOptions::save_last a save waits for its write,
// whose error is that save's.
class LEVIN_API AsyncCheckpointIO final : public CheckpointIO {
 public:
  // Writes by `io`; null: a CheckpointIO.
  explicit AsyncCheckpointIO(std::shared_ptr<CheckpointIO> io = nullptr);
  ~AsyncCheckpointIO() override;  // waits for the writes; an error is a warning (W-CKPT-WRITE)
  void save(const std::string& path, TensorFile file) override;
  [[nodiscard]] TensorFile load(const std::string& path) override;
  void remove(const std::string& path) override;
  [[nodiscard]] bool exists(const std::string& path) override;
  void finish() override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace levin
