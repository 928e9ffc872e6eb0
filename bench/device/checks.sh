# The stages of bench/device.sh that look for faults, for `source`: probe, tests, sanitize.

# ---- probe

line_of() {  # LABEL COMMAND...: the first line of what it says, in the table; all of it in the log
  local label=$1 said
  shift
  said=$(timeout -k 2 10 "$@" 2>&1)
  local rc=$?
  printf '## %s: %s\n%s\n\n' "$label" "$*" "$said" >>"$work/probe.log"
  say "$(printf '%-18s %s' "$label" "$(head -n 1 <<<"$said" | cut -c 1-200)")"
  return $rc
}
no_tests() { fault "levin_tests has no tests for $device: $(head -n 1 "$work/names.log")"; }
probe() {
  line_of machine uname -srm
  line_of cpus nproc
  line_of memory sh -c 'awk "/MemTotal|MemAvailable/ {printf \"%s %d GiB  \", \$1, \$2 / 1048576}" /proc/meminfo'
  if [ "$device" = cuda ]; then
    local asked=(nvidia-smi --format=csv,noheader)
    line_of gpu "${asked[@]}" --query-gpu=name,driver_version,memory.total,power.limit || fault "no nvidia-smi"
    line_of clocks "${asked[@]}" --query-gpu=clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw
    line_of "also on the GPU" "${asked[@]}" --query-compute-apps=pid,name
    printf '## nvidia-smi -q\n%s\n' "$(timeout 10 nvidia-smi -q 2>&1)" >>"$work/probe.log"
    local name
    for name in compute-sanitizer ncu; do
      line_of "$name" "$(tool "$name" || echo "$name")" --version || say "  the stage that uses it can not run"
    done
  # Without an import, which takes a minute on a cold disk.
    line_of PyTorch python3 -c 'import sys; sys.tracebacklimit = 0
from importlib.metadata import version; print(version("torch"))' ||
      say "  the stage torch can not run"
  fi
  say "$(printf '%-18s %s' libraries "$library_path")"
  say "$(printf '%-18s %s' "of the archive" "$(ls "$work/needed" | paste -sd ' ')")"
  for name in "${all_programs[@]}"; do ldd "$name"; done >>"$work/probe.log" 2>&1
  timeout 60 "$(program levin)" env >"$work/env.txt" 2>&1 || fault "levin env: $(tail -n 1 "$work/env.txt")"
  cat "$work/env.txt" >>"$work/table"
  local count
  count=$(test_names | wc -l)
  if ((count > 0)); then say "$(printf '%-18s %s' "device tests" "$count")"; else no_tests; fi
  # One op of each engine: ours, and the libraries' where the build has them.
  timeout 120 "$kernels" --quick --device "$device" --warm-only --attention first --norm first \
    --json "$work/probe.json" \
    --filter '^(add/f32/256|matmul/bf16/16x16x16|conv2d/bf16/2x2x4x6x3|attention/bf16/1x1x16x32)/' \
    >"$work/op.log" 2>&1 ||
    fault "the first ops: $(grep -m 1 -iE 'error|bench:' "$work/op.log" | cut -c 1-300)"
  table_of --short "$work/probe.json" >>"$work/table" 2>&1 || fault "the first ops left no figures"
}

# ---- tests

# Exit status and closing line of a run of levin_tests: passed, failed, skipped, slow, cut, absent, or died.
outcome() {  # NUMBER STATE STATUS
  [ "$2" = ended ] || { echo "$2"; return; }
  local p f s
  read -r p f s < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$work/$1.log" |
    tail -n 1)
  if [ -z "${s:-}" ] || ((p + f + s == 0)) || { [ "$3" -ne 0 ] && ((f == 0)); }; then
    echo died
  elif ((f > 0)); then
    echo failed
  elif ((p > 0)); then
    echo passed
  else
    echo skipped
  fi
}
first_error() {  # LOG: the check and what it compared, or the last words
  local found
  found=$(grep -a -m 1 -A 1 -E 'ERROR|error|terminate called|levin_tests: ' "$1" | tr -s ' \n' ' ')
  [ -n "$found" ] || found="last words: $(tail -n 1 "$1")"
  printf '%s' "${found:0:240}"
}
groups() {  # SIZE: the lines of stdin as regular expressions that name SIZE of them each
  xargs -n "$1" | sed 's/ /|/g; s/.*/^(&)$/'
}

