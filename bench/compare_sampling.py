#!/usr/bin/env python3
"""Levin's neighbour sampling beside what a user of Python has, on one graph in one run.

  bench/compare_sampling.py build/release/bench/bench_sampling [--json FILE]

The peer is PyTorch Geometric's NeighborLoader with pyg-lib or torch-sparse; where neither is installed, a sampler in
NumPy: for each hop all nodes of the frontier at once, with replacement (NumPy has no draw without it for many rows),
and np.unique for the local numbers. Prints sampled edges a second of one core each, and the ratio.
"""
import argparse
import json
import subprocess
import tempfile
import time

import numpy as np

NODES, CLASSES, SLOTS, SEEDS, FANOUTS, BATCHES = 1 << 20, 16, 12, 1024, [15, 10], 40


def graph():
    """A planted partition of the degrees of bench/sampling.cpp; its random numbers are NumPy's."""
    rng = np.random.default_rng(1)
    i = np.repeat(np.arange(NODES, dtype=np.int64), SLOTS)
    inside = rng.random(i.size) < 0.6
    c = np.where(inside, i % CLASSES, (i + 1 + rng.integers(0, CLASSES - 1, i.size)) % CLASSES)
    j = c + CLASSES * (rng.random(i.size) ** 2 * (NODES // CLASSES)).astype(np.int64)
    keep = i != j
    i, j = i[keep], j[keep]
    key = np.unique(np.concatenate([i << 32 | j, j << 32 | i]))
    crow = np.zeros(NODES + 1, np.int64)
    np.cumsum(np.bincount(key >> 32, minlength=NODES), out=crow[1:])
    return crow, (key & 0xFFFFFFFF).astype(np.int64)


def numpy_rate(crow, col):
    rng = np.random.default_rng(2)
    order = rng.permutation(NODES)
    edges, begin = 0, time.perf_counter()
    for b in range(BATCHES):
        nodes = frontier = order[b * SEEDS:(b + 1) * SEEDS]
        for k in FANOUTS:
            degree = crow[frontier + 1] - crow[frontier]
            some = degree > 0
            pick = crow[frontier[some], None] + (rng.random((some.sum(), k)) * degree[some, None]).astype(np.int64)
            source = col[pick].ravel()
            edges += source.size
            found = np.setdiff1d(source, nodes)
            nodes = np.concatenate([nodes, found])
            sorter = np.argsort(nodes)
            sorter[np.searchsorted(nodes, source, sorter=sorter)]  # the local numbers
            frontier = found
    return edges / (time.perf_counter() - begin)


def pyg_rate(crow, col):
    """None where neither pyg-lib nor torch-sparse is installed."""
    try:
        import torch
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader
        from torch_geometric import typing
        if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
            return None
    except ImportError:
        return None
    torch.set_num_threads(1)
    dst = np.repeat(np.arange(NODES), np.diff(crow))
    data = Data(edge_index=torch.from_numpy(np.stack([col, dst])), num_nodes=NODES)
    loader = NeighborLoader(data, FANOUTS, batch_size=SEEDS, shuffle=True)
    batches = iter(loader)
    next(batches)
    edges, begin = 0, time.perf_counter()
    for _ in range(BATCHES):
        edges += next(batches).edge_index.shape[1]
    return edges / (time.perf_counter() - begin)


def levin_rates(program):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([program, "--json", out.name, "--filter", "marker|NeighborLoader", "--seconds", "2"], check=True)
        return {row["name"]: row["items_per_second"] for row in json.load(open(out.name))["benchmarks"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--json")
    args = parser.parse_args()
    crow, col = graph()
    rates = {"edges": int(crow[-1])}
    rates.update(levin_rates(args.program))
    rates["numpy"] = numpy_rate(crow, col)
    rates["pyg"] = pyg_rate(crow, col)
    one = next(v for k, v in rates.items() if "marker" in k and "threads:1" in k)
    two = next(v for k, v in rates.items() if "marker" in k and "threads:2" in k)
    rates["two_over_one"] = two / one
    print(f"graph: {NODES} nodes, {rates['edges']} edges; fanouts {FANOUTS}, {SEEDS} seeds a batch")
    print(f"Levin: {one / 1e6:.1f} M edges/s on one thread, {two / 1e6:.1f} M on two ({two / one:.2f}x)")
    for name in ("numpy", "pyg"):
        if rates[name]:
            print(f"{name}: {rates[name] / 1e6:.2f} M edges/s on one thread; Levin {one / rates[name]:.1f}x")
        else:
            print(f"{name}: not installed")
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rates, f, indent=1)


if __name__ == "__main__":
    main()
