#include <array>

#include "tests/fuzz/target.h"

namespace levin::fuzz {

std::span<const Target> targets() {
  static constexpr std::array kAll = {
      Target{"checkpoint_file", checkpoint_file},
      Target{"checkpoint_state", checkpoint_state},
      Target{"cifar", cifar},
      Target{"csv", csv},
      Target{"idx", idx},
      Target{"jpeg", jpeg},
      Target{"npy", npy},
      Target{"npz", npz},
      Target{"ops", ops},
      Target{"options", options},
      Target{"planetoid", planetoid},
      Target{"png", png},
      Target{"safetensors", safetensors},
      Target{"store", store},
      Target{"text", text},
      Target{"tu", tu},
  };
  return kAll;
}

}  // namespace levin::fuzz
