# The stages of bench/device.sh that measure, for `source`: bench, torch, ncu.

# ---- bench

# NAME SECONDS PROGRAM ARGUMENTS...: one program, alone on the device; its figures are NAME.json.
figures() {
  local name=$1 seconds=$2 program=$3
  shift 3
  job "$name" "$program" --device "$device" --json "$work/$name.json" ${quick:+--quick} "$@"
  run_jobs 1 "$seconds"
}
ops_of() { sed 's/[{}()^]//g' <<<"$1" | tr '|' '\n' | cut -d / -f 1,2 | sort -u; }  # op/dtype of a filter of rows

bench() {
  local run filter part names number=0
  report=report_figures
  local cudnn=(--attention first --norm first --conv timed)
  filter=$(table_of --filter kernels) || { fault "device_table.py names no rows"; return; }
  if [ -n "$quick" ]; then
    # Without speed only the smallest shapes run: some ops of the targets.
    filter="^($(ops_of "$filter" | spread 6 | paste -sd '|'))/"
    figures kernels 60 "$kernels" --warm-only --filter "$filter"
    figures steps 60 "$steps" --filter 'mlp.*_captured'
    figures own_gemm 60 "$kernels" --warm-only --gemm own --filter '^matmul/bf16/'
    figures own_attention 60 "$kernels" --warm-only --attention own --filter '^attention_causal/bf16/'
    figures cudnn 60 "$kernels" --warm-only "${cudnn[@]}" --filter '^(attention|conv2d)/bf16/'
  else
    figures kernels 150 "$kernels" --filter "$filter"
    figures steps 100 "$steps" --filter "$(table_of --filter steps)"
    figures own_gemm 40 "$kernels" --warm-only --gemm own --filter "$(table_of --filter own_gemm)"
    figures own_attention 40 "$kernels" --warm-only --attention own --filter "$(table_of --filter own_attention)"
    figures cudnn 60 "$kernels" --warm-only "${cudnn[@]}" --filter "$(table_of --filter cudnn)"
    # Rows without a target, while time is left: steps by other engines and op by op, and ten ops of the sweep per
    # program.
    figures rest_steps_cudnn 40 "$steps" "${cudnn[@]}" --filter '(gpt2|cnn).*_captured/'
    figures rest_steps 40 "$steps" --filter '_step/|tiny'
    figures rest_own_gemm 30 "$kernels" --warm-only --seconds 0.03 --gemm own --filter '^(matmul|linear|gelu_mlp|bmm)/'
    figures rest_cudnn 30 "$kernels" --warm-only --seconds 0.03 "${cudnn[@]}" --filter '^(attention|batch_norm|conv2d)'
    while read -r part; do
      number=$((number + 1))
      figures "rest_$number" 60 "$kernels" --warm-only --seconds 0.03 --filter "${part%\$}(/|\$)"
    done < <("$kernels" --list cuda | cut -d / -f 1 | uniq | groups 10)
  fi
  report_figures
}
report_figures() {
  local n state rc seconds name cut= files=()
  while IFS=$'\t' read -r n state rc seconds name; do
    if [[ $name != rest_* ]]; then
      if [ -s "$work/$name.json" ]; then files+=("$work/$name.json"); else fault "$name has no figures"; fi
    fi
    case $state in
      ended) ((rc == 0)) || fault "$name ended with $rc: $(grep -a -m 1 'bench:' "$work/$n.log" | cut -c 1-200)" ;;
      cut | slow) if [[ $name == rest_* ]]; then cut="$cut $name"; else fault "cut after $seconds s: $name"; fi ;;
      *) fault "$state: $name" ;;
    esac
  done <"$work/results"
  [ -z "$cut" ] || say "not done, or not whole:$cut"
  if [ ${#files[@]} -eq 0 ]; then
    fault "there are no figures"
  else
    table_of --short "${files[@]}" >>"$work/table" 2>&1 || fault "rows failed"
  fi
  files=("$work"/rest_steps*.json)
  [ -s "${files[0]}" ] && table_of --rows "${files[@]}" >>"$work/table" 2>&1
  return 0
}

# ---- torch

compare() {
  local folder filter
  folder=$(dirname "$kernels")
  if ! python3 -c 'import importlib.util, sys
sys.exit("there is no module torch" if importlib.util.find_spec("torch") is None else 0)' 2>"$work/torch.log"; then
    if [ "$device" = cuda ]; then
      fault "python3 has no PyTorch: $(tail -n 1 "$work/torch.log")"
    else
      compare_dry
    fi
    return
  fi
  local each=(python3 "$here/compare_torch.py" --levin "$folder")
  if [ "$device" = simt ]; then  # on the CPU, which the same programs have
    job torch "${each[@]}" --device cpu --rounds 1 --min-time 0.01 --json "$work/torch.json" \
      --filter '^(add_1|relu/f32/(256|16384))($|/)'
  else
    filter=$(table_of --filter kernels,steps) || { fault "device_table.py names no rows"; return; }
    job torch_cudnn "${each[@]}" --device cuda --rounds 2 --min-time 0.1 --json "$work/torch_cudnn.json" --sdpa cudnn \
      --filter "$(table_of --filter cudnn)" --levin-flags '--attention first --norm first --conv timed'
    job torch "${each[@]}" --device cuda --rounds 2 --min-time 0.1 --filter "$filter" --json "$work/torch.json"
  fi
  report=report_comparison
  run_jobs 1 $((limit * 3 / 4))
  report_comparison
}
report_comparison() {
  local n state rc seconds name
  while IFS=$'\t' read -r n state rc seconds name; do
    [ "$state" = ended ] && [ "$rc" -eq 0 ] ||
      fault "$name: $state with $rc after $seconds s: $(tail -n 1 "$work/$n.log" | cut -c 1-200)"
    table_of --short "$work/$name.json" >>"$work/table" 2>&1 || fault "$name has no figures"
  done <"$work/results"
}
# Without PyTorch the comparison is listed, compare_torch.py is checked to hold it, and Levin's half runs.
compare_dry() {
  local op unknown=()
  say "without PyTorch, which python3 here has not: nothing was compared"
  python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$here/compare_torch.py" ||
    fault "compare_torch.py does not parse"
  for op in $(ops_of "$(table_of --filter kernels,cudnn)" | cut -d / -f 1 | uniq); do
    grep -q "\"$op\":" "$here/compare_torch.py" || unknown+=("$op")
  done
  say "ops of gpu_targets.md that PyTorch's side has not: ${unknown[*]:-none}"
  figures torch_dry 60 "$kernels" --warm-only --filter '^(relu|softmax)/f32/'
  report_figures
}

# ---- ncu

# bench/device/rows.txt, a kernel a line: label, row of bench_kernels, kernel, part of its template arguments or -,
# flags.
kernel_rows() { grep -vE '^\s*(#|$)' "$here/device/rows.txt"; }
check_kernel_rows() {
  local label row kernel of flags
  "$kernels" --list cuda | sed 's,/iterations.*,,' >"$work/known_rows.txt"
  while read -r label row kernel of flags; do
    grep -qxF "$row" "$work/known_rows.txt" || fault "$label: bench_kernels has no row $row"
    grep -qE "^\| \S+ \| \`$kernel\` \|" "$here/results/registers_sm90.md" ||
      fault "$label: registers_sm90.md has no kernel $kernel"
  done < <(kernel_rows)
}
profile() {
  local label row kernel of flags pattern count
  count=$(kernel_rows | wc -l)
  ((count > 0)) || { fault "rows.txt names no kernel"; return; }
  check_kernel_rows
  if [ "$device" = simt ]; then
    say "without ncu, which knows no simt: $count rows and kernels were looked up"
    return
  fi
  ncu=$(tool ncu) || { fault "ncu is not here"; return; }
  while read -r label row kernel of flags; do
    pattern="$kernel[<(]"
    [ "$of" = - ] || pattern="$kernel<.*$of"
    # The first launch of the kernel, with unchanged clocks; ncu then ends the program.
    job "$label" "$ncu" --clock-control none --kernel-name-base demangled --kernel-name "regex:$pattern" \
      --launch-count 1 --kill yes --section SpeedOfLight --section MemoryWorkloadAnalysis --section Occupancy \
      --section LaunchStats --section WarpStateStats \
      --metrics dram__throughput.avg.pct_of_peak_sustained_elapsed --force-overwrite --export "$work/$label" \
      "$kernels" --device "$device" --warm-only --seconds 0.001 $flags --filter "^$row/"
  done < <(kernel_rows)
  report=report_kernels
  run_jobs 1 45
  report_kernels
}
report_kernels() {
  local n state rc seconds label tables=()
  while IFS=$'\t' read -r n state rc seconds label; do
    if [ -e "$work/$label.ncu-rep" ]; then
      tables+=("$work/$label.csv")
      "$ncu" --import "$work/$label.ncu-rep" --page raw --csv >"$work/$label.csv" 2>>"$work/import.log" ||
        fault "$label: its report can not be read: $(tail -n 1 "$work/import.log")"
    elif [ "$state" = cut ]; then
      fault "cut: $label"
    else
      fault "$label: $state with $rc and without a report: $(grep -a -m 1 -E '==(ERROR|WARNING)==|bench:' \
        "$work/$n.log" | cut -c 1-200)"
    fi
  done <"$work/results"
  [ ${#tables[@]} -eq 0 ] && return
  python3 "$here/device/ncu_table.py" "${tables[@]}" >>"$work/table" 2>&1 ||
    fault "launches are missing in what ncu measured"
}
