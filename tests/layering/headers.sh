#!/bin/sh
# The headers that must compile alone, relative to the source root. ./run configures again when this list changes.
# A *_level.h is a part of other files, not a header of its own; the precompiled ones are compiled by the build. An
# internal header that its own source includes first compiles alone there. Headers of examples/ are left out: they are
# parts of a program, and with CLI11 a dozen of them took two fifths of the time.
cd "$(dirname "$0")/../.." || exit 1
folders='tensor kernels autograd nn optim comm data train bench'
{
  find $folders -name embed -prune -o \( -name '*.cpp' -o -name '*.cu' \) -print | LC_ALL=C sort |
    xargs awk 'FNR == 1 { own = FILENAME; sub(/\.[a-z]+$/, ".", own) }
               /^#include/ { if (index($2, "\"" own) == 1) print "own", substr($2, 2, length($2) - 2); nextfile }'
  find include $folders tests -name embed -prune -o \( -name '*.h' -o -name '*.cuh' \) -print |
    grep -v -e '_level.h$' -e '/precompiled[/.]' | LC_ALL=C sort
} | awk '$1 == "own" { own[$2]; next } !($0 in own)'
