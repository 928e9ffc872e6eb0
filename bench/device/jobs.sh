# The base of bench/device.sh, for `source`: the places of programs and libraries, and jobs that run side by side within
# a limit.

# ---- Programs: a folder made by bench/device_pack.sh, that archive, or a build folder

unpacked() {  # ARCHIVE: unpacks it once for each content, and prints the folder
  local to
  to=${TMPDIR:-/tmp}/levin_device_$(sha256sum "$1" | cut -c 1-16) || return 1
  if [ ! -e "$to/COMMIT" ]; then
    rm -rf "$to.part" && mkdir -p "$to.part" || return 1
    if command -v xz >/dev/null; then
      tar -xJf "$1" -C "$to.part" || return 1
    else
      python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$1" "$to.part" || return 1
    fi
    rm -rf "$to" && mv "$to.part" "$to" || return 1
  fi
  echo "$to"
}

program() {  # NAME: prints its path, or fails
  local folder
  for folder in bin tests bench examples; do
    [ -x "$programs/$folder/$1" ] && echo "$programs/$folder/$1" && return
  done
  return 1
}

tool() {  # NAME: a tool of NVIDIA's, wherever its installer put it
  local found
  for found in "$(command -v "$1")" /usr/local/cuda*/bin/"$1" /usr/local/cuda*/compute-sanitizer/"$1" \
    /opt/nvidia/nsight-compute/*/"$1"; do
    [ -x "$found" ] && echo "$found" && return
  done
  return 1
}

# ---- Shared objects: CUDA's from pip's packages or a toolkit, the machine's own, the archive's for missing ones

library_folders() {  # with cuBLASLt, cuDNN or what cuDNN compiles kernels with; a set from one hand comes first
  local folder
  {
    python3 -c 'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null | while read -r folder; do
      printf '%s\n' "$folder"/*/lib
    done
    printf '%s\n' /opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib \
      /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib
  } | while read -r folder; do
    compgen -G "$folder/lib@(cublasLt|cudnn|nvrtc).so*" >/dev/null && echo "$folder"
  done
}
ldd_of_all() {
  local name
  for name in "${all_programs[@]}"; do LD_LIBRARY_PATH=$library_path ldd "$name" 2>&1; done
}

# Sets library_path, and lacking: the objects that neither the machine nor the archive has.
find_libraries() {
  local name round names
  shopt -s extglob
  mkdir -p "$work/needed"
  library_path=$work/needed$(library_folders | sed 's/^/:/' | tr -d '\n')
  for round in 1 2 3; do  # what is found may need more
    mapfile -t names < <(ldd_of_all | sed -nE 's/^\s*(\S+) => not found.*/\1/p' | sort -u)
    lacking=()
    for name in "${names[@]}"; do
      if [ -e "$programs/lib/$name" ]; then
        ln -sf "$(realpath "$programs/lib/$name")" "$work/needed/$name"
      else
        lacking+=("$name")
      fi
    done
    [ ${#names[@]} -eq ${#lacking[@]} ] && break
  done
  # Some of the machine's objects may be older than those that the programs were linked with.
  if ldd_of_all | grep -q 'version .* not found' && [ -d "$programs/lib" ]; then
    library_path=$programs/lib:$library_path
    mapfile -t -O "${#lacking[@]}" lacking < <(ldd_of_all | grep 'version .* not found' | sort -u)
  fi
}

# ---- Jobs

left() { echo $((deadline - $(date +%s))); }

job() {  # LABEL COMMAND...: one more; its number is in $jobs
  local label=$1
  shift
  jobs=$((jobs + 1))
  printf '%s\0%s\0%s\0' "$jobs" "$label" "$(printf '%q ' "$@")" >>"$work/queue"
}

# A line of results: number, outcome, exit status, seconds, label. Outcomes: `ended` by itself; `slow`: stopped at its
# own limit; `cut`: stopped or never started because the stage's time was over; `absent`: no such program.
one_job() {  # NUMBER LABEL COMMAND
  local mine=$job_limit rest state=ended begin=$SECONDS rc=0 at_limit=slow
  rest=$((deadline - $(date +%s)))
  ((mine >= rest)) && mine=$rest at_limit=cut
  if ((mine < 1)) || [ -e "$work/stopping" ]; then
    state=cut
  else
    timeout -k 5 "$mine" bash -c "$3" >"$work/$1.log" 2>&1 </dev/null &
    echo $! >"$work/$1.pid"
    wait $! 2>/dev/null
    rc=$?
    rm -f "$work/$1.pid"
    [ -e "$work/stopping" ] && rc=124 mine=0 at_limit=cut
    case $rc in
      124 | 137) ((SECONDS - begin + 1 >= mine)) && state=$at_limit ;;
      126 | 127) state=absent ;;
    esac
    # Readers look at the first error; a test that prints for ever must not fill the archive of logs.
    if [ "$(stat -c %s "$work/$1.log")" -gt 400000 ]; then
      { head -c 300000 "$work/$1.log" && printf '\n... cut ...\n' && tail -c 90000 "$work/$1.log"; } >"$work/$1.cut"
      mv "$work/$1.cut" "$work/$1.log"
    fi
  fi
  printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$state" "$rc" $((SECONDS - begin)) "$2" >>"$work/results"
}

