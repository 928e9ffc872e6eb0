#!/usr/bin/env python3
"""Fills bench/results/gpu_targets.md from what bench/device.sh bench and torch measured.

    bench/device_table.py bench.tar.gz torch.tar.gz         archives, folders or JSON files; writes the table in place
    bench/device_table.py --short FILE...                   prints what they hold, and writes nothing
    bench/device_table.py --rows FILE...                    prints each row of theirs, whatever it is called
    bench/device_table.py --filter RUN[,RUN...]             prints the regular expression of the rows of these runs

A row of the table is a row of bench_kernels or bench_step in a run: a run is a set of flags
(bench/device/figures.sh), and its figures are RUN.json; PyTorch's are torch.json, and torch_cudnn.json for the run
cudnn. Files called rest_* belong to no run. All files must be of one commit and one GPU. A row of the files that is
missing in the table is refused; a row of the table that is missing in the files becomes `not measured`. Rows are
sorted by their distance to their targets, the farthest first.

A target is a list of conditions with `;` between them, and is met when all of them are:
    97 % of bound        the least time that the machine's copy bandwidth or rate of products allows, by the measured
    850 us, 3.23 ms      at most so long
    620 TFLOP/s, 560,000 tokens a second, 45.5 % of 989 TFLOP/s      at least so much
    99 % of PyTorch, 5 times PyTorch      PyTorch's time by Levin's, op by op
    70 % of kernels      the time of the same row in that run by this row's
    97 % of 2 x ROW      the time of that row in the same run, so many times, by this row's
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import tarfile
import textwrap

TABLE = pathlib.Path(__file__).resolve().parent / "results" / "gpu_targets.md"
RUNS = ("kernels", "own_gemm", "own_attention", "cudnn", "steps")
TORCH = {"torch": ("kernels", "steps"), "torch_cudnn": ("cudnn",)}
NOT = "not measured"
HOST = "host_us of the rows above"
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
FACTS = ("levin_device_name", "levin_driver", "levin_commit")


def refuse(why):
    sys.exit(f"device_table: {why}")


# ---- The table

def cells_of(line):
    return [c.strip() for c in line.strip().strip("|").split("|")] if line.startswith("|") else None


class Row:
    def __init__(self, block, header, cells, line):
        self.block, self.header, self.cells, self.line = block, header, dict(zip(header, cells)), line
        self.run, self.name, self.target = self.cells["run"], self.cells["row"].strip("`"), self.cells["target"]

    def text(self):
        return "| " + " | ".join(self.cells[h] for h in self.header) + " |"


def read_table(text):
    """The rows, each with the number of its line."""
    rows, header, block = [], None, 0
    for number, line in enumerate(text.splitlines()):
        cells = cells_of(line)
        if cells is None:
            header = None
        elif header is None:
            header, block = cells if "row" in cells and "target" in cells else None, number
        elif not set(line) <= set("|-: "):
            if len(cells) != len(header):
                refuse(f"line {number + 1} has {len(cells)} cells instead of {len(header)}: {line[:80]}")
            rows.append(Row(block, header, cells, number))
    for row in rows:
        if row.run not in RUNS:
            refuse(f"row {row.name}: run \"{row.run}\", expected one of {', '.join(RUNS)}")
        conditions(row.target)
    if len({(r.run, r.name) for r in rows}) != len(rows):
        refuse("the table has a row twice")
    return rows


NUMBER = r"([0-9][0-9,]*(?:\.[0-9]+)?)"
FORMS = (("bound", NUMBER + r" % of bound"), ("time", NUMBER + r" (us|ms)"), ("flops", NUMBER + r" TFLOP/s"),
         ("items", NUMBER + r" tokens a second"), ("peak", NUMBER + r" % of " + NUMBER + r" TFLOP/s"),
         ("torch", NUMBER + r" (%) of PyTorch"), ("torch", NUMBER + r" (times) PyTorch"),
         ("run", NUMBER + r" % of (" + "|".join(RUNS) + ")"), ("row", NUMBER + r" % of " + NUMBER + r" x `?([^ `]+)`?"))


def plain(text):
    return float(text.replace(",", ""))


def conditions(target):
    """[(kind, groups)] of a target cell."""
    found = []
    for part in filter(None, (p.strip() for p in target.split(";"))):
        for kind, form in FORMS:
            if match := re.fullmatch(form, part):
                found.append((kind, match.groups()))
                break
        else:
            refuse(f"target \"{part}\" is of no form that device_table.py knows; its head lists them")
    return found


def rows_of(rows, runs):
    """Names of the rows to be measured in a run, those that targets refer to among them."""
    names = []
    for row in rows:
        if row.run in runs and row.name != HOST:
            names.append(row.name)
        for kind, groups in conditions(row.target):
            if (kind == "run" and groups[1] in runs) or (kind == "row" and row.run in runs):
                names.append(row.name if kind == "run" else groups[2])
    return sorted(set(names))


# ---- What was measured

def parsed(name, text):
    """A report; of a program that was stopped while it wrote, the complete rows. None: no row yet."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    end = text.rfind("\n    }")
    if end < 0 and text.startswith("{"):
        return None
    try:
        return json.loads(text[:end + 6] + "\n  ]\n}")
    except ValueError:
        refuse(f"{name} is no report of a benchmark program")


