#include "levin/build_info.h"

#include <doctest/doctest.h>

#include "levin/device.h"
#include "levin/serialize.h"
#include "tests/where.h"

TEST_CASE("build_info has the version of meson.build") {
  const std::string project = levin::read_file(levin::test::source_dir() + "/meson.build", 1 << 20);
  CHECK(project.find("version: '" + levin::build_info().version + "'") != std::string::npos);
}

TEST_CASE("build_info agrees with the devices that this build has") {
  const levin::BuildInfo info = levin::build_info();
  CHECK(info.compiler.find(' ') != std::string::npos);
  CHECK((info.cpu_level == "base" || info.cpu_level.starts_with("x86-64-v")));
  CHECK((levin::device_count(levin::DeviceType::simt) == 1) == (info.launches_on == "simt"));
  if (levin::device_count(levin::DeviceType::cuda) > 0) CHECK(info.launches_on == "cuda");
  REQUIRE_FALSE(info.libraries.empty());
  CHECK(info.libraries[0].first == "oneTBB");
  CHECK(info.libraries[0].second.find('.') != std::string::npos);
}
