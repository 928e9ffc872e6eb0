// A test that lacks what it needs (data, a device) says so and counts as skipped:
//   if (!have_mnist()) return levin::test::skip("no MNIST: set LEVIN_DATA");
#pragma once

#include <string>

namespace levin::test {

// Marks the running test case as skipped and prints `SKIPPED name: reason`. The test then returns.
// A check that failed before it still makes the test fail.
void skip(const std::string& reason);

}  // namespace levin::test
