// Optimizers, gradient clipping, learning-rate schedules, loss scaling.
#pragma once

#include "levin/optim/grad_scaler.h"
#include "levin/optim/optimizer.h"
#include "levin/optim/schedule.h"
