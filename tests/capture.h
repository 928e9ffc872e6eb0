// What a test prints, kept until it ends: a passing test's is dropped, a failing test's is shown.
#pragma once

namespace levin::test {

enum class Output : bool { dropped, shown };

// File descriptors 1 and 2 lead to one file between start() and end(). Reports of sanitizers keep going to the real stderr,
// because they end the process. Where no file can be made everything is printed at once.
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
