#!/usr/bin/env python3
"""Levin's trainer and PyTorch Lightning's side by side: the same training on the same machine in the same run.

    python3 bench/compare_lightning.py --levin build/release --data MNIST_DIR [--rounds 5] [--epochs 2] [--batches N]
                                       [--threads 2] [--out FILE]

Needs torch, lightning, tensorboard and numpy; Levin's side needs bench/bench_trainer and examples/mnist, built. Rounds
alternate (Levin, Lightning, Levin, ...), so that a machine that slows down slows both.

Overhead: what a trainer adds to a step of the hand-written loop over the same model (8 numbers to 1), loader and
optimizer, in microseconds. The steps between a warm-up and the epoch's last one are timed inside of training_step.
"none": no callback, no logger. "default": the defaults of each Trainer, with a logged loss.

Training: MNIST, one row per model, precision and techniques; seconds of fit() per epoch, with its validation, and
training samples per second. Lightning runs at its best: images normalised beforehand as one tensor in memory, a batch
from one index operation, PyTorch's fused AdamW wherever Lightning accepts it. --batches shortens an epoch's training
where one takes minutes: PyTorch trains the CNN in bf16 at a batch a second on a CPU without AVX-512.
"""
import argparse, datetime, gzip, json, logging, os, platform, statistics, struct, subprocess, sys, tempfile, time
import warnings

import numpy
import torch
import torch.nn.functional as F
import lightning as L
from lightning.pytorch.callbacks import Callback, EarlyStopping, EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Slices(torch.utils.data.Dataset):
    """Item i is the rows that a sampler names: a batch costs one index operation a field."""
    def __init__(self, *fields):
        self.fields = fields

    def __len__(self):
        return len(self.fields[0])

    def __getitem__(self, rows):
        return tuple(f[rows] for f in self.fields)


def loader(fields, batch, shuffle):
    data = Slices(*fields)
    order = torch.utils.data.RandomSampler(data) if shuffle else torch.utils.data.SequentialSampler(data)
    return torch.utils.data.DataLoader(data, sampler=torch.utils.data.BatchSampler(order, batch, False),
                                       batch_size=None)


# ---- Overhead

class Line(L.LightningModule):
    def __init__(self, first, last, logs):
        super().__init__()
        self.fc, self.first, self.last, self.logs = torch.nn.Linear(8, 1), first, last, logs

    def loss(self, batch):
        return F.mse_loss(self.fc(batch[0]), batch[1])

    def training_step(self, batch, batch_idx):
        if batch_idx == self.first:
            self.begin = time.perf_counter()
        if batch_idx == self.last:
            self.seconds = (time.perf_counter() - self.begin) / (self.last - self.first)
        loss = self.loss(batch)
        if self.logs:
            self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def by_hand(batches, first, last):
    net = Line(first, last, False)
    opt = net.configure_optimizers()
    for i, batch in enumerate(batches):
        if i == first:
            begin = time.perf_counter()
        if i == last:
            return (time.perf_counter() - begin) / (last - first)
        loss = net.loss(batch)
        opt.zero_grad()
        loss.backward()
        opt.step()


def lightning_overhead(steps, folder):
    """us a step over the hand-written loop: {"none", "default"}, and that loop's."""
    first = 200
    last = first + steps - 1
    x = torch.randn(4 * (last + 1), 8)
    batches = loader((x, x[:, :1].contiguous()), 4, False)
    found, hand = {}, []
    for kind, options in (("none", {"barebones": True}), ("default", {"default_root_dir": folder})):
        plain = by_hand(batches, first, last)
        hand.append(plain * 1e6)
        net = Line(first, last, kind == "default")
        L.Trainer(max_epochs=1, accelerator="cpu", **options).fit(net, batches)
        found[kind] = (net.seconds - plain) * 1e6
    return found, hand


