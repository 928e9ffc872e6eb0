#include "comm/launch/nodelist.h"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "levin/serialize.h"
#include "tests/skip.h"
#include "tests/temporary.h"

using levin::dist::read_count;
using levin::dist::slurm_hosts;
using levin::dist::slurm_tasks_per_node;
using Hosts = std::vector<std::string>;

namespace {

const char* const kLists[] = {"host5",        "alpha,beta",          "a[5-9,12],b",      "n[008-010]", "n[8-10]",
                              "r[0-1]n[2-3]", "a-b[1-2],c.d.e,f[9]", "x[1,3-4,007],y-1", "g[099-101]"};

// Empty where the list is refused. (g++ 12 takes CHECK of an optional vector for a use of uninitialized memory.)
Hosts hosts_of(const char* list, std::size_t most = 100) {
  if (const std::optional<Hosts> found = slurm_hosts(list, most)) return *found;
  return {};
}
std::vector<int> tasks_of(const char* list) {
  if (const std::optional<std::vector<int>> found = slurm_tasks_per_node(list)) return *found;
  return {};
}

}  // namespace

TEST_CASE("a node list of SLURM becomes the hosts that it abbreviates") {
  CHECK(slurm_hosts("host[5-9]")->front() == "host5");
  CHECK(hosts_of("a[5-9,12],b") == Hosts{"a5", "a6", "a7", "a8", "a9", "a12", "b"});
  CHECK(hosts_of("alpha,beta") == Hosts{"alpha", "beta"});
  CHECK(hosts_of("n[008-010]") == Hosts{"n008", "n009", "n010"});
  CHECK(hosts_of("r[0-1]n[2-3]") == Hosts{"r0n2", "r0n3", "r1n2", "r1n3"});
  CHECK(hosts_of("a[5-9,12],b", 1) == Hosts{"a5"});
  CHECK(slurm_hosts("a[0-1023]")->size() == 1024);
}

TEST_CASE("a text that is no node list of SLURM is refused, and so is one of more hosts than there are") {
  for (const char* text : {"", "a[", "a]", "a[]", "a[5-]", "a[-5]", "a[9-5]", "a[5-9", "a,,b", ",a", "a b", "a[1[2]]",
                           "a[x]", "a[1-99999999999999999999]"}) {
    CAPTURE(text);
    CHECK_FALSE(slurm_hosts(text).has_value());
  }
  CHECK_FALSE(slurm_hosts("a[0-999999][0-999999]").has_value());
  CHECK(hosts_of("a[0-999999]b[0-999999]", 2) == Hosts{"a0b0", "a0b1"});
}

TEST_CASE("node lists of SLURM are read as scontrol reads them") {
  const levin::test::TemporaryFolder folder;
  // scontrol reads the file, and asks no daemon.
  levin::write_file_atomically(folder / "slurm.conf", "ClusterName=test\nSlurmctldHost=localhost\nNodeName=a\n");
  const std::string scontrol = "SLURM_CONF='" + (folder / "slurm.conf") + "' scontrol ";
  if (std::system((scontrol + "--version >/dev/null 2>&1").c_str()) != 0)
    return levin::test::skip("scontrol is not installed");
  for (const char* list : kLists) {
    CAPTURE(list);
    const std::string command = scontrol + "show hostnames '" + list + "' >'" + (folder / "hosts") + "'";
    REQUIRE(std::system(command.c_str()) == 0);
    std::string ours;
    for (const std::string& host : hosts_of(list)) ours += host + "\n";
    CHECK(ours == levin::read_file(folder / "hosts", 1 << 20));
  }
}

TEST_CASE("the tasks of SLURM's nodes are read with their repeats") {
  CHECK(tasks_of("4(x3),2") == std::vector<int>{4, 4, 4, 2});
  CHECK(tasks_of("2") == std::vector<int>{2});
  CHECK(tasks_of("1,2(x2)") == std::vector<int>{1, 2, 2});
  for (const char* text : {"", "4(x3", "4x3", "(x3)", "4(3)", "4,", ",4", "-1", "4(x99999999)", "4 "}) {
    CAPTURE(text);
    CHECK_FALSE(slurm_tasks_per_node(text).has_value());
  }
}

TEST_CASE("a count is digits alone, up to its limit") {
  CHECK(read_count("0") == 0);
  CHECK(read_count("65535", 65535) == 65535);
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "0x1", "1.0", "99999999999999999999"}) {
    CAPTURE(text);
    CHECK_FALSE(read_count(text).has_value());
  }
  CHECK_FALSE(read_count("65536", 65535).has_value());
}
