// Processes of one host as ranks: they meet at the store and move data over shared memory.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/comm.h"
#include "levin/comm/launch.h"
#include "levin/ops.h"
#include "levin/serialize.h"
#include "tests/temporary.h"

using namespace levin;

namespace {

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::vector<double> values(const Tensor& t) { return t.to(DType::f64).to_vector<double>(); }

// What `mine` lacks of a rank's work; empty: all is right.
std::string collectives(dist::ProcessGroup& world, DType dtype, std::int64_t n) {
  const int r = world.rank(), size = world.size();
  const Device cpu = Device::cpu();
  const auto made = [&](double first) {
    std::vector<double> all(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = first + static_cast<double>(i % 7);
    return from_data(all, {n}, cpu).to(dtype);
  };
  const std::string name = text(dtype) + "[" + text(n) + "] ";
  const auto is = [&](const Tensor& t, std::int64_t at, std::int64_t count, double first) {
    const std::vector<double> all = values(t);
    for (std::int64_t i = 0; i < count; ++i) {
      if (all[static_cast<std::size_t>(at + i)] != first + static_cast<double>(i % 7)) return false;
    }
    return true;
  };
  Tensor t = made(r + 1);
  world.all_reduce(t, dist::ReduceOp::max).wait();
  if (!is(t, 0, n, size)) return name + "max";
  t = made(r);
  world.broadcast(t, size - 1).wait();
  if (!is(t, 0, n, size - 1)) return name + "broadcast";
  t = full({n}, r + 1, cpu, DType::f64).to(dtype);
  world.all_reduce(t).wait();
  for (const double x : values(t)) {
    if (x != size * (size + 1) / 2) return name + "sum";
  }
  Tensor out = zeros({size * n}, cpu, dtype);
  world.all_gather(out, made(r)).wait();
  for (int k = 0; k < size; ++k) {
    if (!is(out, k * n, n, k)) return name + "all_gather";
  }
  Tensor part = zeros({n}, cpu, dtype);
  world.reduce_scatter(part, out, dist::ReduceOp::min).wait();
  if (!is(part, 0, n, r)) return name + "reduce_scatter";
  Tensor dealt = zeros({size * n}, cpu, dtype);
  world.all_to_all(dealt, out).wait();
  for (int k = 0; k < size; ++k) {
    if (!is(dealt, k * n, n, r)) return name + "all_to_all";
  }
  Tensor next = zeros({n}, cpu, dtype);
  const dist::Work sent = world.send(made(r), (r + 1) % size, 4);
  world.recv(next, (r + size - 1) % size, 4).wait();
  sent.wait();
  if (!is(next, 0, n, (r + size - 1) % size)) return name + "messages";
  return "";
}

}  // namespace

TEST_CASE("processes of one host move tensors of every size over shared memory") {
  const std::vector<std::string> results = dist::spawn(3, [](int rank) -> std::string {
    const auto world = dist::init_process_group();
    if (world->backend() != "shm" || world->rank() != rank || world->size() != 3) return "another group";
    for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::bf16, DType::u8}) {
      for (const std::int64_t n : {0, 1, 7, 1000, 300000}) {
        if (std::string wrong = collectives(*world, dtype, n); !wrong.empty()) return wrong;
      }
    }
    world->barrier();
    if (world->gather_text(std::string(static_cast<std::size_t>(rank), 'x')) != std::vector<std::string>{"", "x", "xx"})
      return "gather_text";
    if (world->broadcast_text(rank == 1 ? "one" : "", 1) != "one") return "broadcast_text";
    const auto pair = world->split(rank == 1 ? -1 : 0, -rank);  // ranks 2 and 0
    if (rank == 1) return pair ? "a part of nobody" : "";
    Tensor t = full({5000}, rank, Device::cpu());
    pair->all_reduce(t).wait();
    return pair->rank() == (rank == 2 ? 0 : 1) && values(t)[4999] == 2 ? "" : "split";
  });
  CHECK(results == std::vector<std::string>{"", "", ""});
}

TEST_CASE("a collective of another size on one process is an error that shows both, on every process") {
  const std::vector<std::string> results = dist::spawn(2, [](int rank) -> std::string {
    const auto world = dist::init_process_group();
    Tensor t = zeros({rank == 0 ? 4 : 8}, Device::cpu());
    try {
      world->all_reduce(t).wait();
    } catch (const CommError& e) { return e.what(); }
    return "no error";
  });
  for (const std::string& error : results) {
    CAPTURE(error);
    CHECK(contains(error, "all_reduce f32[4]"));
    CHECK(contains(error, "all_reduce f32[8]"));
  }
}

TEST_CASE("a process that is killed or throws ends the waits of the others, with its rank in the error") {
  for (const bool kills : {true, false}) {
    CAPTURE(kills);
    const test::TemporaryFolder folder;
    CHECK_THROWS(dist::spawn(3, [&](int rank) -> std::string {
      const auto world = dist::init_process_group();
      Tensor t = zeros({200000}, Device::cpu());
      for (int i = 0; i < 3; ++i) world->all_reduce(t).wait();
      if (rank == 1) {
        if (kills) ::raise(SIGKILL);
        fail<DataError>("planted: sample 17");
      }
      try {
        for (int i = 0; i < 3; ++i) world->all_reduce(t).wait();
      } catch (const CommError& e) {
        write_file_atomically(folder / text(rank), e.what());
        throw;
      }
      return "";
    }));
    for (const char* rank : {"0", "2"}) {
      // The launcher ends the others; the survivor that was faster than that has written why.
      if (!std::filesystem::exists(folder / rank)) continue;
      const std::string error = read_file(folder / rank, 1 << 16);
      CAPTURE(error);
      CHECK(contains(error, "rank 1"));
    }
  }
}

TEST_CASE("shared memory has no name that a killed process could leave behind") {
  const std::vector<std::string> results = dist::spawn(2, [&](int) -> std::string {
    const auto world = dist::init_process_group();
    world->barrier();
    std::stringstream maps_now;
    maps_now << std::ifstream("/proc/self/maps").rdbuf();
    const std::string maps = maps_now.str();
    if (!contains(maps, "/memfd:levin")) return "no shared memory";
    return contains(maps, "/dev/shm/") ? maps : "";
  });
  CHECK(results == std::vector<std::string>{"", ""});
}
