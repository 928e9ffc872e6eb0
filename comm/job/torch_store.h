// The store of torchrun's agent, which holds MASTER_PORT: rank 0 publishes there where Levin's own store listens.
//
// Note [torchrun's store]: an agent of torchrun listens at MASTER_ADDR:MASTER_PORT itself and says so by
// TORCHELASTIC_USE_AGENT_STORE=True. Four messages of its protocol suffice: VALIDATE, SET, WAIT and GET. Integers are
// little endian, a text is its length in 64 bits and its bytes.
#pragma once

#include <string>

#include "comm/job/socket.h"

namespace levin::dist {

// Both throw CommError with the address after `timeout` seconds.
void publish(const Endpoint& agent, const std::string& key, const std::string& value, double timeout);
// Waits until the key is set.
[[nodiscard]] std::string look_up(const Endpoint& agent, const std::string& key, double timeout);

}  // namespace levin::dist
