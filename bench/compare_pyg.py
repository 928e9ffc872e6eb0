#!/usr/bin/env python3
"""Levin's graph layers and PyTorch Geometric's side by side: the same numbers, then the same epochs.

    python3 bench/compare_pyg.py --levin build/release/bench [--cora ../shared/datasets/cora] [--graphs 50] [--rounds 5]
                                 [--threads 2] [--dtype float32] [--out FILE] [--json FILE]

Needs torch, torch_geometric and safetensors. For each layer random multigraphs (loops, duplicates, isolated nodes) get
random options, weights and features. Outputs and all gradients are compared: the difference of a tensor is the largest
of its elements', relative to the larger of 1 and the largest element of PyTorch Geometric's. The exit status is 1 where
a difference is above the tolerance of 1e-5.

With --cora an epoch (forward, backward, Adam) of a two-layer GCN on all of Cora is timed. Rounds alternate. PyTorch
Geometric runs all its forms with cached coefficients, edge_index and sparse matrices of torch (CSR), with Adam in the
foreach and fused form; the fastest counts. Ratio = its time / Levin's; a ratio above 1 means that Levin is faster.
"""
import argparse, datetime, json, os, platform, random, statistics, subprocess, sys, tempfile, time

import torch
import torch.nn.functional as F
import torch_geometric
from safetensors.torch import load_file, save_file
from torch_geometric.nn import MLP, GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv

TOLERANCE = 1e-5
LAYERS = ("GCNConv", "SAGEConv", "GINConv", "GATConv", "GATv2Conv")
TARGET_SECONDS, TARGET_RATIO = 0.6e-3, 4


def edges(rng, sources, nodes, bipartite, one_loop):
    """Edges of which some repeat, some are loops and some nodes have none; one_loop: at most one loop a node, because
    PyTorch Geometric leaves open whose weight counts."""
    n = rng.choice([0, 1, 5, 20, 60])
    alive = max(1, sources - rng.randint(0, 2)), max(1, nodes - rng.randint(0, 2))
    src, dst, looped = [], [], set()
    for _ in range(n):
        if src and rng.random() < 0.2:
            s, d = src[-1], dst[-1]
        else:
            s = rng.randrange(alive[0])
            d = s if not bipartite and rng.random() < 0.15 else rng.randrange(alive[1])
        if s == d and one_loop:
            if s in looped:
                continue
            looped.add(s)
        src.append(s)
        dst.append(d)
    return torch.tensor([src, dst], dtype=torch.int64).reshape(2, -1)


def flip(rng, chance=0.5):
    return rng.random() < chance


def options_of(layer, rng):
    o = {"layer": layer, "in": rng.randint(1, 9), "out": rng.randint(1, 9)}
    if layer == "GCNConv":
        o["normalize"] = flip(rng, 0.8)
        o["add_self_loops"] = o["normalize"] and flip(rng, 0.7)
        o["improved"] = o["add_self_loops"] and flip(rng, 0.3)
        o["bias"] = flip(rng, 0.8)
        return o
    bipartite = flip(rng, 0.3)
    if layer == "GINConv":
        o.update(eps=rng.uniform(-0.5, 0.5), train_eps=flip(rng), norm=flip(rng, 0.3),
                 channels=[o["in"]] + [rng.randint(2, 8) for _ in range(rng.randint(1, 2))])
        o["bipartite"] = bipartite
        return o
    if bipartite:
        o["in_dst"] = rng.randint(1, 9)
    if layer == "SAGEConv":
        o.update(aggr=rng.choice(["mean", "sum", "max"]), normalize=flip(rng, 0.3), root_weight=flip(rng, 0.8),
                 project=flip(rng, 0.3), bias=flip(rng, 0.8))
        return o
    o.update(heads=rng.randint(1, 4), concat=flip(rng), negative_slope=rng.uniform(0.05, 0.5),
             add_self_loops=flip(rng, 0.7), bias=flip(rng, 0.8), residual=flip(rng, 0.3))
    if layer == "GATv2Conv" and not bipartite:
        o["share_weights"] = flip(rng, 0.3)
    return o


def layer_of(o):
    in_channels = (o["in"], o["in_dst"]) if "in_dst" in o else o["in"]
    keep = lambda *names: {n: o[n] for n in names if n in o}
    if o["layer"] == "GCNConv":
        return GCNConv(o["in"], o["out"], **keep("improved", "normalize", "add_self_loops", "bias"))
    if o["layer"] == "SAGEConv":
        return SAGEConv(in_channels, o["out"], **keep("aggr", "normalize", "root_weight", "project", "bias"))
    if o["layer"] == "GINConv":
        mlp = MLP(o["channels"], norm="batch_norm" if o["norm"] else None)
        return GINConv(mlp, **keep("eps", "train_eps"))
    kind = GATConv if o["layer"] == "GATConv" else GATv2Conv
    return kind(in_channels, o["out"], **keep("heads", "concat", "negative_slope", "add_self_loops", "bias", "residual",
                                              "share_weights"))


