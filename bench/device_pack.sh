#!/bin/bash
# Packs what bench/device.sh needs for a machine that has a GPU and its driver, cuBLASLt, cuDNN, Python and the C++
# library, and nothing to build with: the programs of a build with CUDA, the shared objects that such a machine may
# lack, the scripts.
#
#   bench/device_pack.sh [BUILD [ARCHIVE]]    build/cuda, build/device/pack.tar.xz
#
# BUILD is configured and built where it is not: tests, benchmarks and `levin`. With -Dcuda-ptx=false programs are
# smaller; with -Ddebug=true compute-sanitizer names lines of kernels, and programs are larger. What each part takes is
# printed, and the archive's size, which may be at most LIMIT MiB (55): what is carried to such a machine is often
# limited. The unpacked programs are started once, from a folder of their own.
#
# The library is in each program, with all machine code: xz sees the second copy when its window is larger than all of
# them together.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$root/build/cuda} archive=${2:-$root/build/device/pack.tar.xz} limit=${LIMIT:-55}
programs=(tests/levin_tests bench/bench_kernels bench/bench_step examples/levin)  # those that device.sh starts
fail() {
  printf 'device_pack: %s\n' "$*" >&2
  exit 1
}

if [ ! -f "$build/build.ninja" ]; then
  meson setup "$build" "$root" -Doptimization=2 -Ddebug=false -Dcpp_args=-g1 -Dcuda=enabled ||
    fail "$build can not be configured"
fi
log=$(ninja -C "$build" "${programs[@]}" 2>&1) || { tail -n 40 <<<"$log"; fail "the build failed"; }
grep -q LEVIN_CUDA=1 "$build/build.ninja" || fail "$build is a build without CUDA"

# The kernels that the stage ncu selects by template arguments must be in this build.
kernels=$(cat "$build"/*_cu.o.ptxas | sed -nE "s/.*Compiling entry function '(\w+)'.*/\1/p" | c++filt)
while read -r label _ kernel of _; do
  pattern="$kernel[<(]"
  [ "$of" = - ] || pattern="$kernel<.*$of"
  grep -qE "[ :]$pattern" <<<"$kernels" || fail "bench/device/rows.txt: $label: no kernel of the build is $pattern"
done < <(grep -vE '^\s*(#|$)' "$root/bench/device/rows.txt")

stage=$(mktemp -d) || exit 1
trap 'rm -rf "$stage" "$archive.part"' EXIT
mkdir -p "$stage/pack/"{bin,lib,bench/results} "$(dirname "$archive")"
for name in "${programs[@]}"; do
  strip -o "$stage/pack/bin/${name##*/}" "$build/$name" || fail "$build/$name can not be stripped"
done
# Objects that every machine has, and those of CUDA and the driver, stay out.
everywhere='^((linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)(-[-a-z0-9]+)?'
everywhere+='|(libcublas|libcudart|libcuda|libcudnn|libnvidia)[-._a-zA-Z0-9]*)\.so'
for name in "${programs[@]}"; do ldd "$build/$name"; done >"$stage/ldd"
grep 'not found' "$stage/ldd" && fail "a program lacks a shared object here"
sed -nE 's/^\s*(\S+) => (\/\S+).*/\1 \2/p' "$stage/ldd" | sort -u | grep -vE "$everywhere" | while read -r name path; do
  cp -L "$path" "$stage/pack/lib/$name"
done || fail "shared objects can not be copied"
cp -r "$root"/bench/{device,device.sh,device_table.py,compare_torch.py} "$stage/pack/bench/"
cp "$root"/bench/results/{gpu_targets,registers_sm90}.md "$stage/pack/bench/results/"
{ git -C "$root" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown; } >"$stage/pack/COMMIT"

window=$(du -sm "$stage/pack" | awk '{w = 64; while (w < $1 + 16) w *= 2; print w}')
# --x86 makes relative calls of the host absolute, which repeat; machine code of a GPU is compressed already.
tar -C "$stage/pack" --owner=0 --group=0 --sort=name -cf - . | xz --check=crc32 --x86 \
  --lzma2="preset=6,dict=${window}MiB" >"$archive.part" || fail "xz failed"

mkdir "$stage/there" && tar -C "$stage/there" -xJf "$archive.part" || fail "the archive can not be unpacked"
started() {
  (cd "$stage/there" && env -i PATH=/usr/bin:/bin LD_LIBRARY_PATH="$stage/there/lib" "$@" >/dev/null) ||
    fail "$* does not start"
}
started bin/levin env
started bin/levin_tests --list
started bin/bench_kernels --help
started bin/bench_step --help

(cd "$stage/pack" && du -k --apparent-size bin/* lib/* bench | awk '{printf "%8.1f MiB  %s\n", $1 / 1024, $2}')
bytes=$(stat -c %s "$archive.part")
printf '%8.1f MiB  %s, commit %s\n' "$(awk "BEGIN {print $bytes / 1048576}")" "$archive" "$(cat "$stage/pack/COMMIT")"
((bytes <= limit * 1048576)) ||
  fail "the archive takes more than $limit MiB; -Dcuda-ptx=false makes the programs smaller"
mv "$archive.part" "$archive"
