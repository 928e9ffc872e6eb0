// A test that lacks what it needs (data, a device) says so and counts as skipped:
//   if (!have_mnist()) return levin::test::skip("no MNIST: set LEVIN_DATA");
#pragma once

#include <string>

namespace levin::test {

// Marks the running test case as skipped. The test then returns; the run ends with each reason and how many tests had it.
// A check that failed before it still makes the test fail.
void skip(const std::string& reason);

// Whether the run is asked for the tests that take minutes, too (./run test --all).
[[nodiscard]] bool runs_everything();

}  // namespace levin::test
