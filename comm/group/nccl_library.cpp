#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>

#include "comm/group/nccl_api.h"
#include "levin/error.h"
#include "tensor/text/number_text.h"

namespace levin::dist::nccl {
namespace {

std::string version_text(int code) {
  return text(code / 10000) + "." + text(code / 100 % 100) + "." + text(code % 100);
}

}  // namespace

const Library& library() {
  static std::mutex mutex;
  static std::map<std::string, Library> loaded;  // by place, so that a change of the variable counts
  const char* const named = std::getenv("LEVIN_NCCL_LIBRARY");
  const std::string place = named && *named ? named : "libnccl.so.2";
  const std::lock_guard lock(mutex);
  if (const auto known = loaded.find(place); known != loaded.end()) return known->second;
  void* const file = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!file) {
    const char* const why = dlerror();
    fail<ConfigError>("nccl: ", place, " cannot be loaded: ", why ? why : "no reason given",
                      "; install NCCL 2.27 or a later 2.x (package libnccl2), or set LEVIN_NCCL_LIBRARY to its file");
  }
  Library found;
  std::string lacks;
  found.each([&](const char* name, auto& pointer) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(dlsym(file, name));
    if (!pointer) lacks += std::string(lacks.empty() ? "" : ", ") + name;
  });
  const bool complete = lacks.empty();
  if (complete && found.ncclGetVersion(&found.version) != Result::success) found.version = 0;
  if (!complete || found.version < kOldest || found.version / 10000 != kMajor) {
    dlclose(file);
    if (!complete) fail<ConfigError>("nccl: ", place, " is no NCCL 2.27 or later, it lacks ", lacks);
    fail<ConfigError>("nccl: ", place, " is version ", version_text(found.version), ", expected ",
                      version_text(kOldest), " or a later ", kMajor, ".x; install that one");
  }
  return loaded[place] = found;
}

}  // namespace levin::dist::nccl
