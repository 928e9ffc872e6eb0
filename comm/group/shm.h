// Collectives between the processes of one host, over shared memory.
#pragma once

#include <memory>

#include "comm/group/engine.h"
#include "comm/job/rendezvous.h"

namespace levin::dist {

// Throws CommError where the processes cannot share memory.
[[nodiscard]] std::shared_ptr<Engine> make_shm_engine(std::shared_ptr<Rendezvous> ranks);

}  // namespace levin::dist
