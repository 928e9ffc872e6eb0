#!/bin/bash
# nvcc.sh OBJECT DEPFILE COMMAND...: runs nvcc and keeps what ptxas says of each kernel (registers, stack, spills,
# shared memory) beside the object, in OBJECT.ptxas, instead of on the screen. bench/registers.py makes a table of these
# files.
#
# The build tells ptxas that a spill is an error. A kernel whose registers do not fit keeps some of them in memory, in
# its innermost loop more often than not; it is then several times slower than its neighbours, which no test of values
# shows. Smaller tiles or fewer accumulators a thread mend it.
#
# ptxas's messages C7500 to C7599 are errors, too, although ptxas gives them as information: it has put waits between
# wgmma instructions (C7510 to C7520), or it ignores setmaxnreg (C7508). Results are right then, and the overlap that
# the kernel is written for is gone.
object=$1 depfile=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# ccache then takes what a source includes from nvcc, and does not preprocess it first. These sources have no
# precompiled header, whose headers such a list may lack.
CCACHE_DEPEND=1 "$@" -o "$object" -MD -MF "$depfile" -MT "$object" 2>"$log"
rc=$?
# ptxas writes "ptxas info", and lines of numbers that begin with blanks.
grep -E '^ptxas info|^ +[0-9]+ bytes' "$log" >"$object.ptxas"
grep -vE '^ptxas info|^ +[0-9]+ bytes' "$log" >&2
if grep -E '^ptxas info +: \(C75[0-9]{2}\)' "$log" >&2; then
  rm -f "$object"
  [ $rc -ne 0 ] || rc=1
fi
exit $rc