def case_of(layer, rng, dtype):
    """Options, inputs for Levin, and PyTorch Geometric's results."""
    o = options_of(layer, rng)
    bipartite = o.pop("bipartite", False) or "in_dst" in o
    sources, nodes = rng.randint(2, 12), rng.randint(2, 12)
    sources = sources if bipartite else nodes
    # PyTorch Geometric's `improved` acts on weights alone: without them its loops weigh 1.
    weighted = layer == "GCNConv" and (flip(rng, 0.6) or o["improved"])
    index = edges(rng, sources, nodes, bipartite, weighted)
    net = layer_of(o).to(dtype)
    with torch.no_grad():
        for p in net.parameters():  # biases and eps, too, are no zeros
            p.copy_(torch.randn_like(p) * 0.5)
    x = torch.randn(sources, o["in"], dtype=dtype, requires_grad=True)
    x_dst = torch.randn(nodes, o.get("in_dst", o["in"]), dtype=dtype, requires_grad=True) if bipartite else None
    w = (torch.rand(index.shape[1], dtype=dtype) * 1.5 + 0.2).requires_grad_() if weighted else None
    if layer == "GCNConv":
        y = net(x, index, w)
    else:
        y = net((x, x_dst) if bipartite else x, index, **({"size": (sources, nodes)} if layer != "GATv2Conv" else {}))
    g = torch.randn_like(y)
    (y * g).sum().backward()
    given = {"src": index[0].clone(), "dst": index[1].clone(), "x": x.detach(), "g": g}
    found = {"y": y.detach(), "d/x": grad_of(x)}
    for name, t in (("x_dst", x_dst), ("weight", w)):
        if t is not None:
            given[name] = t.detach()
            found["d/" + name] = grad_of(t)
    shared = o.get("share_weights", False)
    for name, value in net.state_dict().items():
        if not (shared and name.startswith("lin_r.")):
            given["p/" + name] = value.detach().clone()
    for name, p in net.named_parameters():
        found["d/p/" + name] = grad_of(p)
    return o, given, found


def grad_of(t):
    return (torch.zeros_like(t) if t.grad is None else t.grad).detach()


def difference(ours, theirs):
    if ours is None:  # no gradient reached it
        ours = torch.zeros_like(theirs)
    if ours.shape != theirs.shape:
        return float("inf")
    if theirs.numel() == 0:
        return 0.0
    d = ((ours - theirs).abs().max() / max(1.0, theirs.abs().max().item())).item()
    return float("inf") if d != d else d


def compare(args, layer):
    """Largest differences of outputs and of gradients, and the case of each."""
    rng = random.Random(f"{layer} {args.seed}")
    torch.manual_seed(rng.randrange(2**31))
    dtype = getattr(torch, args.dtype)
    tensors, metadata, expected = {}, {}, {}
    for i in range(args.graphs):
        name = f"{layer}{i}"
        o, given, expected[name] = case_of(layer, rng, dtype)
        metadata[name] = json.dumps(o)
        tensors.update({f"{name}/{n}": t.contiguous() for n, t in given.items()})
    with tempfile.TemporaryDirectory() as folder:
        source, result = os.path.join(folder, "in.safetensors"), os.path.join(folder, "out.safetensors")
        save_file(tensors, source, metadata)
        program = os.path.join(args.levin, "bench_graph_layers")
        subprocess.run([program, "--compare", source, "--out", result], check=True)
        ours = load_file(result)
    worst = {"values": (0.0, "", ""), "gradients": (0.0, "", "")}
    for name, found in expected.items():
        for tensor, value in found.items():
            d = difference(ours.get(f"{name}/{tensor}"), value)
            kind = "gradients" if tensor.startswith("d/") else "values"
            if tensor == "y" and f"{name}/y" not in ours:
                d = float("inf")
            if d >= worst[kind][0]:
                worst[kind] = (d, tensor, metadata[name])
    return worst


# ---- Cora

def cora(folder):
    import numpy
    read = lambda name: torch.from_numpy(numpy.load(os.path.join(folder, name + ".npy")))
    x = torch.sparse_csr_tensor(read("x_indptr").long(), read("x_indices").long(), read("x_data").float(),
                                tuple(read("x_shape").tolist())).to_dense()
    return x / x.sum(1, keepdim=True).clamp(min=1), read("edge_index"), read("y").long(), read("train_idx").long()


class Net(torch.nn.Module):
    def __init__(self, cached):
        super().__init__()
        self.conv1 = GCNConv(1433, 16, cached=cached, normalize=cached)
        self.conv2 = GCNConv(16, 7, cached=cached, normalize=cached)

    def forward(self, x, graph, weight=None):
        x = F.dropout(x, 0.5, self.training)
        x = F.dropout(self.conv1(x, graph, weight).relu(), 0.5, self.training)
        return self.conv2(x, graph, weight)


