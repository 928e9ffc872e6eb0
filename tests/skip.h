// A test that lacks what it needs (data, a device) reports it and counts as skipped:
//   if (!have_mnist()) return levin::test::skip("no MNIST: set LEVIN_DATA");
#pragma once

#include <string>

namespace levin::test {

// Marks the running test case as skipped. The test then returns; the run ends with each reason and its number of tests.
// A check that failed before the skip still makes the test fail.
void skip(const std::string& reason);

// Whether the run includes the tests that take minutes (./run test --all).
[[nodiscard]] bool runs_everything();

}  // namespace levin::test
