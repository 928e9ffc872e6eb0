#include <doctest/doctest.h>

// The macro comes with the compiler; this keeps the standard the build asks for and the one it gets together.
TEST_CASE("the build is C++20") { CHECK(__cplusplus >= 202002L); }
