#!/usr/bin/env python3
"""Prints what each .cu file's kernels take of a multiprocessor, from what ptxas said when a CUDA build compiled them.

    bench/registers.py build/cuda > bench/results/registers_sm90.md

kernels/nvcc.sh keeps ptxas' lines beside the objects. Spills are an error of the build; the column says that of the table.
"""
import pathlib
import re
import subprocess
import sys


def kernels(text):
    """Yields (mangled name, registers, static shared bytes, stack bytes, spilled bytes)."""
    name, stack, spilled = None, 0, 0
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            name, stack, spilled = found[1], 0, 0
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, spilled = int(found[1]), int(found[2]) + int(found[3])
        elif name and (found := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            yield name, int(found[1]), int(shared[1]) if shared else 0, stack, spilled
            name = None


def short(mangled):
    plain = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.strip()
    plain = re.sub(r"levin::(kernels::)?((gpu|detail|lib)::)?|\(anonymous namespace\)::|^void ", "", plain)
    return re.sub(r"\((?!\w+\)\d).*", "", plain)[:70].replace("|", "\\|")


def main():
    build = pathlib.Path(sys.argv[1])
    files = sorted(build.glob("*_cu.o.ptxas"))
    if not files:
        sys.exit(f"{build} holds no *.ptxas: give the folder of a finished build with CUDA")
    tool = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    print(f"# Registers of the kernels on sm_90\n\nnvcc {re.search(r'V([0-9.]+)', tool)[1]}, commit {commit.strip()}, by "
          "`bench/registers.py build/cuda`. 65,536 registers a multiprocessor: 32 a thread fill it with 2048 threads, 64 "
          "with 1024, 128 with 512.\nShared memory is what kernels declare; what a launch adds is not in it.\n")
    print("| file | kernels | over 64 registers | over 128 | most registers | which | static shared, bytes, most | stack, "
          "bytes, most | spilled, bytes |\n|---|---|---|---|---|---|---|---|---|")
    for file in files:
        rows = list(kernels(file.read_text()))
        if not rows:
            continue
        top = max(rows, key=lambda row: (row[1], row[0]))
        source = re.sub(r"_cu\.o\.ptxas$", ".cu", file.name)
        for layer in ("autograd_ops_", "kernels_", "tensor_"):
            if source.startswith(layer):
                source = layer.replace("_", "/") + source[len(layer):]
        print(f"| {source} | {len(rows)} | {sum(r[1] > 64 for r in rows)} | {sum(r[1] > 128 for r in rows)} | {top[1]} | "
              f"`{short(top[0])}` | {max(r[2] for r in rows)} | {max(r[3] for r in rows)} | {sum(r[4] for r in rows)} |")


main()
