#include "tests/capture.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
// g++ links UndefinedBehaviorSanitizer as a library of its own, whose reports go to file descriptor 2 alone. After an
// abort doctest ends the test and shows the captured output.
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }
#endif

namespace levin::test {
namespace {

void flush() {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
}

}  // namespace

Capture::Capture() {
  std::string name = (std::filesystem::temp_directory_path() / "levin-test-output-XXXXXX").string();
  file_ = ::mkostemp(name.data(), O_CLOEXEC | O_APPEND);
  if (file_ < 0) return;
  ::unlink(name.c_str());
  real_out_ = ::fcntl(1, F_DUPFD_CLOEXEC, 3);
  real_err_ = ::fcntl(2, F_DUPFD_CLOEXEC, 3);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_report_fd(reinterpret_cast<void*>(static_cast<long>(real_err_)));
#endif
}

Capture::~Capture() {
  if (on_) end(Output::shown);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_report_fd(reinterpret_cast<void*>(2L));  // leaks are reported after main returns
#endif
  for (const int fd : {file_, real_out_, real_err_}) {
    if (fd >= 0) ::close(fd);
  }
}

void Capture::start() {
  if (file_ < 0 || on_) return;
  flush();
  if (::ftruncate(file_, 0) != 0) return;
  ::dup2(file_, 1);
  ::dup2(file_, 2);
  on_ = true;
}

void Capture::end(Output output) {
  if (!on_) return;
  flush();
  ::dup2(real_out_, 1);
  ::dup2(real_err_, 2);
  on_ = false;
  if (output == Output::dropped) return;
  std::array<char, 4096> block{};
  off_t at = 0;
  for (ssize_t n = 0; (n = ::pread(file_, block.data(), block.size(), at)) > 0; at += n)
    std::fwrite(block.data(), 1, static_cast<std::size_t>(n), stdout);
}

}  // namespace levin::test
