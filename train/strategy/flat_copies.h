// Broadcasts of many tensors through few flat buffers.
#pragma once

#include "levin/comm.h"
#include "levin/nn/module.h"
#include "levin/serialize.h"

namespace levin::train {

// The tensors become those of rank 0, in place; every rank passes the same list. Tensors of one dtype travel together
// in buffers of 25 MB.
void broadcast(dist::ProcessGroup& group, const NamedTensors& tensors);

// The buffers of a module become those of rank 0, but for the states of metrics. Null: nothing.
void broadcast_buffers(dist::ProcessGroup& group, nn::Module* tree);

}  // namespace levin::train
