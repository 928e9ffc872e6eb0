#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "levin/serialize.h"
#include "levin/train/checkpoint.h"
#include "tests/fuzz/target.h"
#include "train/checkpoint/content.h"

namespace levin::fuzz {
namespace {

using Json = nlohmann::json;

// Whether a run could resume from it.
bool read_all_ways(const std::string& path) {
  const bool resumable = !refused([&] { (void)train::read_checkpoint(path); });
  (void)refused([&] { (void)train::read_checkpoint(path, train::Needs::weights); });
  (void)refused([&] {
    const CheckpointInfo info = read_checkpoint_info(path);
    for (const auto& [name, tensor] : info.weights) (void)content_hash(name, tensor);
    for (const auto& [name, tensor] : info.rest) (void)content_hash(name, tensor);
  });
  return resumable;
}

// A safetensors file of two tensors and of the state, with the hashes of a checkpoint.
std::string checkpoint_of(const std::string& state) {
  struct Entry {
    const char* name;
    float value;
  };
  constexpr Entry kTensors[] = {{"levin.optimizer.0.momentum.w", 0.5f}, {"w", 1.f}};
  Json header = Json::object(), hashes = {{"levin.state", content_hash(state)}};
  std::string data;
  for (const Entry& e : kTensors) {
    const std::size_t at = data.size();
    data.append(reinterpret_cast<const char*>(&e.value), sizeof(e.value));
    header[e.name] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {at, data.size()}}};
    hashes[e.name] = content_hash(e.name, tensor({e.value}, Device::cpu()));
  }
  header["__metadata__"] = {{"levin.state", state}, {"levin.hashes", hashes.dump()}};
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + text + data;
}

}  // namespace

bool checkpoint_file(Bytes in) {
  const MemoryFile file(in);
  return read_all_ways(file.path());
}

bool checkpoint_state(Bytes in) {
  std::string content;
  try {
    content = checkpoint_of({reinterpret_cast<const char*>(in.data()), in.size()});
  } catch (const Json::type_error&) {
    return false;
  }  // not UTF-8: load_safetensors refuses it, which is a target of its own
  const MemoryFile file({reinterpret_cast<const std::uint8_t*>(content.data()), content.size()});
  expect(load_safetensors(file.path()).tensors.size() == 2, "the checkpoint around the state is no safetensors file");
  (void)refused([&] {
    expect(read_checkpoint_info(file.path()).damage.empty(), "the checkpoint around the state has wrong hashes");
  });
  return read_all_ways(file.path());
}

}  // namespace levin::fuzz