def pyg_forms(data):
    """Name -> a function that runs an epoch."""
    x, index, y, train = data
    n = x.shape[0]
    normed, weight = torch_geometric.nn.conv.gcn_conv.gcn_norm(index, None, n)
    adj = torch.sparse_coo_tensor(normed.flip(0), weight, (n, n)).coalesce().to_sparse_csr()
    forms = {}
    for graph_name, graph, cached in (("edge_index, cached", index, True), ("torch CSR", adj, False)):
        for adam in ("foreach", "fused"):
            net = Net(cached)
            optimizer = torch.optim.Adam([dict(params=net.conv1.parameters(), weight_decay=5e-4),
                                          dict(params=net.conv2.parameters(), weight_decay=0)], lr=0.01, **{adam: True})

            def epoch(net=net, graph=graph, optimizer=optimizer):
                optimizer.zero_grad(set_to_none=True)
                loss = F.cross_entropy(net(x, graph)[train], y[train])
                loss.backward()
                optimizer.step()
            forms[f"{graph_name}, {adam}"] = epoch
    return forms


def median_epoch(epoch, n):
    for _ in range(10):
        epoch()
    seconds = []
    for _ in range(n):
        begin = time.perf_counter()
        epoch()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def time_cora(args):
    data, rounds = cora(args.cora), []
    forms = pyg_forms(data)
    for _ in range(args.rounds):
        said = subprocess.run([os.path.join(args.levin, "bench_graph_layers"), "--cora", args.cora,
                               "--epochs", str(args.epochs), "--threads", str(args.threads)],
                              check=True, capture_output=True, text=True)
        report = json.loads(said.stdout)
        ours = {f"Levin, {k} features": statistics.median(v["seconds"][10:]) for k, v in report.items()}
        rounds.append({**ours, **{f"PyG, {k}": median_epoch(e, args.epochs) for k, e in forms.items()}})
    return rounds


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--levin", required=True, help="folder of Levin's benchmark programs")
    p.add_argument("--cora", help="folder of Cora's arrays; without it nothing is timed")
    p.add_argument("--graphs", type=int, default=50, help="random graphs of each layer")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--epochs", type=int, default=200, help="epochs a round")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--out", help="write the tables as Markdown there")
    p.add_argument("--json", help="write differences and seconds there")
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    lines = [f"# Levin's graph layers and PyTorch Geometric {torch_geometric.__version__}", "",
             f"{platform.processor() or platform.machine()}, {args.threads} threads, load {os.getloadavg()[0]:.1f}; "
             f"torch {torch.__version__}; {datetime.date.today()}; commit {commit}.",
             "Made by `python3 bench/compare_pyg.py "
             f"{' '.join('DIR' if a in (args.levin, args.cora) else a for a in sys.argv[1:])}`.", "",
             f"Largest relative differences over {args.graphs} random multigraphs of each layer, {args.dtype}; "
             f"tolerance {TOLERANCE:g}.", "", "| layer | outputs | gradients | met |", "|---|---:|---:|---|"]
    failed, report = [], {"differences": {}, "rounds": []}
    for layer in LAYERS:
        worst = compare(args, layer)
        bad = [w for w in worst.values() if not w[0] <= TOLERANCE]
        failed += bad
        report["differences"][layer] = worst
        lines.append(f"| {layer} | {worst['values'][0]:.1e} | {worst['gradients'][0]:.1e} | {'no' if bad else 'yes'} |")
        for d, tensor, options in bad:
            print(f"{layer}: {tensor} differs by {d:.2e} in {options}", file=sys.stderr)
    if args.cora:
        rounds = report["rounds"] = time_cora(args)
        lines += ["", "An epoch (forward, backward, Adam) of a two-layer GCN on Cora, median of the rounds' medians "
                  "(smallest to largest).", "", "| form | microseconds | spread |", "|---|---:|---|"]
        medians = {}
        for form in rounds[0]:
            of = [r[form] * 1e6 for r in rounds]
            medians[form] = statistics.median(of)
            lines.append(f"| {form} | {medians[form]:.0f} | {min(of):.0f} to {max(of):.0f} |")
        best = {who: min((f for f in medians if f.startswith(who)), key=medians.get) for who in ("Levin", "PyG")}
        ratios = [r[best["PyG"]] / r[best["Levin"]] for r in rounds]
        ours, ratio = medians[best["Levin"]] * 1e-6, statistics.median(ratios)
        met = ours <= TARGET_SECONDS and ratio >= TARGET_RATIO
        lines += ["", f"Ratio of the fastest forms {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}). Target: at "
                  f"most {TARGET_SECONDS * 1e6:.0f} us and a ratio of at least {TARGET_RATIO}: "
                  f"{'met' if met else 'not met'}."]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
        open(args.out, "w").write(text)
    if args.json:
        json.dump(report, open(args.json, "w"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
