#!/usr/bin/env python3
"""What kernels take of a multiprocessor, from ptxas' report of a CUDA build: a table, and a check against it.

    bench/registers.py build/cuda > bench/results/registers_sm90.md
    bench/registers.py build/cuda --check bench/results/registers_sm90.md

kernels/device/nvcc.sh keeps ptxas' lines beside the objects. A line of the table is a kernel template of a file with
all its instances, so that a template's new argument changes no line. The check fails, by name, for a kernel that is
missing in the table or in the build, that spills, that declares more than 48 KiB of shared memory, or whose instances
take over SLACK more registers than the table's, in the mean or in the largest: a multiprocessor allocates registers in
steps of 8 per thread. The check compares registers only for the nvcc that made the table. tests/cuda/registers_test.cpp
runs it.
"""
import argparse
import pathlib
import re
import subprocess
import sys

SLACK = 8
ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = {re.sub(r"\W", "_", str(path.relative_to(ROOT))): str(path.relative_to(ROOT))
           for folder in ("autograd", "kernels", "tensor") for path in (ROOT / folder).rglob("*.cu")}
STATIC_SHARED = 48 * 1024  # bytes: the limit of a declaration; more must be requested
COLUMNS = ("file", "kernel", "instances", "registers, mean", "registers, most", "static shared, bytes, most",
           "stack, bytes, most", "spilled, bytes")


def entries(text):
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


def plain_names(mangled):
    """Of each, the function's own name: no namespaces, no arguments."""
    said = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True,
                          check=True).stdout.splitlines()
    return [re.split(r"[<(]", name.replace("(anonymous namespace)::", "").removeprefix("void "))[0].split("::")[-1]
            for name in said]


def source_of(file):
    """autograd_ops_index_sort_cu.o.ptxas -> autograd/ops/index/sort.cu; a file outside the tree: its first folder."""
    name = file.name.removesuffix(".o.ptxas")
    return SOURCES.get(name, re.sub(r"_cu$", ".cu", name).replace("_", "/", 1))


def measured(build):
    """{(file, kernel): [instances, mean of registers, most, shared, stack, spilled]} of the files of the build."""
    files = sorted(build.glob("*_cu.o.ptxas"))
    ninja = build / "build.ninja"
    if ninja.exists():
        made = ninja.read_text()
        files = [f for f in files if f.name.removesuffix(".ptxas") in made]
    if not files:
        sys.exit(f"{build} holds no *.ptxas: give the folder of a finished build with CUDA")
    found = {}
    for file in files:
        rows = list(entries(file.read_text()))
        for name, (_, *numbers) in zip(plain_names([row[0] for row in rows]), rows):
            row = found.setdefault((source_of(file), name), [0, 0, 0, 0, 0, 0])
            row[0] += 1
            row[1] += numbers[0]
            for i, n in enumerate(numbers[:3], 2):
                row[i] = max(row[i], n)
            row[5] += numbers[3]
    for row in found.values():
        row[1] = round(row[1] / row[0])
    return found


def read_table(text):
    """(the nvcc it was made with, the rows as measured() has them)"""
    rows = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) == len(COLUMNS) and cells[2].isdigit():
            rows[cells[0], cells[1].strip("`")] = [int(c) for c in cells[2:]]
    nvcc = re.search(r"nvcc ([0-9.]+)", text)
    return nvcc[1] if nvcc else "", rows


def complaints(built, table, same_compiler):
    for (file, kernel), (_, mean, most, shared, _, spilled) in sorted(built.items()):
        where = f"{kernel} of {file}"
        if spilled:
            yield f"{where} spills {spilled} bytes"
        if shared > STATIC_SHARED:
            yield f"{where} declares {shared} bytes of shared memory, more than {STATIC_SHARED}"
        if (file, kernel) not in table:
            yield f"{where} is not in the table"
        elif same_compiler:
            for what, now, before in (("at most", most, table[file, kernel][2]),
                                      ("in the mean", mean, table[file, kernel][1])):
                if now > before + SLACK:
                    yield f"{where} takes {what} {now} registers; the table has {before}, and {SLACK} more are let pass"
    for file, kernel in sorted(table.keys() - built.keys()):
        yield f"{kernel} of {file} is in the table and not in this build"


def version_of(nvcc):
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"V([0-9.]+)", said)[1]


def print_table(built, nvcc):
    commit = subprocess.run(["git", "log", "-1", "--format=%h of %cs"], capture_output=True, text=True,
                            check=True).stdout.strip()
    print(f"# Registers of the kernels on sm_90\n\nnvcc {nvcc}, commit {commit}, by `bench/registers.py build/cuda > "
          "bench/results/registers_sm90.md`;\nthe suite of a CUDA build compares itself with it. 65,536 registers a "
          "multiprocessor:\n32 a thread fill it with 2048 threads, 64 with 1024, 128 with 512.\nShared memory is what "
          "kernels declare; what a launch adds is not in it.\n")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for (file, kernel), numbers in sorted(built.items()):
        print(f"| {file} | `{kernel}` | " + " | ".join(map(str, numbers)) + " |")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build", type=pathlib.Path, help="folder of a finished build with CUDA")
    p.add_argument("--check", type=pathlib.Path, metavar="TABLE",
                   help="compare with this table instead of printing one")
    p.add_argument("--nvcc", default="nvcc", help="the compiler of the build")
    p.add_argument("--nvcc-version", help="instead of asking it")
    args = p.parse_args()
    built = measured(args.build)
    nvcc = args.nvcc_version or version_of(args.nvcc)
    if not args.check:
        return print_table(built, nvcc)
    made_with, table = read_table(args.check.read_text())
    wrong = list(complaints(built, table, nvcc == made_with))
    for line in wrong:
        print(line)
    if nvcc != made_with:
        print(f"registers were not compared: the table is of nvcc {made_with}, this build of {nvcc}")
    if wrong:
        print(f"where that is meant: bench/registers.py {args.build} > {args.check}, and commit it")
        sys.exit(1)


if __name__ == "__main__":
    main()