def files_of(path):
    """(name, text) of each JSON file that a path stands for."""
    path = pathlib.Path(path)
    if path.is_dir():
        return [(p.stem, p.read_text()) for p in sorted(path.rglob("*.json"))]
    if not path.exists():
        refuse(f"{path} is not there")
    if path.suffix == ".json":
        return [(path.stem, path.read_text())]
    with tarfile.open(path) as archive:
        return [(pathlib.Path(m.name).stem, archive.extractfile(m).read().decode())
                for m in archive.getmembers() if m.isfile() and m.name.endswith(".json")]


class Measured:
    def __init__(self):
        self.rows = {}     # (run, name): Google Benchmark's row
        self.torch = {}    # (run, name): [[ours, eager, compiled or None], ...]
        self.contexts, self.settings = {}, []

    def take(self, name, report):
        context = report.get("context", {})
        for other, before in self.contexts.items():
            for fact in FACTS:
                if context.get(fact) != before.get(fact):
                    refuse(f"{name} is of {fact} {context.get(fact)}, {other} of {before.get(fact)}: measure all with "
                           "one program on one GPU")
        self.contexts[name] = context
        if name in TORCH:
            self.settings.append(f"{name}: {report['torch']}")
            for row, rounds in report["rows"].items():
                self.torch[name, row] = rounds
            return
        for b in report.get("benchmarks", []):
            row = re.sub(r"/(iterations:\d+|manual_time|real_time)", "", b["name"])
            b["seconds"] = None if b.get("error_occurred") else b["real_time"] * UNITS[b["time_unit"]]
            self.rows[name, row] = b

    def context(self):
        """The rate of the library's products, where it was measured: the yardstick of our own products."""
        return self.contexts.get("kernels") or next(iter(self.contexts.values()), {})

    def ceiling(self, run):
        context = self.context() if run == "own_gemm" else self.contexts.get(run, {})
        return float(context.get("levin_matmul_16_TFLOP/s", 0))

    def torch_of(self, run, name):
        for file, runs in TORCH.items():
            if run in runs and (file, name) in self.torch:
                return self.torch[file, name]
        return None

    def seconds(self, run, name):
        return self.rows.get((run, name), {}).get("seconds")


def measured(paths, known_only, rest=False):
    all_of = Measured()
    for path in paths:
        for name, text in files_of(path):
            if (name.startswith("rest_") and not rest) or not text.strip():
                continue
            if known_only and name not in RUNS and name not in TORCH:
                refuse(f"{name}.json is no run; there are {', '.join((*RUNS, *TORCH))}, and rest_* are of none")
            if (report := parsed(name, text)) is not None:
                all_of.take(name, report)
    for (run, _), b in all_of.rows.items():
        if run == "own_gemm" and b["seconds"] and "kernels" in all_of.contexts:  # whose ceiling is our own product, too
            b["of_bound"] = b["flops"] * 1e-12 / all_of.ceiling("kernels") / b["seconds"]
    return all_of


# ---- Filling

def readable(seconds):
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds:.4g} s"


