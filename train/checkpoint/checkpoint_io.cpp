#include "levin/train/checkpoint_io.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "levin/autograd.h"
#include "levin/warning.h"

namespace levin {

CheckpointIO::~CheckpointIO() = default;
void CheckpointIO::save(const std::string& path, TensorFile file) {
  save_safetensors(path, file.tensors, file.metadata);
}
TensorFile CheckpointIO::load(const std::string& path) { return load_safetensors(path); }
void CheckpointIO::remove(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
}
bool CheckpointIO::exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// Saves and removals in the order of their calls, done by one thread that lives while there are any.
struct AsyncCheckpointIO::Impl {
  struct Task {
    std::string path;
    std::optional<TensorFile> file;  // none: remove
  };

  explicit Impl(std::shared_ptr<CheckpointIO> i) : io(std::move(i)) {}

  void add(Task task) {
    const std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
    if (running) return;
    if (thread.joinable()) thread.join();  // has ended: it holds no lock
    running = true;
    try {
      thread = std::thread([this] { work(); });
    } catch (...) {
      running = false;
      tasks.pop_back();
      throw;
    }
  }
  void work() {
    std::unique_lock lock(mutex);
    while (!tasks.empty()) {
      Task& task = tasks.front();
      const bool keeps = !task.file && error;  // the file that would replace it was not written
      lock.unlock();
      std::exception_ptr failed;
      try {
        if (task.file)
          io->save(task.path, std::move(*task.file));
        else if (!keeps)
          io->remove(task.path);
      } catch (...) { failed = std::current_exception(); }
      lock.lock();
      if (failed && !error) error = failed;
      tasks.pop_front();
      changed.notify_all();
    }
    running = false;
    changed.notify_all();
  }
  // Until every save is done, or with `all` every removal, too.
  void wait(bool all) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] {
      return std::none_of(tasks.begin(), tasks.end(), [&](const Task& t) { return all || t.file; }) &&
             (!all || !running);
    });
  }
  // The error of the first write that failed since the last call.
  std::exception_ptr take_error() {
    const std::lock_guard lock(mutex);
    return std::exchange(error, nullptr);
  }

  std::shared_ptr<CheckpointIO> io;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;  // the first is under way; a deque keeps its place
  bool running = false;
  std::exception_ptr error;
  std::thread thread;
};

AsyncCheckpointIO::AsyncCheckpointIO(std::shared_ptr<CheckpointIO> io)
    : impl_(std::make_unique<Impl>(io ? std::move(io) : std::make_shared<CheckpointIO>())) {}

namespace {
// An error that no caller waits for.
void warn_of(const std::exception_ptr& error) {
  if (!error) return;
  std::string what = "an exception that is no std::exception";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) { what = e.what(); } catch (...) {
  }
  warn("W-CKPT-WRITE", WarningCategory::runtime, "AsyncCheckpointIO: a checkpoint was not written: " + what,
       Repeat::yes);
}
}  // namespace

AsyncCheckpointIO::~AsyncCheckpointIO() {
  try {
    impl_->wait(/*all=*/true);
    warn_of(impl_->take_error());
  } catch (...) {}  // no memory for the text
  if (impl_->thread.joinable()) impl_->thread.join();
}

void AsyncCheckpointIO::save(const std::string& path, TensorFile file) {
  impl_->wait(/*all=*/false);
  const std::exception_ptr earlier = impl_->take_error();
  const NoGrad off;
  for (auto& [name, t] : file.tensors) t = t.clone();
  impl_->add({.path = path, .file = std::move(file)});
  warn_of(earlier);
}
TensorFile AsyncCheckpointIO::load(const std::string& path) {
  impl_->wait(/*all=*/true);  // an error of a write is that of the next save, or of finish()
  return impl_->io->load(path);
}
void AsyncCheckpointIO::remove(const std::string& path) { impl_->add({.path = path, .file = std::nullopt}); }
bool AsyncCheckpointIO::exists(const std::string& path) {
  {
    const std::lock_guard lock(impl_->mutex);
    const auto newest =
        std::find_if(impl_->tasks.rbegin(), impl_->tasks.rend(), [&](const Impl::Task& t) { return t.path == path; });
    if (newest != impl_->tasks.rend()) return newest->file.has_value();
  }
  return impl_->io->exists(path);
}
void AsyncCheckpointIO::finish() {
  impl_->wait(/*all=*/true);
  if (const std::exception_ptr error = impl_->take_error()) std::rethrow_exception(error);
}

}  // namespace levin
