// What is printed while a line at the bottom of the terminal is drawn again and again, such as a progress bar.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string_view>

namespace levin::detail {

// The one who draws such a line, while it stands there. Those of all threads share the terminal: each of them is lifted
// before a text is printed, and put back behind it.
class BottomLine {
 public:
  BottomLine() = default;
  BottomLine(const BottomLine&) = delete;
  BottomLine& operator=(const BottomLine&) = delete;
  virtual ~BottomLine();
  virtual void lift() = 0;      // clears it
  virtual void put_back() = 0;  // draws it again

 protected:
  // Until hidden(), print_above asks it. Neither may be called inside of lift and put_back.
  void shown();
  void hidden() noexcept;
};

// Keeps other threads from printing above lines, and so from lift and put_back. A thread may hold several.
class ScreenLock {
 public:
  ScreenLock();
  ~ScreenLock();
  ScreenLock(const ScreenLock&) = delete;
  ScreenLock& operator=(const ScreenLock&) = delete;
};

// Writes `text` as it is, above all lines that stand.
void print_above(std::FILE* file, std::string_view text);

}  // namespace levin::detail
