#!/bin/bash
# ccache.sh FOLDER ROOT: whether ccache, with the settings of ROOT/run, sees a change in a header of a precompiled
# header. Exits with 77 without ccache or g++, else with 1 and the reason on stdout where it does not.
cd "$1" || exit 1
command -v ccache >/dev/null && command -v g++ >/dev/null || exit 77
unset "${!CCACHE_@}"
settings=$(grep -o 'export CCACHE_[^;]*' "$2/run")
eval "$settings"
export CCACHE_DIR=$1/cache
fail() {
  echo "$1, with: $settings"
  exit 1
}

header() { printf '#pragma once\ninline int number() { return %s; }  // %s\n' "$1" "$2" >inner.h; }
# As meson does: the precompiled header in a folder of its own, found by its name.
precompile() {
  ccache g++ -I. -x c++-header headers/all.h -o headers/all.h.gch || fail "g++ failed"
}
compile() {
  ccache g++ -Iheaders -I. -fpch-preprocess -include all.h -Winvalid-pch -MD -MF main.d -o main.o -c main.cpp &&
    g++ main.o -o main || fail "g++ failed"
}
returns() {
  ./main
  [ $? = "$1" ]
}
hits() { ccache --print-stats | awk '/_cache_hit/ {n += $2} END {print n}'; }

mkdir headers
header 1 first
printf '#include "inner.h"\n' >headers/all.h
source_of() { printf '#include "inner.h"\nint main() { return number() + %s; }\n' "$1" >main.cpp; }
source_of 0
precompile
sleep 2 # nothing is kept whose headers are as new as the object
compile
returns 1 || fail "the first program returns another number"
compile
[ "$(hits)" -gt 0 ] || fail "ccache keeps no object"
# g++ compares a header that is included again with the text that it had in the precompiled one, comments included.
header 1 other
precompile
source_of 1
compile
returns 2 || fail "the second program returns another number"
header 2 other
precompile
compile
returns 3 || fail "the object of the old header came back"