def levin_overhead(build, steps, threads, folder):
    out = os.path.join(folder, "trainer.json")
    subprocess.run([os.path.join(build, "bench/bench_trainer"), "--rounds", "1", "--steps", str(steps), "--threads",
                    str(threads), "--json", out], check=True, capture_output=True)
    found = json.load(open(out))
    return {kind: found[kind]["extra_us"][0] for kind in ("none", "default")}, found["by_hand"]["us"]


# ---- Training

def idx(folder, name):
    path = next(p for p in (os.path.join(folder, name), os.path.join(folder, name + ".gz")) if os.path.exists(p))
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        raw = file.read()
    rank = raw[3]
    shape = struct.unpack(">" + "I" * rank, raw[4:4 + 4 * rank])
    return torch.from_numpy(numpy.frombuffer(raw, numpy.uint8, offset=4 + 4 * rank).reshape(shape).copy())


def mnist(folder):
    images = (idx(folder, "train-images-idx3-ubyte").float()[:, None] / 255 - 0.1307) / 0.3081
    return images, idx(folder, "train-labels-idx1-ubyte").long()


def network(model):
    n = torch.nn
    if model == "mlp":
        return n.Sequential(n.Flatten(), n.Linear(784, 512), n.ReLU(), n.Linear(512, 512), n.ReLU(), n.Linear(512, 10))
    return n.Sequential(n.Conv2d(1, 32, 5, padding=2), n.ReLU(), n.MaxPool2d(2),
                        n.Conv2d(32, 64, 5, padding=2), n.ReLU(),
                        n.MaxPool2d(2), n.Flatten(), n.Linear(64 * 49, 256), n.ReLU(), n.Linear(256, 10))


class Classifier(L.LightningModule):
    def __init__(self, model, steps, fused):
        super().__init__()
        self.net, self.steps, self.fused, self.samples = network(model), steps, fused, 0

    def training_step(self, batch, _):
        self.samples += len(batch[1])
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        logits = self.net(batch[0])
        self.log("val_loss", F.cross_entropy(logits, batch[1]), prog_bar=True)
        self.log("val_accuracy", (logits.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=1e-2, fused=self.fused)
        one = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-3, total_steps=self.steps)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": one, "interval": "step"}}


class Row:
    """One training: Levin's flags, and what they are in Lightning."""
    def __init__(self, name, model, flags, validates, options, callbacks):
        self.name, self.model, self.flags, self.validates = name, model, flags, validates
        self.options, self.callbacks = options, callbacks


ROWS = [
    Row("MLP 784-512-512-10, f32", "mlp", [], False, {}, lambda: []),
    Row("CNN, f32", "cnn", [], False, {}, lambda: []),
    Row("CNN, bf16-mixed, EMA, accumulate 2, clip 1, early stopping", "cnn",
        ["--precision", "bf16-mixed", "--ema", "0.999", "--accumulate", "2", "--clip", "1.0", "--early-stop",
         "val_loss"],
        True, {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 1.0},
        lambda: [EMAWeightAveraging(decay=0.999), EarlyStopping("val_loss")]),
]


