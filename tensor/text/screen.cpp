#include "tensor/text/screen.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace levin::detail {
namespace {

struct Screen {
  std::recursive_mutex mutex;
  std::vector<BottomLine*> lines;
};
Screen& screen() {
  static Screen s;
  return s;
}

}  // namespace

BottomLine::~BottomLine() { hidden(); }
void BottomLine::shown() {
  const ScreenLock lock;
  std::vector<BottomLine*>& lines = screen().lines;
  if (std::find(lines.begin(), lines.end(), this) == lines.end()) lines.push_back(this);
}
void BottomLine::hidden() noexcept {
  const ScreenLock lock;
  std::erase(screen().lines, this);
}

ScreenLock::ScreenLock() { screen().mutex.lock(); }
ScreenLock::~ScreenLock() { screen().mutex.unlock(); }

void print_above(std::FILE* file, std::string_view text) {
  const ScreenLock lock;
  const std::vector<BottomLine*>& lines = screen().lines;
  for (auto it = lines.rbegin(); it != lines.rend(); ++it) (*it)->lift();
  std::fwrite(text.data(), 1, text.size(), file);
  if (!lines.empty()) std::fflush(file);  // before the lines write
  for (BottomLine* line : lines) line->put_back();
}

}  // namespace levin::detail
