// The output of a job's ranks on one stdout and one stderr: whole lines, each rank's in order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/launch/descriptor.h"

namespace levin::dist {

class Output {
 public:
  enum class To : std::uint8_t {
    descriptors,  // 1 and 2
    screen        // stdout and stderr of a program that draws a progress bar: above it (tensor/text/screen.h)
  };
  enum class Form : std::uint8_t {
    prefixed,  // "[rank 1] " before each line
    lines,     // whole lines
    raw        // at once, byte for byte: a terminal with a progress bar
  };
  explicit Output(To to) : to_(to) {}
  ~Output() { finish(); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Copies what arrives at `from` to stdout (1) or stderr (2). Before start().
  void add(Fd from, int rank, int stream, Form form);
  void start();  // the thread that copies
  // Copies what the pipes hold and ends the thread. Does not wait for other processes that hold a pipe open.
  void finish() noexcept;
  // The last lines of a rank's stderr, each behind its prefix; "" if it wrote none. After finish().
  [[nodiscard]] std::string tail(int rank) const;
  // One text on stderr, after whole lines.
  void print(std::string_view text);

 private:
  struct Source {
    Fd from;
    int rank = 0, stream = 1;
    Form form{};
    std::string line{}, tail{};  // an unfinished line; the end of what was written
    bool ended = false;
  };
  void run();
  bool take(Source& source);  // false: nothing is there
  void give(Source& source, std::string_view bytes);
  void end(Source& source);
  void write(int stream, std::string_view text, bool raw);

  To to_;
  std::vector<Source> sources_;
  std::thread thread_;
  Pipe wake_;
  bool open_line_ = false;  // rank 0's terminal stands inside of a line
};

// All of `text`, on descriptor fd; false where nothing can be written to it.
bool write_all(int fd, std::string_view text) noexcept;
// No write of this thread raises SIGPIPE while it lives.
class NoSigpipe {
 public:
  NoSigpipe() noexcept;
  ~NoSigpipe();
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  bool blocked_ = false;
};

}  // namespace levin::dist