def lightning_training(row, data, epochs, batches, folder):
    images, labels = data
    kept = len(labels) - (len(labels) // 12 if row.validates else 0)
    train = loader((images[:kept], labels[:kept]), 128, True)
    val = loader((images[kept:], labels[kept:]), 128, False) if row.validates else None
    window = row.options.get("accumulate_grad_batches", 1)
    steps = epochs * -(-min(len(train), batches or len(train)) // window)
    # Lightning refuses a fused optimizer together with clipping.
    net = Classifier(row.model, steps, fused="gradient_clip_val" not in row.options)
    trainer = L.Trainer(max_epochs=epochs, accelerator="cpu", default_root_dir=folder, logger=CSVLogger(folder),
                        limit_train_batches=batches, callbacks=row.callbacks(), **row.options)
    begin = time.perf_counter()
    trainer.fit(net, train, val)
    seconds = time.perf_counter() - begin
    return seconds / trainer.current_epoch, net.samples / seconds


def levin_training(row, build, data, epochs, batches, threads, folder):
    out = os.path.join(folder, "mnist.json")
    limit = [] if batches is None else ["--limit-train-batches", str(batches)]
    subprocess.run([os.path.join(build, "examples/mnist"), "--data", data, "--model", row.model, "--epochs",
                    str(epochs), "--threads", str(threads), "--device", "cpu", "--out", os.path.join(folder, "levin"),
                    "--json", out] + limit + row.flags,
                   check=True, capture_output=True)
    found = json.load(open(out))
    return found["train_seconds"] / found["epochs"], found["samples_per_second"]


# ---- The table

def spread(values, form):
    return f"{form(statistics.median(values))} ({form(min(values))} to {form(max(values))})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levin", required=True, help="build folder")
    parser.add_argument("--data", required=True, help="folder of MNIST's files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batches", type=int, help="training batches of an epoch (default: all of them)")
    parser.add_argument("--steps", type=int, default=3000, help="timed steps of the overhead")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--skip-training", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    overhead = {"levin": {"none": [], "default": [], "hand": []}, "lightning": {"none": [], "default": [], "hand": []}}
    trained = {row.name: {"levin": [], "lightning": []} for row in ROWS}
    data = None if args.skip_training else mnist(args.data)
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for who, (found, hand) in (("levin", levin_overhead(args.levin, args.steps, args.threads, folder)),
                                       ("lightning", lightning_overhead(args.steps, folder))):
                for kind, us in found.items():
                    overhead[who][kind].append(us)
                overhead[who]["hand"] += hand
            for row in ROWS if data else []:
                trained[row.name]["levin"].append(levin_training(row, args.levin, args.data, args.epochs, args.batches,
                                                                 args.threads, folder))
                trained[row.name]["lightning"].append(lightning_training(row, data, args.epochs, args.batches, folder))

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               platform.machine())
    lines = [f"# Levin's trainer and PyTorch Lightning {L.__version__} (PyTorch {torch.__version__}) "
             f"on {args.threads} CPU threads", "",
             f"Device: {cpu}, {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}; {datetime.date.today()}; "
             f"commit {commit}.",
             f"Made by `python3 bench/compare_lightning.py {' '.join(sys.argv[1:])}`.", "",
             f"Median (smallest to largest) of {args.rounds} alternating rounds. Ratio = Lightning's / Levin's.", "",
             "## Overhead over the hand-written loop, us a step", "",
             "| | Levin | Lightning | ratio |", "|---|---:|---:|---:|"]
    us = lambda x: f"{x:.2f}"
    for kind, words in (("hand", "hand-written loop itself"), ("none", "trainer, no callbacks"),
                        ("default", "trainer, default callbacks, loss logged")):
        a, b = overhead["levin"][kind], overhead["lightning"][kind]
        ratio = statistics.median(b) / statistics.median(a)
        lines.append(f"| {words} | {spread(a, us)} | {spread(b, us)} | {ratio:.1f} |" if statistics.median(a) > 0
                     else f"| {words} | {spread(a, us)} | {spread(b, us)} | |")
    if data:
        epoch = "" if args.batches is None else f" of {args.batches} training batches"
        lines += ["", f"## MNIST, epochs: {args.epochs}{epoch}, batches of 128", "",
                  "| training | Levin s an epoch | Lightning s an epoch | Levin samples/s | Lightning samples/s "
                  "| ratio of time |",
                  "|---|---:|---:|---:|---:|---|"]
        for name, sides in trained.items():
            pairs = [b[0] / a[0] for a, b in zip(sides["levin"], sides["lightning"])]
            cell = lambda who, i, form: spread([x[i] for x in sides[who]], form)
            s, n = (lambda x: f"{x:.2f}"), (lambda x: f"{x:,.0f}")
            lines.append(f"| {name} | {cell('levin', 0, s)} | {cell('lightning', 0, s)} | {cell('levin', 1, n)} | "
                         f"{cell('lightning', 1, n)} | {spread(pairs, s)} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        open(args.out, "w").write(text)


if __name__ == "__main__":
    main()