list_ops() {  # the cases of the op table, one a line, in ops.txt
  if "$tests" --list-ops >"$work/said.txt" 2>&1 && [ -s "$work/said.txt" ]; then
    sort -u "$work/said.txt" >"$work/ops.txt"
    return
  fi
  fault "levin_tests --list-ops names no op: $(tail -n 1 "$work/said.txt")"
  return 1
}
queue_tests() {
  local name part of_ops
  of_ops=$(test_names --file tests/ops/device_test)
  list_ops || return
  local size=$((($(wc -l <"$work/ops.txt") + at_a_time - 1) / at_a_time))
  if [ -n "$quick" ]; then
    spread 2 <"$work/ops.txt" >"$work/few" && mv "$work/few" "$work/ops.txt"
    size=1
  fi
  # The tests of all ops are the longest: they start first, cut by op.
  while read -r name; do
    [ -n "$name" ] || continue
    while read -r part; do
      job "$name $part" env "LEVIN_OPS=$part" "$tests" --name "$name"
    done < <(groups "$size" <"$work/ops.txt")
  done < <(if [ -n "$quick" ]; then head -n 1 <<<"$of_ops"; else cat <<<"$of_ops"; fi)
  while read -r name; do
    job "$name" "$tests" --name "$name"
  done < <(test_names | grep -vxF "$of_ops" | if [ -n "$quick" ]; then spread 8; else cat; fi)
}
report_tests() {
  local n state rc seconds label what
  declare -A count=()
  while IFS=$'\t' read -r n state rc seconds label; do
    what=$(outcome "$n" "$state" "$rc")
    count[$what]=$((${count[$what]:-0} + 1))
    case $what in
      passed | skipped) ;;
      cut) fault "cut: $label" ;;
      slow) fault "not over after $seconds s: $label" ;;
      *) fault "$what, status $rc: $label"; say "  $(first_error "$work/$n.log")"; printf '%s\0' "$n" >>"$work/bad" ;;
    esac
  done <"$work/results"
  say "$(for what in passed failed skipped slow died absent cut; do
    printf '%s %s, ' "${count[$what]:-0}" "$what"
  done | sed 's/, $//')"
  say "$(sed -nE 's/^[0-9]+ (skipped: .*)/\1/p' "$work"/[0-9]*.log | sort | uniq -c | sort -rn | head -n 12)"
  say "longest: $(sort -t $'\t' -k 4,4 -rn "$work/results" | head -n 4 | awk -F '\t' '{printf "%s s %.60s; ", $4, $5}')"
}
tests() {
  queue_tests
  ((jobs > 0)) || { no_tests; return; }
  report=report_tests
  run_jobs "$at_a_time" $((limit / 2))
  report_tests
  if [ -n "$again" ] && [ -s "$work/bad" ]; then
    say "again, with CUDA_LAUNCH_BLOCKING=1:"
    local n label
    while IFS=$'\t' read -r n _ _ _ label; do
      grep -qzx "$n" "$work/bad" || continue
      local name=$label ops=.
      [[ $label =~ ^(.*)\ (\^\(.*\)\$)$ ]] && name=${BASH_REMATCH[1]} ops=${BASH_REMATCH[2]}
      job "again: $label" env CUDA_LAUNCH_BLOCKING=1 "LEVIN_OPS=$ops" "$tests" --name "$name"
    done <"$work/results"
    mv "$work/results" "$work/first_results" && : >"$work/results"
    run_jobs "$at_a_time" 60
    report_tests
  fi
}

# ---- sanitize

