// All of Levin.
#pragma once

#include "levin/autograd.h"
#include "levin/data.h"
#include "levin/device.h"
#include "levin/dtype.h"
#include "levin/error.h"
#include "levin/extend.h"
#include "levin/generator.h"
#include "levin/nn.h"
#include "levin/ops.h"
#include "levin/optim.h"
#include "levin/serialize.h"
#include "levin/shape.h"
#include "levin/sparse.h"
#include "levin/stream.h"
#include "levin/tensor.h"
#include "levin/train.h"
