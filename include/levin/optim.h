// Optimizers, gradient clipping, learning-rate schedules, loss scaling, lists of tensors.
#pragma once

#include "levin/optim/grad_scaler.h"
#include "levin/optim/lists.h"
#include "levin/optim/optimizer.h"
#include "levin/optim/schedule.h"
