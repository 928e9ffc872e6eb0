#include "train/signals.h"

#include <unistd.h>

namespace levin::train {
namespace {

volatile std::sig_atomic_t g_received = 0;
int g_guards = 0;

extern "C" void levin_on_signal(int number) {
  if (g_received != 0) _exit(128 + number);  // the second one: the user does not want to wait for the file
  g_received = number;
}

}  // namespace

SignalGuard::SignalGuard(bool install) {
  if (!install || g_guards > 0) return;
  installed_ = true;
  ++g_guards;
  g_received = 0;
  struct sigaction action {};
  action.sa_handler = levin_on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // reads and writes of the run go on
  sigaction(SIGINT, &action, &before_int_);
  sigaction(SIGTERM, &action, &before_term_);
}

SignalGuard::~SignalGuard() {
  if (!installed_) return;
  sigaction(SIGINT, &before_int_, nullptr);
  sigaction(SIGTERM, &before_term_, nullptr);
  --g_guards;
}

int SignalGuard::received() { return g_guards > 0 ? static_cast<int>(g_received) : 0; }

}  // namespace levin::train