def reached(row, m):
    """The reached part of each condition: 1 is all of it. None: not measured."""
    b = m.rows.get((row.run, row.name), {})
    seconds, rounds = b.get("seconds"), m.torch_of(row.run, row.name)
    rate = b["flops"] / seconds * 1e-12 if seconds and b.get("flops") else b.get("of_bound", 0) * m.ceiling(row.run)
    for kind, g in conditions(row.target):
        wanted, got = plain(g[0]), None
        if kind == "torch" and rounds:
            got = statistics.median(r[1] / r[0] for r in rounds) / (wanted / 100 if g[1] == "%" else wanted)
        elif seconds is None:
            pass
        elif kind == "bound" and "of_bound" in b:
            got = b["of_bound"] / (wanted / 100)
        elif kind == "time":
            got = wanted * UNITS[g[1]] / seconds
        elif kind == "flops" and rate:
            got = rate / wanted
        elif kind == "peak" and rate:
            got = rate / (wanted / 100 * plain(g[1]))
        elif kind == "items" and "items_per_second" in b:
            got = b["items_per_second"] / wanted
        elif kind == "run" and m.seconds(g[1], row.name):
            got = m.seconds(g[1], row.name) / seconds / (wanted / 100)
        elif kind == "row" and m.seconds(row.run, g[2]):
            got = plain(g[1]) * m.seconds(row.run, g[2]) / seconds / (wanted / 100)
        yield got


def fill(row, m):
    """Writes the row's cells; returns where it is sorted."""
    b = m.rows.get((row.run, row.name))
    for h in ("time", "spread", "of bound", "PyTorch eager", "PyTorch compiled", "met"):
        row.cells[h] = NOT
    if b and b["seconds"] is None:
        row.cells["time"] = "failed: " + re.sub(r"[|\n]", " ", b.get("error_message", ""))[:80]
        row.cells["met"] = "no"
        return 0, 0.0
    if b:
        row.cells["time"] = readable(b["seconds"])
        if "low_us" in b:
            row.cells["spread"] = f"{readable(b['low_us'] * 1e-6)} to {readable(b['high_us'] * 1e-6)}"
        row.cells["of bound"] = f"{100 * b['of_bound']:.1f} %" if "of_bound" in b else "-"
    if rounds := m.torch_of(row.run, row.name):
        for h, i in (("PyTorch eager", 1), ("PyTorch compiled", 2)):
            ratios = [r[i] / r[0] for r in rounds if r[i] is not None]
            if ratios:
                row.cells[h] = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    shares = list(reached(row, m))
    known = [s for s in shares if s is not None]
    if b and not shares:
        row.cells["met"] = "no target"
        return 1, 0.0
    if any(s < 1 for s in known):
        row.cells["met"] = "no"
    elif known and len(known) == len(shares):
        row.cells["met"] = "yes"
    return (0, min(known)) if known else (1, 0.0) if b else (2, 0.0)


def add_host(rows, m):
    """The host's share: the largest of the rows that are replayed, as a row of its own."""
    hosts = [b["host_us"] for (run, name), b in m.rows.items()
             if run == "steps" and "_captured" in name and "host_us" in b]
    if hosts and any(r.name == HOST for r in rows):
        m.rows["steps", HOST] = {"seconds": max(hosts) * 1e-6, "low_us": min(hosts), "high_us": max(hosts)}


def head_of(m):
    c = m.context()
    mhz = [b[k] for b in m.rows.values() for k in ("sm_mhz_before", "sm_mhz_after") if k in b]
    at = f"{min(mhz):.0f} to {max(mhz):.0f}" if mhz else c.get("levin_sm_MHz")
    said = (f"Measured: on {c.get('levin_device_name')}, driver {c.get('levin_driver')} "
            f"(CUDA {c.get('levin_driver_cuda')}), multiprocessors at {at} MHz, memory at {c.get('levin_memory_MHz')} "
            f"MHz; commit {c.get('levin_commit')}, {str(c.get('date'))[:10]}. Ceilings of the same run: copy "
            f"{float(c.get('levin_copy_GB/s', 0)):.0f} GB/s, products {float(c.get('levin_matmul_16_TFLOP/s', 0)):.0f} "
            f"TFLOP/s in bf16, {float(c.get('levin_matmul_f32_TFLOP/s', 0)):.1f} in f32.")
    return " ".join([said, *m.settings])


