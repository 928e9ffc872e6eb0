// What most tests include, compiled once: see train/precompiled.h.
#include <doctest/doctest.h>

#include "levin/levin.h"
#include "train/precompiled.h"
