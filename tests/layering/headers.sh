#!/bin/sh
# The headers that must compile alone, relative to the source root. ./run configures again when this list changes.
# each_level.h is a part of other headers, not one of its own; the precompiled ones are compiled by the build.
cd "$(dirname "$0")/../.." || exit 1
for folder in include tensor kernels autograd nn optim data train tests bench examples; do
  find "$folder" -name embed -prune -o \( -name '*.h' -o -name '*.cuh' \) -print
done | grep -v -e '^kernels/executor/each_level.h$' -e '/precompiled[/.]' | LC_ALL=C sort
