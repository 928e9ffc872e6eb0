// Collectives between the processes of several hosts: Gloo's messages, our algorithms.
#pragma once

#include <memory>

#include "comm/group/engine.h"
#include "comm/job/rendezvous.h"

namespace levin::dist {

// hosts: shared memory between the ranks of one host, Gloo between hosts. everywhere: Gloo within a host, too.
enum class GlooUse : bool { hosts, everywhere };

// Throws CommError where the ranks cannot be connected, ConfigError where liblevin_gloo.so cannot be loaded.
[[nodiscard]] std::shared_ptr<Engine> make_gloo_engine(std::shared_ptr<Rendezvous> ranks, GlooUse use);

// The path of liblevin_gloo.so under the prefix of this build.
[[nodiscard]] const char* installed_gloo() noexcept;

}  // namespace levin::dist