# racecheck runs the ops whose kernels share memory between threads first, then all others.
shared_first() {
  local families='attention|matmul|linear|outer|einsum|gelu_mlp|softmax|norm|cross_entropy|nll|sort|topk|cum|sum|prod'
  families+='|var|std|max|min|segment|csr|spmm|sddmm|conv|transpose|permute|embedding|index_add|scatter_add|nonzero'
  { grep -E "$families" "$work/ops.txt"; grep -vE "$families" "$work/ops.txt"; }
}
queue_checks() {  # TOOL PROGRAM SIZE: the kernels that the op table does not reach, then parts of SIZE ops
  # Libraries try calls that may fail, and have hazards of their own. A kernel is Levin's where its mangled name says
  # so.
  local part file number=0 under=() only=()
  [ "$1" = racecheck ] && only=(--kernel-name kns=levin)
  [ -n "$2" ] &&
    under=("$2" --tool "$1" --error-exitcode 97 --print-limit 20 --launch-timeout 120 --report-api-errors no
           "${only[@]}")
  # For memcheck each tensor has a block of its own, so an access past its end is outside of memory.
  local apart=(env)
  [ "$1" = racecheck ] || apart+=(LEVIN_NO_MEMORY_CACHING=1)
  for file in kernels/gemm/gemm_hopper_test kernels/attention/attention_hopper_test; do
    [ -z "$quick" ] && job "$1 0 $file" "${apart[@]}" "${under[@]}" "$tests" --file "$file"
  done
  while read -r part; do
    number=$((number + 1))
    job "$1 $number $part" "${apart[@]}" "LEVIN_OPS=$part" "${under[@]}" "$tests" --filter 'ops on a device: values'
  done < <(if [ "$1" = racecheck ]; then shared_first; else cat "$work/ops.txt"; fi | groups "$3")
}
report_checks() {
  local n state rc seconds label errors tested kind
  declare -A parts=() cut=() found=()
  say "$(printf '%-9s %7s %7s %-8s %s' tool errors seconds tests part)"
  while IFS=$'\t' read -r n state rc seconds label; do
    kind=${label%% *} parts[$kind]=$((${parts[$kind]:-0} + 1))
    if [ "$state" != ended ] && [ "$state" != slow ]; then
      cut[$kind]="${cut[$kind]:-} ${label#* * }"
      continue
    fi
    tested=$(outcome "$n" "$state" 0)
    errors=$(sed -nE 's/.*(ERROR|RACECHECK) SUMMARY: ([0-9]+) .*/\2/p' "$work/$n.log" | head -n 1)
    grep -aqE 'No attachable process|terminated before first' "$work/$n.log" && errors=
    [ "$kind" = none ] && errors=0
    say "$(printf '%-9s %7s %7s %-8s %s' "$kind" "${errors:--}" "$seconds" "$tested" "${label#* }" | cut -c 1-100)"
    if [ -z "$errors" ]; then
      fault "no summary from $label: $(tail -n 1 "$work/$n.log" | cut -c 1-200)"
    elif ((errors > 0)); then
      found[$kind]=$((${found[$kind]:-0} + errors))
      fault "$errors errors in $label: $(grep -a -m 1 -E '^========= [A-Z][a-z]' "$work/$n.log" | cut -c 1-200)"
    fi
    [ "$tested" = passed ] || fault "$tested: $label: $(first_error "$work/$n.log")"
  done <"$work/results"
  for kind in "${!parts[@]}"; do
    say "$kind: ${parts[$kind]} parts, ${found[$kind]:-0} errors"
    [ -z "${cut[$kind]:-}" ] || fault "$kind did not come to:${cut[$kind]}"
  done
}
sanitize() {
  local checker= size=10
  list_ops || return
  if [ -n "$quick" ]; then
    spread 3 <"$work/ops.txt" >"$work/few" && mv "$work/few" "$work/ops.txt"
    size=1
  fi
  if [ "$device" = simt ]; then
    say "without compute-sanitizer, which knows no simt"
    queue_checks none "" "$size"
  else
    checker=$(tool compute-sanitizer) || { fault "compute-sanitizer is not here"; return; }
    queue_checks memcheck "$checker" "$size"
    queue_checks racecheck "$checker" "$size"
  fi
  report=report_checks
  run_jobs "$at_a_time" $((limit / 2))
  report_checks
}
