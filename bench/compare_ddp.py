#!/usr/bin/env python3
"""Levin's ddp and PyTorch's DistributedDataParallel (Gloo) side by side: two ranks, the same model, in the same run.

    python3 bench/compare_ddp.py --levin build/release/bench/bench_ddp [--rounds 5] [--steps 100] [--threads 1]

The row is step/f32/2_ranks_mlp_512 of bench/ddp.cpp: an MLP 784-512-512-10, batches of 64 a rank, SGD. The ranks of
both are processes on this machine; Levin's move gradients through shared memory, PyTorch's through Gloo. Rounds
alternate. The result is the median over rounds of PyTorch's time / Levin's, with the smallest and the largest: above 1
Levin is faster. --steps are PyTorch's; Levin takes 100.
"""
import argparse, json, os, socket, statistics, subprocess, sys, tempfile, time

ROW = "step/f32/2_ranks_mlp_512"
RANKS, BATCH, WARMUP = 2, 64, 10


def worker(rank, port, steps, threads, results):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
        torch.nn.Linear(512, 10))
    net = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, foreach=True)
    x, y = torch.randn(BATCH, 784), torch.zeros(BATCH, dtype=torch.long)
    seconds = []
    for step in range(WARMUP + steps):
        begin = time.perf_counter()
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step >= WARMUP:
            seconds.append(time.perf_counter() - begin)
    if rank == 0:
        results.put(statistics.median(seconds))
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def torch_seconds(steps, threads):
    import torch.multiprocessing as mp

    results = mp.get_context("spawn").SimpleQueue()
    mp.start_processes(worker, args=(free_port(), steps, threads, results), nprocs=RANKS, start_method="spawn")
    return results.get()


def levin_seconds(program, threads):
    with tempfile.TemporaryDirectory() as folder:
        job = dict(os.environ, LEVIN_NUM_THREADS=str(threads), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(free_port()))
        ranks = []
        for rank in range(RANKS):
            own = os.path.join(folder, str(rank))  # ranks must have equal arguments, and write files of their own
            os.mkdir(own)
            ranks.append(subprocess.Popen([os.path.abspath(program), "--filter", ROW, "--json", "figures.json"],
                                          cwd=own, stdout=subprocess.PIPE, text=True,
                                          env=dict(job, RANK=str(rank), LOCAL_RANK=str(rank))))
        said = [rank.communicate()[0] for rank in ranks]  # a rank that fails ends the waits of the other
        for rank, text in zip(ranks, said):
            if rank.returncode != 0:
                sys.exit(f"{text}compare_ddp: a rank of {program} failed")
        with open(os.path.join(folder, "0", "figures.json")) as f:
            rows = json.load(f)["benchmarks"]
    return next(r["real_time"] for r in rows if r["name"].startswith(ROW)) * 1e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levin", required=True, help="the program bench_ddp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1, help="of a rank")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"compare_ddp: PyTorch can not be imported ({error}); install torch for the CPU")
    pairs = []
    for _ in range(options.rounds):
        pairs.append((levin_seconds(options.levin, options.threads), torch_seconds(options.steps, options.threads)))
    ratios = sorted(t / l for l, t in pairs)
    print(f"{ROW}: Levin {statistics.median(l for l, _ in pairs) * 1e6:.0f} us, "
          f"PyTorch {torch.__version__} {statistics.median(t for _, t in pairs) * 1e6:.0f} us, "
          f"{statistics.median(ratios):.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
