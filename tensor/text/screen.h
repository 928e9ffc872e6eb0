// Output above lines that are redrawn at the bottom of the terminal, such as a progress bar.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string_view>

namespace levin::detail {

// The owner of such a line while it is shown. The lines of all threads share the terminal: each is lifted before a text
// is printed and put back after it.
class BottomLine {
 public:
  BottomLine() = default;
  BottomLine(const BottomLine&) = delete;
  BottomLine& operator=(const BottomLine&) = delete;
  virtual ~BottomLine();
  virtual void lift() = 0;      // clears the line
  virtual void put_back() = 0;  // draws the line again

 protected:
  // Between shown() and hidden(), print_above calls lift and put_back. Neither function may be called inside of them.
  void shown();
  void hidden() noexcept;
};

// While it lives, other threads do not print above lines, and so do not call lift and put_back. A thread may hold
// several.
class ScreenLock {
 public:
  ScreenLock();
  ~ScreenLock();
  ScreenLock(const ScreenLock&) = delete;
  ScreenLock& operator=(const ScreenLock&) = delete;
};

// Writes `text` unchanged, above all shown lines.
void print_above(std::FILE* file, std::string_view text);

}  // namespace levin::detail