run_jobs() {  # AT_A_TIME SECONDS_EACH: all that are queued
  export work deadline job_limit=$2
  export -f one_job
  # In the background, so that a signal arrives while jobs run.
  xargs -0 -n 3 -P "$1" -a "$work/queue" bash -c 'SECONDS=0; one_job "$@"' one_job 2>/dev/null &
  running=$!
  wait $running
  running=
  sort -n -o "$work/results" "$work/results"
  : >"$work/queue"
}

# On a signal no job starts or continues, and all are reported.
stopped() {
  trap '' INT TERM
  local pid
  touch "$work/stopping"
  for pid in "$work"/*.pid; do
    [ -e "$pid" ] && kill "$(cat "$pid")" 2>/dev/null
  done
  [ -z "$running" ] || wait "$running"
  fault "stopped from outside after $SECONDS s"
  sort -n -o "$work/results" "$work/results"
  [ -z "$report" ] || "$report"
  finish
}

# ---- Tables: whole in a file, short on the screen

say() { printf '%s\n' "$*" >>"$work/table"; }
fault() {  # what makes the stage fail
  faults=$((faults + 1))
  say "FAULT $*"
}

# Puts all results into their folder, prints the table last, and ends.
finish() {
  trap - INT TERM
  mkdir -p "$out"
  ((faults == 0)) && say "$stage: done in $SECONDS s" || say "$stage: $faults faults, after $SECONDS s"
  cp "$work/table" "$out/$stage.txt"
  rm -rf "$work/needed" "$work/queue"
  tar -C "$work" -czf "$out/$stage.tar.gz" . || faults=$((faults + 1))
  if [ "$(stat -c %s "$out/$stage.tar.gz")" -ge 16000000 ]; then  # the tables of ncu's reports stay
    rm -f "$work"/*.ncu-rep
    tar -C "$work" -czf "$out/$stage.tar.gz" . || faults=$((faults + 1))
    [ "$(stat -c %s "$out/$stage.tar.gz")" -lt 16000000 ] || echo "$stage: the archive of logs has more than 16 MB"
  fi
  echo "$stage: all logs in $out/$stage.tar.gz"
  if [ "$(wc -c <"$work/table")" -gt 10500 ]; then
    head -c 8500 "$work/table"
    printf '\n... the whole of it is in %s\n' "$out/$stage.txt"
    tail -n 5 "$work/table" | cut -c 1-300
  else
    cat "$work/table"
  fi
  rm -rf "$work"
  exit $((faults > 0))
}
