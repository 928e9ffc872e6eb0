// A fake of NCCL for tests: ranks that are threads, and simt in the place of the GPU.
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>

#include "levin/device.h"
#include "levin/stream.h"
#include "tensor/device/runtime.h"
#include "tests/fake_nccl/nccl.h"
#include "tests/variables.h"
#include "tests/where.h"

namespace levin::test {

#if defined(LEVIN_SIMT)
// Note [A fake of NCCL], for as long as a test runs. simt stands for the GPU: its streams work later, as a GPU's.
class NcclFake {
 public:
  static constexpr const char* kFile = "/tests/libnccl_fake.so";

  NcclFake() : path_(build_dir() + kFile), planted_({{"LEVIN_NCCL_LIBRARY", path_.c_str()}}) {
    void* const file = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays loaded, as in the library's table
    REQUIRE(file != nullptr);
    const auto get = reinterpret_cast<FakeNccl* (*)()>(dlsym(file, "levin_fake_nccl"));
    const bool is_fake = get != nullptr;
    REQUIRE(is_fake);
    fake_ = get();
    fake_->enqueue = [](void* stream, void (*work)(void*), void* argument) {
      levin::detail::runtime::enqueue(Stream(Device::simt(), stream, 1), [=] { work(argument); });
    };
    fake_->drain = [](void* stream) { levin::detail::runtime::synchronize(Stream(Device::simt(), stream, 1)); };
    fake_->polls = 2;
    fake_->version = 22809;
    fake_->init_fails = fake_->all_reduce_fails = fake_->async_error = 0;
    fake_->made = fake_->finalized = fake_->destroyed = fake_->aborted = fake_->asked = 0;
  }
  ~NcclFake() {
    CHECK(fake_->broken == "");
    CHECK(fake_->alive == 0);
    CHECK(fake_->made == fake_->destroyed + fake_->aborted);
    fake_->broken.clear();
  }
  FakeNccl* operator->() const { return fake_; }

 private:
  std::string path_;
  PlantedVariables planted_;
  FakeNccl* fake_ = nullptr;
};
#endif

}  // namespace levin::test
