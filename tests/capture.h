// A test's output, kept until the test ends: the output of a passing test is dropped, that of a failing test is shown.
#pragma once

namespace levin::test {

enum class Output : bool { dropped, shown };

// Between start() and end() file descriptors 1 and 2 lead to one file. Reports of sanitizers still go to the real
// stderr, because they end the process. Where no file can be made the output is printed at once.
class Capture {
 public:
  Capture();
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  void start();
  void end(Output output);

 private:
  int file_ = -1, real_out_ = -1, real_err_ = -1;
  bool on_ = false;
};

}  // namespace levin::test
