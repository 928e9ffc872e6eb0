#!/usr/bin/env python3
"""Levin and PyTorch side by side: the same work on the same machine in the same run.

    python3 bench/compare_torch.py --levin build/release/bench [--rounds 5] [--filter TEXT] [--threads 2] [--out FILE]

Rounds alternate (Levin, PyTorch, Levin, ...), so that a machine that slows down slows both. A row is the median over the
rounds of PyTorch's time / Levin's, with the smallest and the largest ratio of a round beside it: a ratio above 1 means that
Levin is faster. PyTorch is given its best: gradients cleared to None, foreach or fused optimizers, inference without a tape
where there is nothing to record, and for the CNN the faster of its two memory layouts.
"""
import argparse, datetime, json, math, os, platform, statistics, subprocess, sys, tempfile, time

import torch
import torch.nn.functional as F


def measure(call, min_seconds):
    """Seconds a call takes: repeated until min_seconds have passed, after a warm-up."""
    call()
    n = 1
    while True:
        begin = time.perf_counter()
        for _ in range(n):
            call()
        seconds = time.perf_counter() - begin
        if seconds >= min_seconds:
            return seconds / n
        n = max(n + 1, int(n * min(100.0, 1.2 * min_seconds / max(seconds, 1e-9))))


def no_grad(f):
    def call():
        with torch.no_grad():
            f()
    return call


def in_loop(f, n=1000):
    """A tiny op repeated in one call, so that `measure` adds nothing of its own."""
    def call():
        for _ in range(n):
            f()
    call.repeats = n
    return call


def chain(multiply):
    x, b = torch.ones(1, requires_grad=True), torch.ones(1)

    def run(min_seconds):
        total, count = 0.0, 0
        while total < min_seconds:
            y = x
            for _ in range(1000):
                y = y * b if multiply else y + b
            x.grad = None
            begin = time.perf_counter()
            y.backward()
            total += time.perf_counter() - begin
            count += 1
        return total / count
    return run


def conv_case(image, weight, padding, both):
    x, w = torch.randn(image), torch.randn(weight)
    if not both:
        return no_grad(lambda: F.conv2d(x, w, padding=padding))
    x.requires_grad_(), w.requires_grad_()
    seed = F.conv2d(x, w, padding=padding).detach()

    def call():
        F.conv2d(x, w, padding=padding).backward(seed)
        x.grad = w.grad = None
    return call


def mlp(hidden):
    layers, width = [torch.nn.Flatten()], 784
    for h in hidden:
        layers += [torch.nn.Linear(width, h), torch.nn.ReLU()]
        width = h
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


def lenet():
    n = torch.nn
    return n.Sequential(n.Conv2d(1, 32, 5, padding=2), n.ReLU(), n.MaxPool2d(2), n.Conv2d(32, 64, 5, padding=2), n.ReLU(),
                        n.MaxPool2d(2), n.Flatten(), n.Linear(64 * 49, 256), n.ReLU(), n.Linear(256, 10))


def best_adam(net):
    """The fastest of PyTorch's Adam implementations for these parameters."""
    found = []
    for options in ({"fused": True}, {"foreach": True}, {}):
        try:
            opt = torch.optim.Adam(net.parameters(), lr=1e-3, **options)
            for p in net.parameters():
                p.grad = torch.zeros_like(p)
            found.append((measure(opt.step, 0.05), options))
        except Exception:
            pass
    return torch.optim.Adam(net.parameters(), lr=1e-3, **min(found, key=lambda f: f[0])[1])


