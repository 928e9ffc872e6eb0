#!/bin/bash
# Proves and measures Levin on a machine with a GPU that is at hand for a short time and has no packages to build with.
#
#   bench/device_pack.sh             where Levin is built with CUDA: makes build/device/pack.tar.xz
#   bench/device.sh STAGE [OPTIONS]  there, beside the archive: one stage, within its limit
#   bench/device_table.py FILE...    fills bench/results/gpu_targets.md from what bench and torch brought back
#
#   stage     seconds  what
#   probe          30  driver, clocks, missing shared objects, libraries, one op
#   tests         240  each test of kernels in a process of its own, because an error of the device ends a process
#   bench         420  the rows of gpu_targets.md, then all others for as long as is left
#   sanitize      280  the op table under compute-sanitizer: memcheck, then racecheck, a few ops a process
#   torch         300  PyTorch beside Levin on the rows of gpu_targets.md, in alternating rounds
#   ncu           150  the kernels of device/rows.txt under Nsight Compute
#
# This is their order by value; each fits into a command of ten minutes, all into 24 minutes. A stage ends by itself
# at its limit: what is not done then is named, and what is done is kept. It leaves STAGE.txt (a table, also the last
# lines on the screen) and STAGE.tar.gz (all logs and figures) in the folder OUT. The exit status is 0 when all of it
# ran and passed.
#
# OPTIONS, or variables of the environment:
#   --device cuda|simt  DEVICE    simt: the same paths on the host, for tests of this script
#   --limit SECONDS     LIMIT     of the stage
#   --out FOLDER        OUT       build/device
#   --programs PATH     PROGRAMS  the archive, its folder or a build folder; build/device/pack.tar.xz, or this folder
#   --jobs N            JOBS      processes at a time of tests and sanitize; 8
#   --quick                       a few tests, ops and rows: that it runs, and no figure means anything
#   --again                       tests: what failed runs once more with CUDA_LAUNCH_BLOCKING=1
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${here%/*}
source "$here/device/jobs.sh"
source "$here/device/checks.sh"
source "$here/device/figures.sh"

declare -A limits=([probe]=30 [tests]=240 [bench]=420 [sanitize]=280 [torch]=300 [ncu]=150)
usage() {
  sed -n '2,/^set -/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}
refuse() {
  printf 'device.sh: %s; --help says how it is called\n' "$*" >&2
  exit 2
}

stage= quick= again= out=${OUT:-$root/build/device} device=${DEVICE:-cuda} limit=${LIMIT:-} at_a_time=${JOBS:-8}
programs=${PROGRAMS:-$root/build/device/pack.tar.xz}
[ -z "${PROGRAMS:-}" ] && [ -e "$root/COMMIT" ] && programs=$root  # this is the unpacked archive
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage && exit 0 ;;
    --quick) quick=yes ;;
    --again) again=yes ;;
    --device | --limit | --out | --programs | --jobs)
      [ $# -gt 1 ] || refuse "$1 lacks its value"
      case $1 in
        --device) device=$2 ;;
        --limit) limit=$2 ;;
        --out) out=$2 ;;
        --programs) programs=$2 ;;
        --jobs) at_a_time=$2 ;;
      esac
      shift
      ;;
    -*) refuse "unknown option $1" ;;
    *)
      [ -z "$stage" ] || refuse "one stage at a time, not $stage and $1"
      stage=$1
      ;;
  esac
  shift
done
[ -n "$stage" ] && [ -n "${limits[$stage]:-}" ] ||
  refuse "stage \"$stage\"; there are probe, tests, bench, sanitize, torch and ncu"
[[ $device == cuda || $device == simt ]] || refuse "device \"$device\"; there are cuda and simt"
limit=${limit:-${limits[$stage]}}
[[ $device == simt && $stage =~ ^(bench|torch|ncu)$ ]] && quick=yes  # simt has no speed
[[ $limit =~ ^[1-9][0-9]*$ && $at_a_time =~ ^[1-9][0-9]*$ ]] ||
  refuse "limit \"$limit\" and jobs \"$at_a_time\" are whole numbers above 0"

# ---- What every stage needs

SECONDS=0 jobs=0 faults=0 running= report=
deadline=$(($(date +%s) + limit - 5))  # the rest packs the logs
work=$(mktemp -d) || exit 1
: >"$work/table" >"$work/results" >"$work/queue"
unset LEVIN_OPS
trap stopped INT TERM

if [ -f "$programs" ]; then
  programs=$(unpacked "$programs") || { fault "the archive can not be unpacked"; finish; }
fi
all_programs=() absent=()
for name in levin_tests bench_kernels bench_step levin; do
  if path=$(program "$name"); then all_programs+=("$path"); else absent+=("$name"); fi
done
if [ ${#absent[@]} -gt 0 ]; then
  fault "$programs has no ${absent[*]}"
  finish
fi
find_libraries
if [ ${#lacking[@]} -gt 0 ]; then
  fault "neither this machine nor the archive has$(printf '; %s' "${lacking[@]}" | cut -c 2-)"
  finish
fi
tests=$(program levin_tests) kernels=$(program bench_kernels) steps=$(program bench_step)
export LD_LIBRARY_PATH=$library_path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
commit=$(cat "$programs/COMMIT" 2>/dev/null || git -C "$root" describe --always --dirty --abbrev=12 2>/dev/null ||
  echo unknown)
say "$stage on $device, commit $commit, $(date -u +%FT%TZ)${quick:+, quick: no figure means anything}"

# N of the lines of stdin, evenly spread.
spread() {
  awk -v n="$1" '{line[NR] = $0} END {if (n > NR) n = NR; for (i = 0; i < n; i++) print line[int(i * NR / n) + 1]}'
}
# Without the tests of these scripts, which would run this one.
test_names() {
  "$tests" --device "$device" "$@" --list 2>"$work/names.log" |
    sed -E '/^=*$/d; /^\[doctest\]/d; /^device(\.sh|_table)/d'
}
table_of() { python3 "$here/device_table.py" "$@"; }


case $stage in
  probe) probe ;;
  tests) tests ;;
  bench) bench ;;
  sanitize) sanitize ;;
  torch) compare ;;
  ncu) profile ;;
esac
finish