def write_table(path, m):
    text = path.read_text()
    rows, lines = read_table(text), text.splitlines()
    if not str(m.context().get("levin_device", "")).startswith("cuda"):
        refuse(f"figures of device {m.context().get('levin_device')} are none of a GPU's")
    add_host(rows, m)
    needed = {(run, name) for run in RUNS for name in rows_of(rows, (run,))} | {("steps", HOST)}
    extra = {f"{run} {name}" for run, name in m.rows if (run, name) not in needed}
    extra |= {f"{file} {name}" for file, name in m.torch if not any((run, name) in needed for run in TORCH[file])}
    if extra:
        refuse(f"{path.name} has no row for {', '.join(sorted(extra)[:5])}{' and others' if len(extra) > 5 else ''}")
    groups = {}
    for row in rows:
        groups.setdefault(row.block, []).append(row)
    for group in groups.values():
        # Sorted among the existing lines.
        keyed = sorted(((fill(row, m), row.line, row) for row in group), key=lambda k: k[:2])
        for line, (_, _, row) in zip(sorted(r.line for r in group), keyed):
            lines[line] = row.text()
    head = [i for i, line in enumerate(lines) if line.startswith("Measured: ")]
    if len(head) != 1:
        refuse(f"{path.name} has {len(head)} lines that begin with 'Measured: ' instead of 1")
    end = next(i for i in range(head[0], len(lines) + 1) if i == len(lines) or not lines[i].strip())
    lines[head[0]:end] = textwrap.wrap(head_of(m), 120, break_long_words=False, break_on_hyphens=False)
    part = path.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n")
    os.replace(part, path)
    return rows


def short(m, path):
    """What was measured, on the screen: rows of the table with their targets, others counted."""
    failed = [(run, name, b.get("error_message", "")) for (run, name), b in m.rows.items() if b["seconds"] is None]
    for run, name, why in failed:
        print(f"FAILED {run} {name}: {why[:160]}")
    rows = read_table(path.read_text())
    add_host(rows, m)
    keyed = sorted(((fill(row, m), row.line, row) for row in rows), key=lambda k: k[:2])
    seen = set()
    for _, _, row in keyed:
        if (row.run, row.name) not in m.rows and not m.torch_of(row.run, row.name):
            continue
        seen.add((row.run, row.name))
        c = row.cells
        bound, eager, met = (c[h].replace(NOT, "-") for h in ("of bound", "PyTorch eager", "met"))
        print(f"{row.run:8} {row.name:46} {c['time']:>10} {bound:>8} torch {eager.split(' ')[0]:>5}  {met:>3}  "
              + row.target)
    others = [k for k in m.rows if k not in seen and k[1] != HOST]
    torch_others = [k for k in m.torch if not any((run, k[1]) in seen for run in TORCH[k[0]])]
    print(f"{len(m.rows)} rows of Levin's, {len(failed)} of them failed, {len(others)} not of {path.name}; "
          f"{len(m.torch)} beside PyTorch, {len(torch_others)} not of it")
    return not failed and (m.rows or m.torch)


def print_rows(m):
    for (run, name), b in m.rows.items():
        said = b.get("error_message", "failed")[:100] if b["seconds"] is None else readable(b["seconds"])
        host = f"host {readable(b['host_us'] * 1e-6)}" if "host_us" in b else ""
        bound = f"{100 * b['of_bound']:.1f} %" if "of_bound" in b else ""
        print(f"{run:17} {name:46} {said:>10} {bound:>8} {host}".rstrip())


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("files", nargs="*", help="archives, folders or JSON files of bench/device.sh bench and torch")
    p.add_argument("--table", type=pathlib.Path, default=TABLE, help="bench/results/gpu_targets.md")
    p.add_argument("--short", action="store_true",
                   help="print what the files hold; status 1 if a row failed or there is none")
    p.add_argument("--rows", action="store_true", help="print each row of the files")
    p.add_argument("--filter", metavar="RUN[,RUN...]", help="print the regular expression of the rows of these runs")
    args = p.parse_args()
    if args.filter:
        runs = args.filter.split(",")
        if unknown := [r for r in runs if r not in RUNS]:
            refuse(f"unknown run {unknown[0]}; there are {', '.join(RUNS)}")
        print("^(" + "|".join(rows_of(read_table(args.table.read_text()), runs)) + ")/")
        return
    if not args.files:
        p.error("which files?")
    if args.rows:
        return print_rows(measured(args.files, known_only=False, rest=True))
    m = measured(args.files, known_only=not args.short)
    if args.short:
        sys.exit(0 if short(m, args.table) else 1)
    rows = write_table(args.table, m)
    met = [row.cells["met"] for row in rows]
    print(f"{args.table}: {len(rows)} rows, {met.count('yes')} met, {met.count('no')} not, "
          f"{met.count(NOT)} not measured")


if __name__ == "__main__":
    main()