def step_case(net, batch, channels_last=False):
    images, labels = torch.rand(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
    if channels_last:
        net = net.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    opt = best_adam(net)

    def call():
        loss = F.cross_entropy(net(images), labels)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    return call


def tiny(make):
    params = [torch.ones(4, requires_grad=True) for _ in range(100)]
    for p in params:
        p.grad = torch.ones(4)
    return make(params).step


def faster_of(*cases):
    def run(min_seconds):
        return min(measure(c, min_seconds / len(cases)) for c in cases)
    return run


def rows():
    """name in Levin's benchmark -> (program, PyTorch's side, target ratio or None)"""
    a, b = torch.ones(1), torch.ones(1)
    r = torch.ones(1, requires_grad=True)
    v = torch.ones(1, 1)
    table = {
        "add_1": ("kernels", in_loop(lambda: torch.add(a, b)), 5),
        "add_1_recorded": ("kernels", in_loop(lambda: torch.add(r, b)), 5),
        "view_1": ("kernels", in_loop(lambda: v.transpose(0, 1)), None),
        "backward_chain/add_1000": ("kernels", chain(False), 5),
        "backward_chain/mul_1000": ("kernels", chain(True), 5),
    }
    for m, k, n, target in ((256, 256, 256, None), (512, 512, 512, 1), (1024, 1024, 1024, 1), (2048, 2048, 2048, 1), (128, 784, 512, None)):
        x, y = torch.randn(m, k), torch.randn(k, n)
        table[f"sgemm/{m}/{k}/{n}/real_time"] = ("kernels", no_grad(lambda x=x, y=y: x @ y), target)
    for n, d in ((512, 1024), (4096, 1024)):
        x, w, o = torch.randn(n, d), torch.ones(d), torch.zeros(d)
        for name, f, target in (("softmax_rows", lambda x: torch.softmax(x, 1), 2),
                                ("layer_norm_rows", lambda x, w=w, o=o: F.layer_norm(x, (x.shape[1],), w, o), 2),
                                ("gelu_erf", F.gelu, 2), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), 2),
                                ("exp_all", torch.exp, None), ("relu_all", torch.relu, None), ("add_all", lambda x: x + x, None),
                                ("sum_all", torch.sum, None), ("sum_rows", lambda x: x.sum(0), None)):
            table[f"{name}/{n}/{d}/real_time"] = ("kernels", no_grad(lambda x=x, f=f: f(x)), target)
    for name, image, weight, padding, both in (("mnist1_forward", (64, 1, 28, 28), (32, 1, 5, 5), 2, False),
                                               ("mnist1_both", (64, 1, 28, 28), (32, 1, 5, 5), 2, True),
                                               ("mnist2_forward", (64, 32, 14, 14), (64, 32, 5, 5), 2, False),
                                               ("mnist2_both", (64, 32, 14, 14), (64, 32, 5, 5), 2, True),
                                               ("resnet56_both", (32, 64, 56, 56), (64, 64, 3, 3), 1, True)):
        table[f"conv_case/{name}/real_time"] = ("kernels", conv_case(image, weight, padding, both), None)
    table["mnist_mlp_128_step/64/real_time"] = ("step", step_case(mlp([128]), 64), 2)
    table["mnist_mlp_512_step/64/real_time"] = ("step", step_case(mlp([512, 512]), 64), 2)
    table["mnist_cnn_step/64/real_time"] = ("step", faster_of(step_case(lenet(), 64), step_case(lenet(), 64, True)), 1.5)
    table["adamw_100_tiny"] = ("step", faster_of(tiny(lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=True)),
                                                 tiny(lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True))), 20)
    table["sgd_100_tiny"] = ("step", faster_of(tiny(lambda p: torch.optim.SGD(p, lr=1e-4, foreach=True)),
                                               tiny(lambda p: torch.optim.SGD(p, lr=1e-4, fused=True))), 20)
    return table


def levin_times(folder, program, names, min_seconds, threads):
    """Runs one of Levin's benchmark programs; seconds by name."""
    pattern = "^(" + "|".join(names) + ")$"
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([os.path.join(folder, "bench_" + program), "--json", out.name, "--threads", str(threads),
                        "--benchmark_filter=" + pattern, f"--benchmark_min_time={min_seconds}"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        report = json.load(open(out.name))
    unit = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    return {b["name"]: b["real_time"] * unit[b["time_unit"]] for b in report["benchmarks"]}, report["context"]


def torch_time(case, min_seconds):
    if case.__code__.co_varnames[:1] == ("min_seconds",):
        return case(min_seconds)
    return measure(case, min_seconds) / getattr(case, "repeats", 1)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--levin", required=True, help="folder of Levin's benchmark programs")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--min-time", type=float, default=0.2, help="seconds a measurement takes at least")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--filter", default="")
    p.add_argument("--out", help="write the table as Markdown there")
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    table = {k: v for k, v in rows().items() if args.filter in k}
    seconds = {name: ([], []) for name in table}
    context = {}
    for _ in range(args.rounds):
        for program in ("kernels", "step"):
            names = [n for n, row in table.items() if row[0] == program]
            if not names:
                continue
            times, context = levin_times(args.levin, program, names, args.min_time, args.threads)
            for name in names:
                seconds[name][0].append(times[name])
                seconds[name][1].append(torch_time(table[name][1], args.min_time))
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    lines = [f"# Levin and PyTorch {torch.__version__} on {args.threads} CPU threads", "",
             f"Device: {cpu}, {len(os.sched_getaffinity(0))} cores, level {context.get('levin_cpu_level')}; "
             f"load {os.getloadavg()[0]:.1f}; {datetime.date.today()}; commit {commit}.",
             f"Made by `python3 bench/compare_torch.py --levin DIR --rounds {args.rounds} --min-time {args.min_time} "
             f"--threads {args.threads}`.",
             "", "Ratio = PyTorch's time / Levin's, the median of the rounds (smallest to largest). Rounds alternate.", "",
             "| work | Levin | PyTorch | ratio | spread | target | met |", "|---|---:|---:|---:|---|---:|---|"]

    def readable(s):
        return f"{s * 1e9:.0f} ns" if s < 1e-6 else f"{s * 1e6:.1f} us" if s < 1e-3 else f"{s * 1e3:.2f} ms"
    for name, (ours, theirs) in seconds.items():
        ratios = [t / o for o, t in zip(ours, theirs)]
        ratio, target = statistics.median(ratios), table[name][2]
        met = "" if target is None else "yes" if ratio >= target else "no"
        lines.append(f"| {name.replace('/real_time', '')} | {readable(statistics.median(ours))} | {readable(statistics.median(theirs))} "
                     f"| {ratio:.2f} | {min(ratios):.2f} to {max(ratios):.2f} | {'' if target is None else target} | {met} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
        open(args.out, "w").write(text)


if __name__ == "__main__":
    main()
