#!/usr/bin/env python3
"""Levin's loader and PyTorch's DataLoader side by side, in the same run.

    python3 bench/compare_loader.py --levin build/release [--rounds 3] [--out FILE]

Needs torch and numpy; Levin's side needs bench/bench_loader, built. Rounds alternate between both sides, so that a
machine that slows down slows both.

mnist: pictures u8 [60000, 1, 28, 28] in memory to normalized f32 batches of 128, shuffled; one worker each, and one
core for Levin's worker. cifar: pictures u8 [50000, 3, 32, 32], padded by 4, cropped, mirrored, normalized, batches of
128, shuffled; two workers each. PyTorch loads sample by sample, as torchvision's data sets do, from tensors in memory:
the cheapest form of a Dataset with transforms.
"""
import argparse, datetime, json, os, platform, statistics, subprocess, tempfile, time, warnings

import torch

warnings.filterwarnings("ignore")


class Pictures(torch.utils.data.Dataset):
    def __init__(self, images, mean, std, augments):
        self.images, self.augments = images, augments
        self.labels = torch.randint(0, 10, (len(images),))
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        x = self.images[i]
        if self.augments:
            x = torch.nn.functional.pad(x, (4, 4, 4, 4))
            top, left = (int(n) for n in torch.randint(0, 9, (2,)))
            x = x[:, top:top + 32, left:left + 32]
            if float(torch.rand(())) < 0.5:
                x = x.flip(2)
        return x.float().div_(255).sub_(self.mean).div_(self.std), self.labels[i]


def torch_rate(data, workers):
    """Samples a second over an epoch after the first batch."""
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(data, batch_size=128, shuffle=True, num_workers=workers)
    seen, begin = 0, None
    for images, _ in loader:
        if begin is None:
            begin = time.perf_counter()
            continue
        seen += len(images)
    return seen / (time.perf_counter() - begin)


def levin_rates(build):
    """{benchmark: items a second} of bench_loader."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "loader.json")
        subprocess.run([os.path.join(build, "bench/bench_loader"), "--json", out], check=True, capture_output=True)
        rows = json.load(open(out))["benchmarks"]
    return {r["name"]: r["items_per_second"] for r in rows if "items_per_second" in r}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levin", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    args = parser.parse_args()
    gen = torch.Generator().manual_seed(1)
    digits = torch.randint(0, 256, (60000, 1, 28, 28), dtype=torch.uint8, generator=gen)
    pictures = torch.randint(0, 256, (50000, 3, 32, 32), dtype=torch.uint8, generator=gen)
    mnist = Pictures(digits, [0.1307], [0.3081], False)
    cifar = Pictures(pictures, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616], True)
    levin, peer = [], {"mnist": [], "cifar": []}
    for _ in range(args.rounds):
        levin.append(levin_rates(args.levin))
        peer["mnist"].append(torch_rate(mnist, 1))
        peer["cifar"].append(torch_rate(cifar, 2))

    def ours(prefix, **wanted):
        names = [n for n in levin[0]
                 if n.startswith(prefix) and all(f"{k}:{v}/" in n + "/" for k, v in wanted.items())]
        if len(names) != 1:
            raise SystemExit(f"bench_loader has the rows {names} for {prefix} {wanted}, expected one")
        return [round_[names[0]] for round_ in levin]

    def show(values, scale=1.0, digits_=0):
        return f"{statistics.median(values) * scale:,.{digits_}f} ({min(values) * scale:,.{digits_}f} to " \
               f"{max(values) * scale:,.{digits_}f})"

    lines = [f"Loaders, {datetime.date.today()}, {platform.processor() or platform.machine()}, "
             f"{os.cpu_count()} CPUs, torch {torch.__version__}, {args.rounds} rounds: median (least to most)", "",
             "| row | Levin | PyTorch | ratio |", "|---|---|---|---|"]
    rows = [("mnist, samples/s in the calling thread, and PyTorch's one worker",
             ours("shuffled_epoch", batch=128, workers=0), peer["mnist"]),
            ("mnist, samples/s, one worker", ours("shuffled_epoch", batch=128, workers=1), peer["mnist"]),
            ("cifar crop and flip, samples/s, two workers",
             ours("cifar_crop_flip", workers=2, tensors=0), peer["cifar"])]
    for name, a, b in rows:
        lines.append(f"| {name} | {show(a)} | {show(b)} | {statistics.median(a) / statistics.median(b):.1f} |")
    for workers in (0, 1, 2):
        rate = ours("hand_over", workers=workers)
        lines.append(f"| hand-over of a batch, us, {workers} workers | "
                     f"{show([1e6 / r for r in rate], 1, 2)} | | |")
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        open(args.out, "w").write(text)


if __name__ == "__main__":
    main()
