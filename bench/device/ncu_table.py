#!/usr/bin/env python3
"""A line a kernel from what `ncu --import REPORT --page raw --csv` printed: bench/device/ncu_table.py LABEL.csv..."""
import csv
import pathlib
import re
import sys

STALLS = (re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio"),
          re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+)(?<!_not_issued)"))  # where the first are not: samples
COLUMNS = (("us", "gpu__time_duration.sum"), ("dram %", "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
           ("sm %", "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
           ("occupancy %", "sm__warps_active.avg.pct_of_peak_sustained_active"),
           ("registers", "launch__registers_per_thread"))
TO_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def launches(text):
    """Yields {metric: (value, unit)} of each launch. ncu's own lines (==PROF==) are no part of the table."""
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    for row in rows[2:]:
        yield {name: (value, unit) for name, unit, value in zip(rows[0], rows[1], row)}


def stalls(launch):
    for form in STALLS:
        found = [(number(v), match[1]) for name, (v, _) in launch.items() if (match := form.fullmatch(name))]
        if found:
            return sorted(((v, name) for v, name in found if v is not None and name != "selected"), reverse=True)
    return []


def cells(launch):
    for title, metric in COLUMNS:
        value, unit = launch.get(metric) or launch.get("gpu__" + metric.replace("dram__", "dram_"), ("", ""))
        x = number(value)
        if x is not None and title == "us":
            x *= TO_US.get(unit, 1)
        yield "-" if x is None else f"{x:.0f}" if title == "registers" else f"{x:.1f}"
    top = stalls(launch)
    yield ", ".join(f"{name} {v:.1f}" for v, name in top[:2]) or "-"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(f"{'kernel':22}" + "".join(f"{title:>12}" for title, _ in COLUMNS) + "  stalls (warps an issue, or samples)")
    empty = []
    for file in map(pathlib.Path, sys.argv[1:]):
        found = list(launches(file.read_text()))
        if not found:
            empty.append(file.stem)
        for launch in found:
            *numbers, stall = cells(launch)
            print(f"{file.stem:22}" + "".join(f"{n:>12}" for n in numbers) + "  " + stall)
    if empty:
        sys.exit("no launch was measured: " + " ".join(empty))


if __name__ == "__main__":
    main()
