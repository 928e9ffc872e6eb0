#!/usr/bin/env python3
"""Levin and PyTorch side by side: the same work on the same machine in the same run.

    python3 bench/compare_torch.py --levin build/release/bench [--device cuda] [--compile] [--rounds 5] [--more 10]
                                   [--filter REGEX] [--threads 2] [--bf16] [--out FILE]

Levin's programs name their rows (op/dtype/shape); PyTorch runs the rows that it has as well. Rows alternate (Levin's,
PyTorch's, the next row), so that a machine that slows down slows both sides. A row is the median over the rounds of
PyTorch's time / Levin's, with the smallest and the largest ratio of a round: above 1, Levin is faster. Both sides take
the median of samples (Note [Measuring] in bench/stopwatch.h), and the mean for ops of one element. With --more N the
rows whose rounds lie on both sides of 1 get N further rounds, and their medians are over all of them.

PyTorch runs at its best: gradients cleared to None, foreach or fused optimizers, inference without a tape where there
is nothing to record, for the CNN the faster of its two memory layouts, cudnn.benchmark on. On a GPU its time is taken
between events, as Levin's is; kernels below 50 us run as replays of a CUDA graph of 20 calls where PyTorch can record
them, gradients excepted: the time of a short one has the launches in it. --compile runs each row through torch.compile
as well, gradients and training steps too. --bf16 takes the rows of kernels in bf16 and runs the steps of both under
autocast. The head of the table names the TF32 switches, the backends of attention and the mode of torch.compile. Its
end has the rows below 1, the geometric mean of all rows and the rows that PyTorch failed to measure. If there are such
rows, or PyTorch could not go on, the exit status is 1.
"""
import argparse, datetime, json, os, platform, re, statistics, subprocess, sys, tempfile, time

import torch
import torch._functorch.config
import torch.nn.functional as F


ON_GPU = False  # whether --device is cuda
IN_BF16 = False  # whether --bf16 is given


def cast_loss(loss_of, device):
    """The loss as --bf16 asks for it."""
    def loss():
        with torch.autocast(device, torch.bfloat16, enabled=IN_BF16):
            return loss_of()
    return loss


def seconds_of(call, n):
    """Seconds of n calls: on a GPU between events, as Levin's rows are measured."""
    if ON_GPU:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(n):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3
    begin = time.perf_counter()
    for _ in range(n):
        call()
    return time.perf_counter() - begin


def measure(call, min_seconds):
    """Seconds a call takes: repeated until min_seconds have passed, after a warm-up."""
    call()
    if ON_GPU:
        torch.cuda.synchronize()
    n = 1
    while True:
        seconds = seconds_of(call, n)
        if seconds >= min_seconds:
            return seconds / n
        n = max(n + 1, int(n * min(100.0, 1.2 * min_seconds / max(seconds, 1e-9))))


COPIES, SHORT = 20, 50e-6  # as bench/stopwatch.h


def median_sample(call, min_seconds):
    """Seconds a call takes, as bench/stopwatch.h takes them: the median of samples of at least SHORT."""
    call()
    once = max(1e-9, min(seconds_of(call, 1) for _ in range(2)))
    calls = int(min(max(SHORT / once, 1), 1e5))
    samples = int(min(max(min_seconds / (once * calls), 5), 200))
    return statistics.median(seconds_of(call, calls) for _ in range(samples)) / calls


def replayed(call, min_seconds):
    """Seconds a call takes in a CUDA graph of COPIES, or None where PyTorch cannot record it."""
    try:
        for _ in range(3):  # on a side stream, as CUDA graphs require for their warm-up
            with torch.cuda.stream(torch.cuda.Stream()):
                call()
            torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(COPIES):
                call()
        return median_sample(graph.replay, min_seconds) / COPIES
    except RuntimeError as e:
        print(f"no CUDA graph: {first_line(e)}", file=sys.stderr)
        torch.cuda.synchronize()
        return None


def kernel_time(call, min_seconds):
    """Seconds of a row of bench_kernels: short kernels by replays, as Levin's are. Gradients are not captured: PyTorch
    runs them on the stream of their forward, so the capture fails, and its generator is unusable from then on."""
    seconds = median_sample(call, min_seconds)
    if ON_GPU and seconds < 3 * SHORT and not getattr(call, "recorded", False):
        short = replayed(call, min_seconds)
        if short is not None and short <= SHORT:
            return short
    return seconds


def step_time(call, min_seconds):
    """Seconds of a step: bench_step measures ten times as long as bench_kernels."""
    return median_sample(call, 10 * min_seconds)


def no_grad(f):
    def call():
        with torch.no_grad():
            f()
    call.compiled = lambda mode: no_grad(torch.compile(f, mode=mode))
    return call


def leaves(shape, make, inputs):
    return [t.requires_grad_() for t in inputs(shape, make)]


def gradient_case(make_gradients, f):
    """make_gradients(f) -> call; compiled, f is what torch.compile gets: it compiles the gradient with it."""
    call = recorded(make_gradients(f))
    call.compiled = lambda mode: recorded(make_gradients(torch.compile(f, mode=mode)))
    return call


def in_loop(f, n=1000):
    """A tiny op repeated in one call, so that `measure` adds nothing of its own."""
    def call():
        for _ in range(n):
            f()
    call.repeats = n
    return call


def chain(multiply, device):
    x, b = ones(device).requires_grad_(), ones(device)

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


def mlp(hidden):
    layers, width = [torch.nn.Flatten()], 784
    for h in hidden:
        layers += [torch.nn.Linear(width, h), torch.nn.ReLU()]
        width = h
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


def lenet():
    n = torch.nn
    return n.Sequential(n.Conv2d(1, 32, 5, padding=2), n.ReLU(), n.MaxPool2d(2),
                        n.Conv2d(32, 64, 5, padding=2), n.ReLU(),
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


def training(net, opt, loss_of):
    """A step; compiled, torch.compile gets the loss and its gradient. The update already is a fused kernel."""
    def step(loss_of):
        def call():
            loss = loss_of()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        return call
    call = step(loss_of)
    call.compiled = lambda mode: step(torch.compile(loss_of, mode=mode))
    return call


def step_case(net, batch, device, channels_last=False):
    net = net.to(device)
    images, labels = torch.rand(batch, 1, 28, 28, device=device), torch.randint(0, 10, (batch,), device=device)
    if channels_last:
        net = net.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    return training(net, best_adam(net), cast_loss(lambda: F.cross_entropy(net(images), labels), device))


def faster_of(*cases):
    def run(min_seconds):
        return min(step_time(c, min_seconds / len(cases)) for c in cases)
    run.compiled = lambda mode: faster_of(*(c.compiled(mode) for c in cases))
    return run


DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def unary(f):
    return lambda shape, make: (lambda x=make(shape): f(x))


def of_two(f):
    return lambda shape, make: (lambda a=make(shape), b=make(shape).exp(): f(a, b))


def backward(inputs, f):
    """The gradient alone: f is recorded once."""
    def case(shape, make):
        xs = leaves(shape, make, inputs)

        def gradients(g):
            y = g(*xs)
            seed = torch.ones_like(y)
            return lambda: torch.autograd.grad(y, xs, seed, retain_graph=True)
        return gradient_case(gradients, f)
    return case


def both(inputs, f):
    def case(shape, make):
        xs = leaves(shape, make, inputs)
        seed = torch.ones_like(f(*xs))
        return gradient_case(lambda g: lambda: torch.autograd.grad(g(*xs), xs, seed), f)
    return case


def recorded(call):
    """A call that needs the tape: a gradient."""
    call.recorded = True
    return call


def one(shape, make):
    return [make(shape)]


def norm_inputs(shape, make):
    return [make(shape), torch.ones(shape[1], device=make.device, dtype=make.dtype),
            torch.zeros(shape[1], device=make.device, dtype=make.dtype)]


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[1],), w, b)


def rms_norm(x, w):
    return F.rms_norm(x, (x.shape[1],), w)


def batch_norm(x, w, b):
    return F.batch_norm(x, None, None, w, b, training=True)


def labels(shape, make):
    return torch.randint(0, shape[1], (shape[0],), device=make.device)


def cross_entropy(shape, make):
    x, t = make(shape), labels(shape, make)
    return lambda: F.cross_entropy(x, t)


def cross_entropy_both(shape, make):
    x, t = make(shape).requires_grad_(), labels(shape, make)
    return gradient_case(lambda g: lambda: torch.autograd.grad(g(x, t), x), F.cross_entropy)


def linear_cross_entropy_both(shape, make):
    rows, width, classes = shape
    x, w = make((rows, width)).requires_grad_(), make((classes, width)).requires_grad_()
    t = torch.randint(0, classes, (rows,), device=make.device)
    return gradient_case(lambda g: lambda: torch.autograd.grad(g(x, w), (x, w)),
                         lambda x, w: F.cross_entropy(F.linear(x, w), t))


def table_of(shape, make):
    return make((min(50304, 4 * shape[0]), shape[1]))


def embedding(shape, make):
    w = table_of(shape, make)
    i = torch.randint(0, w.shape[0], (shape[0],), device=make.device)
    return lambda: F.embedding(i, w)


def embedding_renorm(shape, make):
    w = table_of(shape, make)
    i = torch.randint(0, w.shape[0], (shape[0],), device=make.device)
    return lambda: torch.embedding_renorm_(w, i, 1.0, 2.0)


def embedding_backward(shape, make):
    i = torch.randint(0, min(50304, 4 * shape[0]), (shape[0],), device=make.device)
    return backward(lambda s, m: [table_of(s, m)], lambda w: F.embedding(i, w))(shape, make)


def bag_rows():
    def inputs(s, make):
        return [make((min(50000, 16 * s[0]), s[1]))]

    def sums(s, make):
        first = torch.arange(s[0], device=make.device) * 8
        offsets = first + torch.minimum(torch.randint(8, (s[0],), device=make.device), first)
        i = torch.randint(min(50000, 16 * s[0]), (8 * s[0],), device=make.device)
        return lambda w: F.embedding_bag(i, w, offsets, mode="sum")

    return {"embedding_bag": lambda s, m: (lambda w=inputs(s, m)[0], f=sums(s, m): f(w)),
            "embedding_bag_both": lambda s, m: both(inputs, sums(s, m))(s, m)}


def unique(s, make):
    x = torch.randint(1000, s, device=make.device).to(make.dtype)
    return lambda: torch.unique(x, return_inverse=True, return_counts=True)


def unique_rows(s, make):
    x = torch.randint(16, s, device=make.device).to(make.dtype)
    return lambda: torch.unique(x, dim=0, return_inverse=True, return_counts=True)


def quantiles_rows_both(s, make):
    q = torch.tensor([0.25, 0.5, 0.9], device=make.device, dtype=make.dtype)
    return both(one, lambda x: x.quantile(q, 1))(s, make)


def multinomial(s, make):
    p = make(s[:2]).exp()
    return lambda: torch.multinomial(p, s[2], replacement=True)


def two(a, b):
    return lambda shape, make: (lambda x=make(a(shape)), y=make(b(shape)): x @ y)


def linear_inputs(s, make):
    return [make((s[0], s[1])), make((s[2], s[1])), make((s[2],))]


def linear(shape, make):
    x, w, b = linear_inputs(shape, make)
    return lambda: F.linear(x, w, b)


def qkv(shape, make):
    return [make(shape) for _ in range(3)]


def attention(causal):
    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def forward(shape, make):
        q, k, v = qkv(shape, make)
        return lambda: f(q, k, v)
    return forward, backward(qkv, f)


def grouped_inputs(s, make):
    fewer = (s[0], s[1] // 4, *s[2:])
    return [make(s), make(fewer), make(fewer)]


def grouped_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def upward_inputs(s, make):
    return [make((s[0], s[1], s[2], s[2])), make((s[1], s[1], 4, 4))]


def upward(x, w):
    return F.conv_transpose2d(x, w, stride=2, padding=1)


def line_inputs(s, make):
    return [make(s), make((s[1], s[1], 5))]


def line(x, w):
    return F.conv1d(x, w, padding=2)


def triplet_inputs(s, make):
    x = make(s)
    return [x, x.flip(0), x.flip(1)]


def gaussian_nll_loss_both(s, make):
    x = make(s)
    target = x.flip(0)
    return both(lambda *_: [x, x.exp()], lambda x, v: F.gaussian_nll_loss(x, target, v))(s, make)


def conv_inputs(s, make):
    return [make((s[0], s[1], s[3], s[3])), make((s[2], s[1], s[4], s[4]))]


def conv(shape, make):
    x, w = conv_inputs(shape, make)
    return lambda: F.conv2d(x, w, padding=shape[4] // 2)


def conv_both(shape, make):
    return both(conv_inputs, lambda x, w: F.conv2d(x, w, padding=shape[4] // 2))(shape, make)


def single_channels(shape, make):
    return [make((*shape[:2], shape[2], shape[2])), make((shape[1], 1, 3, 3))]


def volumes(shape, make):
    return [make((*shape[:2], *shape[3:] * 3)), make((shape[2], shape[1], 3, 3, 3))]


def conv3d(x, w):
    return F.conv3d(x, w, padding=1)


def group_norm(x, w, b):
    return F.group_norm(x, min(8, x.shape[1]), w, b)


def max_pool_3_2(x):
    return F.max_pool2d(x, 3, 2, 1)


def mlp_inputs(s, make):
    return [make((s[0], s[1])), make((s[2], s[1])), make((s[2],)), make((s[1], s[2])), make((s[1],))]


def gelu_mlp(x, w1, b1, w2, b2):
    return F.linear(F.gelu(F.linear(x, w1, b1), approximate="tanh"), w2, b2)


def positions(shape, make):
    return torch.randint(0, shape[1], shape, device=make.device)


def searchsorted(shape, make):
    x, edges = make(shape), make((shape[1],)).sort().values
    return lambda: torch.searchsorted(edges, x)


def index_put_add(shape, make):
    x, src = make(shape), make((shape[1],))
    at = tuple(torch.randint(0, n, (shape[1],), device=make.device) for n in shape)
    return lambda: x.index_put(at, src, accumulate=True)


def listed(shape, make):
    return [make((shape[1],)) for _ in range(shape[0])]


def ema(shape, make):
    averages, values = listed(shape, make), listed(shape, make)
    return lambda: torch._foreach_lerp_(averages, values, 0.001)


def clip(shape, make):
    params = [t.requires_grad_() for t in listed(shape, make)]
    for p in params:
        p.grad = make(p.shape)
    return lambda: torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)


def unscale(shape, make):
    grads, found = listed(shape, make), torch.zeros((), device=make.device)
    scale = torch.full((), 1 / 65536.0, device=make.device)

    def call():  # the work of GradScaler, and the norm with it
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)
        torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    return call


def flatten(shape, make):
    tensors = listed(shape, make)
    flat = torch.cat(tensors)
    return lambda: torch.cat(tensors, out=flat)


def unflatten(shape, make):
    tensors = listed(shape, make)
    parts = torch.cat(tensors).split(shape[1])
    return lambda: torch._foreach_copy_(tensors, parts)


def segment_parts(s, make):
    return make((s[0] * s[1], s[2])), torch.arange(0, s[0] * s[1] + 1, s[1], device=make.device)


def scatter_softmax(x, segment, rows):
    """Softmax over segments as users of PyTorch write it: torch has no op for it."""
    top = x.new_full((rows, x.shape[1]), -torch.inf).scatter_reduce(0, segment[:, None].expand_as(x), x, "amax")
    e = (x - top.detach()[segment]).exp()
    return e / torch.zeros_like(top).index_add(0, segment, e)[segment]


def segments_of(s, make):
    return torch.arange(s[0], device=make.device).repeat_interleave(s[1])


def segment_softmax(s, make):
    x, segment = segment_parts(s, make)[0], segments_of(s, make)
    return lambda: scatter_softmax(x, segment, s[0])


def segment_softmax_backward(s, make):
    x, segment = segment_parts(s, make)[0].requires_grad_(), segments_of(s, make)
    y = scatter_softmax(x, segment, s[0])
    seed = torch.ones_like(y)
    return recorded(lambda: torch.autograd.grad(y, x, seed, retain_graph=True))


def windows(s):
    return {"kernel_size": s[3], "stride": s[4], "padding": s[3] // 2 if s[4] == 1 else 0}


def im2col(shape, make):
    x = make((shape[0], shape[1], shape[2], shape[2]))
    return lambda: F.unfold(x, **windows(shape))


def col2im(shape, make):
    columns = im2col(shape, make)()
    return lambda: F.fold(columns, (shape[2], shape[2]), **windows(shape))


def resize(**options):
    """interpolate of [images, channels, side, the result's side] and its gradient alone."""
    def image(s, make):
        return make((s[0], s[1], s[2], s[2]))

    def forward(s, make):
        x = image(s, make)
        return lambda: F.interpolate(x, size=(s[3], s[3]), **options)

    def gradient(s, make):
        x = image(s, make).requires_grad_()
        y = F.interpolate(x, size=(s[3], s[3]), **options)
        seed = torch.ones_like(y)
        return recorded(lambda: torch.autograd.grad(y, x, seed, retain_graph=True))
    return forward, gradient


def resize_rows():
    rows = {}
    for name, options in (("nearest", {}), ("bilinear", {"mode": "bilinear"}), ("bicubic", {"mode": "bicubic"}),
                          ("antialias", {"mode": "bilinear", "antialias": True})):
        rows[f"interpolate_{name}"], rows[f"interpolate_{name}_backward"] = resize(**options)
    return rows


def grid_inputs(s, make):
    return [make((s[0], s[1], s[2], s[2])), make((s[0], s[2], s[2], 2)).clamp(-1, 1)]


def grid_sample(x, grid):
    return F.grid_sample(x, grid, align_corners=False)


def volume_grid_inputs(s, make):
    return [make((*s[:2], *s[2:] * 3)), make((s[0], *s[2:] * 3, 3)).clamp(-1, 1)]


def row_pairs(s, make):
    return [make((s[0], s[2])), make((s[1], s[2]))]


def cdist_rows():
    rows = {"pdist": unary(F.pdist), "pdist_backward": backward(lambda s, m: [m(s)], F.pdist)}
    for name, p in (("cdist", 2.0), ("cdist_1", 1.0), ("cdist_3", 3.0)):
        def f(a, b, p=p):
            return torch.cdist(a, b, p)
        rows[name] = lambda s, m, f=f: (lambda x=row_pairs(s, m): f(*x))
        rows[name + "_backward"] = backward(row_pairs, f)
    return rows


def linalg_rows():
    def matrices(s, make):
        x = make((s[0], s[1], s[1]))
        return [x @ x.mT / s[1] + torch.eye(s[1], device=make.device), x]

    def matrix(s, make):
        return matrices(s, make)[:1]

    of = torch.linalg
    return {"solve_both": both(matrices, of.solve),
            "solve_triangular_both": both(matrices, lambda a, b: of.solve_triangular(a, b, upper=False)),
            "inv_both": both(matrix, of.inv), "slogdet_both": both(matrix, lambda a: of.slogdet(a).logabsdet),
            "cholesky_both": both(matrix, of.cholesky), "qr_both": both(matrix, lambda a: of.qr(a).R),
            "eigh_both": both(matrix, lambda a: of.eigh(a).eigenvalues),
            "svd_both": both(matrix, lambda a: of.svd(a, full_matrices=False).S)}


def recurrent_both(layer):
    def case(s, make):
        net, x = layer(s[2], s[2]).to(make.device), make(s)

        def step():
            net.zero_grad(set_to_none=True)
            net(x)[0].sum().backward()
        return recorded(step)
    return case


def nll_loss_both(shape, make):
    x, t = make(shape).requires_grad_(), labels(shape, make)
    return gradient_case(lambda g: lambda: torch.autograd.grad(g(x), x), lambda x: F.nll_loss(x.log_softmax(1), t))


def floor_divide(s, make):
    a, b = (torch.randint(low, high, s, device=make.device) for low, high in ((-500, 500), (-9, 0)))
    return lambda: torch.floor_divide(a, b)


def ctc_loss_both(s, make):
    steps, texts, classes, labels = s
    x = make((steps, texts, classes)).log_softmax(-1).detach().requires_grad_()
    targets = torch.randint(1, classes, (texts, labels), device=make.device)
    lengths = torch.full((texts,), steps), torch.full((texts,), labels)
    return gradient_case(lambda g: lambda: torch.autograd.grad(g(x), x), lambda x: F.ctc_loss(x, targets, *lengths))


def rotary(pairs):
    """PyTorch has no such function: the code of its users, of Llama's halves and of GPT-J's pairs."""
    def turn(x, cos, sin):
        a, b = (x[..., ::2], x[..., 1::2]) if pairs else x.chunk(2, -1)
        turned = torch.stack((-b, a), -1).flatten(-2) if pairs else torch.cat((-b, a), -1)
        return x * cos + turned * sin

    def tables(s, make):
        angle = torch.arange(s[2], device=make.device)[:, None] * 10000 ** (
            -torch.arange(0, s[3], 2, device=make.device) / s[3])
        angle = angle.repeat_interleave(2, -1) if pairs else torch.cat((angle, angle), -1)
        return angle.cos().to(make.dtype), angle.sin().to(make.dtype)

    def backward_case(s, make):
        t = tables(s, make)
        return backward(one, lambda x: turn(x, *t))(s, make)
    return lambda s, m: (lambda x=m(s), t=tables(s, m): turn(x, *t)), backward_case


def random_flip(shape, make):
    x = make((shape[0], shape[1], shape[2], shape[2]))

    def flip():
        mirrored = torch.rand(shape[0], 1, 1, 1, device=make.device) < 0.5
        return torch.where(mirrored, x.flip(3), x)

    return flip


def mixup(shape, make):
    x, beta = make((shape[0], shape[1], shape[2], shape[2])), torch.distributions.Beta(0.2, 0.2)
    labels = torch.rand(shape[0], 10, device=make.device)

    def mix():
        w = float(beta.sample())
        return [t.roll(1, 0).mul_(1 - w).add_(t.mul(w)) for t in (x, labels)][0]

    return mix


def index_rows(shape, make):
    x, i = make(shape), torch.randint(0, shape[0], (shape[0],), device=make.device)
    return lambda: x.index_select(0, i)


def scatter_add_rows(shape, make):
    x, src = torch.zeros(shape, device=make.device, dtype=make.dtype), make(shape)
    i = torch.randint(0, shape[0], (shape[0],), device=make.device)
    return lambda: x.index_add(0, i, src)


def index_copy_rows(shape, make):
    x, src = torch.zeros(shape, device=make.device, dtype=make.dtype), make(shape)
    i = torch.randint(0, shape[0], (shape[0],), device=make.device)
    return lambda: x.index_copy(0, i, src)


def drawn_graph(nodes, degree, make):
    """Compressed rows: every node has `degree` edges from nodes drawn at random."""
    crow = torch.arange(0, nodes * degree + 1, degree, device=make.device)
    return crow, torch.randint(0, nodes, (nodes * degree,), device=make.device)


def spmm(s, make):
    """Positions of 32 bits are PyTorch's faster ones, too."""
    crow, col = drawn_graph(s[0], s[1], make)
    a = torch.sparse_csr_tensor(crow.int(), col.int(), make((s[0] * s[1],)), (s[0], s[0]))
    x = make((s[0], s[2]))
    return lambda: a @ x


def edge_ends(s, make):
    crow, col = drawn_graph(s[0], s[1], make)
    return torch.arange(s[0], device=make.device).repeat_interleave(s[1]), col


def edge_scores(s, make):
    row, col = edge_ends(s, make)
    return (make((s[0], s[2])), make((s[0], s[2]))), lambda u, v: F.leaky_relu(u[col] + v[row], 0.2)


def gatv2_scores(s, make):
    row, col = edge_ends(s, make)
    inputs = make((s[0], s[2], s[3])), make((s[0], s[2], s[3])), make((s[2], s[3]))
    return inputs, lambda l, r, attn: (F.leaky_relu(l[col] + r[row], 0.2) * attn).sum(-1)


def both_of(case):
    """A case that returns inputs and their function, with gradients."""
    def side(s, make):
        inputs, f = case(s, make)
        return both(lambda *_: inputs, f)(s, make)
    return side


def segment_sum(s, make):
    x, offsets = make((s[0] * s[1], s[2])), torch.arange(0, s[0] * s[1] + 1, s[1], device=make.device)
    return lambda: torch.segment_reduce(x, "sum", offsets=offsets, axis=0, unsafe=True)


class Gcn(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(features, 16), torch.nn.Linear(16, 7)

    def forward(self, a, x):
        return torch.sparse.mm(a, self.fc2(torch.relu(torch.sparse.mm(a, self.fc1(x)))))


def gcn_case(nodes, degree, features, device):
    make = maker(torch.float32, device)
    crow, col = drawn_graph(nodes, degree, make)
    a = torch.sparse_csr_tensor(crow, col, torch.full((nodes * degree,), 1 / degree, device=device), (nodes, nodes))
    x, target = torch.rand(nodes, features, device=device), torch.randint(0, 7, (nodes,), device=device)
    net = Gcn(features).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2, fused=True)
    return training(net, opt, cast_loss(lambda: F.cross_entropy(net(a, x), target), device))


def update(make_optimizers):
    """The fastest of the ways in which PyTorch does it."""
    def case(shape, make):
        params = [make(shape[1:]).requires_grad_() for _ in range(shape[0])]
        for p in params:
            p.grad = make(shape[1:])
        best = min((o(params) for o in make_optimizers), key=lambda o: measure(o.step, 0.05))

        def step():
            best.step()
        step.has_own_mode = True  # it switches the tape off
        return step
    return case


def updates():
    """Optimizers with default settings, each in the fastest of its forms. On a GPU those that can be captured are."""
    of = torch.optim
    rows = {"rmsprop": of.RMSprop, "nadam": of.NAdam, "radam": of.RAdam, "adamax": of.Adamax, "adadelta": of.Adadelta,
            "asgd": of.ASGD, "rprop": of.Rprop}

    def form(make, each):
        return lambda p: make(p, lr=1e-4, foreach=each, capturable=ON_GPU)

    def adagrad(**how):
        return lambda p: of.Adagrad(p, lr=1e-4, **how)

    return {"muon": update((lambda p: of.Muon(p, lr=1e-4),)),
            "adagrad": update((adagrad(foreach=False), adagrad(foreach=True), lambda p: adagrad(fused=not ON_GPU)(p))),
            **{name: update((form(make, False), form(make, True))) for name, make in rows.items()}}


def parametrized(parametrize):
    def case(s, make):
        net, x, seed = parametrize(torch.nn.Linear(s[1], s[2])).to(make.device), make((s[0], s[1])), make((s[0], s[2]))

        def step():
            net.zero_grad(set_to_none=True)
            net(x).backward(seed)
        return recorded(step)
    return case


def lookup_step(make_optimizer):
    def case(shape, make):
        w = make((50304, shape[1])).requires_grad_()
        i = torch.randint(0, 50304, (shape[0],), device=make.device)
        seed, opt = make(shape), make_optimizer([w])

        def step():
            opt.zero_grad()
            F.embedding(i, w, sparse=True).backward(seed)
            opt.step()
        return recorded(step)
    return case


def adamw(**how):
    return lambda p: torch.optim.AdamW(p, lr=1e-4, **how)


def sgd(**how):
    return lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9, **how)


def adafactor(**how):
    return lambda p: torch.optim.Adafactor(p, **how)


def gamma_log_prob(shape, make):
    x = make(shape).exp()
    gamma = torch.distributions.Gamma(x + 0.5, x + 1, validate_args=False)
    return lambda: gamma.log_prob(x)


# op of a row op/dtype/shape of bench_kernels -> PyTorch's side: (shape, make) -> call
OPS = {
    "add": lambda s, m: (lambda a=m(s), b=m(s): a + b),
    "relu": unary(torch.relu), "relu_backward": backward(one, torch.relu),
    "exp": unary(torch.exp), "exp_backward": backward(one, torch.exp),
    "gelu_erf": unary(F.gelu), "gelu_erf_backward": backward(one, F.gelu),
    "gelu_tanh": unary(lambda x: F.gelu(x, approximate="tanh")),
    "gelu_tanh_backward": backward(one, lambda x: F.gelu(x, approximate="tanh")),
    "mish": unary(F.mish), "mish_backward": backward(one, F.mish),
    "hardswish": unary(F.hardswish), "hardswish_backward": backward(one, F.hardswish),
    "atan": unary(torch.atan), "atan_backward": backward(one, torch.atan),
    "sinh": unary(torch.sinh), "sinh_backward": backward(one, torch.sinh),
    "asinh": unary(torch.asinh), "asinh_backward": backward(one, torch.asinh),
    "where": lambda s, m: (lambda a=m(s): (lambda b=-a, k=a > 0: lambda: torch.where(k, a, b))())(),
    "masked_fill": lambda s, m: (lambda a=m(s): (lambda k=a > 0: lambda: a.masked_fill(k, 0))())(),
    "lt": of_two(torch.lt), "maximum": of_two(torch.maximum), "remainder": of_two(torch.remainder),
    "atan2": of_two(torch.atan2), "hypot": of_two(torch.hypot), "logaddexp": of_two(torch.logaddexp),
    "lerp": of_two(lambda a, b: torch.lerp(a, b, 0.3)),
    "pow": lambda s, m: (lambda x=m(s).exp(): x ** 2.5), "clamp": unary(lambda x: x.clamp(-1, 1)),
    "flip": unary(lambda x: x.flip(1)), "repeat": unary(lambda x: x.repeat(2, 2)),
    "amax_columns": unary(lambda x: x.amax(0)), "logsumexp_columns": unary(lambda x: x.logsumexp(0)),
    "median_rows": unary(lambda x: x.median(1).values),
    "prod_rows_both": both(lambda s, make: [make(s) * 0.01 + 1], lambda x: x.prod(1)),
    "cumprod_rows_backward": backward(one, lambda x: x.cumprod(1)),
    "depthwise_both": both(single_channels, lambda x, w: F.conv2d(x, w, padding=1, groups=x.shape[1])),
    "cast_to_bf16": unary(lambda x: x.to(torch.bfloat16)),
    "bias_add": lambda s, m: (lambda x=m(s), b=m((s[1],)): x + b),
    "dropout": unary(lambda x: F.dropout(x, 0.1)),
    "standard_gamma": lambda s, m: (lambda a=m(s).exp(): torch._standard_gamma(a)),
    "gamma_log_prob": gamma_log_prob,
    "add_transposed": lambda s, m: (lambda a=m(s), b=m((s[1], s[0])).t(): a + b),
    "transpose": unary(lambda x: x.t().contiguous()),
    "nchw_to_nhwc": unary(lambda x: x.permute(0, 2, 3, 1).contiguous()),
    "sum_all": unary(torch.sum), "sum_rows": unary(lambda x: x.sum(1)), "sum_columns": unary(lambda x: x.sum(0)),
    "argmax_rows": unary(lambda x: x.argmax(1)), "cumsum_rows": unary(lambda x: x.cumsum(1)),
    "cumprod_rows": unary(lambda x: x.cumprod(1)), "logcumsumexp_rows": unary(lambda x: x.logcumsumexp(1)),
    "cummax_rows": unary(lambda x: x.cummax(1)),
    "sort_rows": unary(lambda x: x.sort(dim=1, stable=True)), "topk_rows": unary(lambda x: x.topk(min(8, x.shape[1]))),
    "softmax": unary(lambda x: torch.softmax(x, 1)), "softmax_backward": backward(one, lambda x: torch.softmax(x, 1)),
    "log_softmax": unary(lambda x: torch.log_softmax(x, 1)),
    "log_softmax_backward": backward(one, lambda x: torch.log_softmax(x, 1)),
    "cross_entropy": cross_entropy, "cross_entropy_both": cross_entropy_both,
    "linear_cross_entropy_both": linear_cross_entropy_both,
    "linear_then_cross_entropy_both": linear_cross_entropy_both,
    "layer_norm": lambda s, m: (lambda a=norm_inputs(s, m): layer_norm(*a)),
    "layer_norm_backward": backward(norm_inputs, layer_norm),
    "rms_norm": lambda s, m: (lambda a=norm_inputs(s, m)[:2]: rms_norm(*a)),
    "rms_norm_backward": backward(lambda s, m: norm_inputs(s, m)[:2], rms_norm),
    "glu": unary(F.glu), "glu_backward": backward(one, F.glu), "ctc_loss_both": ctc_loss_both,
    "rotary": rotary(False)[0], "rotary_backward": rotary(False)[1],
    "rotary_pairs": rotary(True)[0], "rotary_pairs_backward": rotary(True)[1],
    "batch_norm": lambda s, m: (lambda a=norm_inputs(s, m): batch_norm(*a)),
    "batch_norm_backward": backward(norm_inputs, batch_norm),
    "group_norm": lambda s, m: (lambda a=norm_inputs(s, m): group_norm(*a)),
    "group_norm_backward": backward(norm_inputs, group_norm),
    "max_pool": unary(lambda x: F.max_pool2d(x, 2)), "max_pool_backward": backward(one, lambda x: F.max_pool2d(x, 2)),
    "max_pool_3_2": unary(max_pool_3_2), "max_pool_3_2_backward": backward(one, max_pool_3_2),
    "avg_pool": unary(lambda x: F.avg_pool2d(x, 2)), "avg_pool_backward": backward(one, lambda x: F.avg_pool2d(x, 2)),
    "global_avg_pool": unary(lambda x: F.adaptive_avg_pool2d(x, 1)),
    "global_avg_pool_backward": backward(one, lambda x: F.adaptive_avg_pool2d(x, 1)),
    "index_copy_rows": index_copy_rows,
    "scatter_amax_elements": lambda s, m: (
        lambda x=m(s), v=m(s), i=positions(s, m): x.scatter_reduce(1, i, v, "amax")),
    "gather_elements": lambda s, m: (lambda x=m(s), i=positions(s, m): x.gather(1, i)),
    "scatter_elements": lambda s, m: (lambda x=m(s), v=m(s), i=positions(s, m): x.scatter(1, i, v)),
    "scatter_add_elements": lambda s, m: (lambda x=m(s), v=m(s), i=positions(s, m): x.scatter_add(1, i, v)),
    "gelu_mlp": lambda s, m: (lambda a=mlp_inputs(s, m): gelu_mlp(*a)), "gelu_mlp_both": both(mlp_inputs, gelu_mlp),
    "segment_softmax": segment_softmax, "segment_softmax_backward": segment_softmax_backward,
    "ema": ema, "clip_grad_norm": clip, "unscale": unscale, "flatten": flatten, "unflatten": unflatten,
    "embedding": embedding, "embedding_renorm": embedding_renorm, "embedding_backward": embedding_backward,
    "gather_rows": index_rows, "scatter_add_rows": scatter_add_rows,
    "matmul": two(lambda s: s[:2], lambda s: s[1:]),
    "bmm": two(lambda s: (s[0], s[1], s[3]), lambda s: (s[0], s[3], s[2])),
    "linear": linear, "linear_both": both(linear_inputs, F.linear),
    "attention": attention(False)[0], "attention_backward": attention(False)[1],
    "attention_causal": attention(True)[0], "attention_causal_backward": attention(True)[1],
    "lstm_both": recurrent_both(torch.nn.LSTM), "gru_both": recurrent_both(torch.nn.GRU),
    "rnn_both": recurrent_both(torch.nn.RNN), "nll_loss_both": nll_loss_both, "floor_divide_i64": floor_divide,
    "histc": unary(lambda x: torch.histc(x, 64, -3, 3)),
    "searchsorted": searchsorted, "index_put_add": index_put_add,
    **bag_rows(), "unique": unique, "unique_rows": unique_rows, "multinomial": multinomial,
    "quantile_rows": unary(lambda x: x.quantile(0.3, 1)), "quantiles_rows_both": quantiles_rows_both,
    "triplet_margin_loss_both": both(triplet_inputs, F.triplet_margin_loss),
    "gaussian_nll_loss_both": gaussian_nll_loss_both,
    "max_pool1d": unary(lambda x: F.max_pool1d(x, 2)),
    "max_pool1d_backward": backward(one, lambda x: F.max_pool1d(x, 2)),
    "attention_grouped": lambda s, m: (lambda a=grouped_inputs(s, m): grouped_attention(*a)),
    "attention_grouped_backward": backward(grouped_inputs, grouped_attention),
    "conv_transpose2d": lambda s, m: (lambda a=upward_inputs(s, m): upward(*a)),
    "conv_transpose2d_both": both(upward_inputs, upward),
    "conv1d": lambda s, m: (lambda a=line_inputs(s, m): line(*a)), "conv1d_both": both(line_inputs, line),
    "conv3d": lambda s, m: (lambda a=volumes(s, m): conv3d(*a)), "conv3d_both": both(volumes, conv3d),
    "max_pool3d": lambda s, m: (lambda x=volumes(s, m)[0]: F.max_pool3d(x, 2)),
    "max_pool3d_with_indices": lambda s, m: (lambda x=volumes(s, m)[0]: F.max_pool3d(x, 2, return_indices=True)),
    "max_unpool3d": lambda s, m: (lambda y=F.max_pool3d(volumes(s, m)[0], 2, return_indices=True):
                                  F.max_unpool3d(*y, 2)),
    "avg_pool3d": lambda s, m: (lambda x=volumes(s, m)[0]: F.avg_pool3d(x, 2)),
    "conv2d": conv, "conv2d_both": conv_both, "im2col": im2col, "col2im": col2im,
    "random_flip": random_flip, "mixup": mixup, **resize_rows(), **cdist_rows(), **linalg_rows(),
    "grid_sample": lambda s, m: (lambda a=grid_inputs(s, m): grid_sample(*a)),
    "grid_sample_backward": backward(grid_inputs, grid_sample),
    "grid_sample_volume": lambda s, m: (lambda a=volume_grid_inputs(s, m): grid_sample(*a)),
    "grid_sample_volume_backward": backward(volume_grid_inputs, grid_sample),
    "spmm": spmm, "segment_sum": segment_sum,
    "edge_scores_both": both_of(edge_scores), "gatv2_scores_both": both_of(gatv2_scores),
    "adamw": update((adamw(foreach=True), adamw(fused=True))),
    "sparse_sgd": lookup_step(lambda p: torch.optim.SGD(p, lr=1e-4)),
    "sparse_adam": lookup_step(lambda p: torch.optim.SparseAdam(p, lr=1e-4)),
    "adafactor": update((adafactor(foreach=False), adafactor(foreach=True))),
    "sgd_momentum": update((sgd(foreach=True), sgd(fused=True))), **updates(),
    "weight_norm_step": parametrized(torch.nn.utils.parametrizations.weight_norm),
    "spectral_norm_step": parametrized(torch.nn.utils.parametrizations.spectral_norm),
}
# Rows with a target: PyTorch's time / Levin's on the cpu
TARGETS = {"add_1": 5, "add_1_recorded": 5, "backward_chain/add_1000": 5, "backward_chain/mul_1000": 5,
           "matmul/f32/512x512x512": 1, "matmul/f32/1024x1024x1024": 1, "matmul/f32/2048x2048x2048": 1,
           **{f"{op}/f32/{rows}x1024": 2 for op in ("softmax", "layer_norm", "gelu_erf", "gelu_tanh")
              for rows in (512, 4096)},
           "mnist_mlp_128_step/64": 2, "mnist_mlp_512_step/64": 2, "mnist_cnn_step/64": 1.5, "resnet8_step/128": 1.3,
           "adamw_100_tiny": 20, "sgd_100_tiny": 20, "spmm/f32/2708x4x16": 2,
           **{f"segment_softmax{pass_}/f32/{shape}": 2 for pass_ in ("", "_backward")
              for shape in ("64x4x1", "2708x4x16", "1000000x25x1")}}
# The same on cuda: a small step that replays one graph, beside PyTorch's eager step
CUDA_TARGETS = {"mnist_mlp_128_step_captured/64": 5, "mnist_mlp_512_step_captured/64": 5}


class Residual(torch.nn.Module):
    """A block of examples/resnet.h."""
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        n = torch.nn
        self.body = n.Sequential(n.Conv2d(inputs, outputs, 3, stride, 1, bias=False), n.BatchNorm2d(outputs), n.ReLU(),
                                 n.Conv2d(outputs, outputs, 3, 1, 1, bias=False), n.BatchNorm2d(outputs))
        self.shortcut = n.Identity() if inputs == outputs else n.Sequential(
            n.Conv2d(inputs, outputs, 1, stride, bias=False), n.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def resnet_case(batch, device, channels_last):
    n = torch.nn
    net = n.Sequential(n.Conv2d(3, 16, 3, padding=1, bias=False), n.BatchNorm2d(16), n.ReLU(), Residual(16, 16, 1),
                       Residual(16, 32, 2), Residual(32, 64, 2), n.AdaptiveAvgPool2d(1), n.Flatten(), n.Linear(64, 10))
    net = net.to(device)
    images, labels = torch.rand(batch, 3, 32, 32, device=device), torch.randint(0, 10, (batch,), device=device)
    if channels_last:
        net, images = net.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
    return training(net, opt, cast_loss(lambda: F.cross_entropy(net(images), labels), device))


class Block(torch.nn.Module):
    """A layer of GPT-2 as bench/step.cpp has it."""
    def __init__(self, width, heads):
        super().__init__()
        n = torch.nn
        self.heads, self.norm1, self.norm2 = heads, n.LayerNorm(width), n.LayerNorm(width)
        self.qkv, self.out = n.Linear(width, 3 * width), n.Linear(width, width)
        self.up, self.down = n.Linear(width, 4 * width), n.Linear(4 * width, width)

    def forward(self, x):
        b, n, width = x.shape
        heads = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        y = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, width))
        return y + self.down(F.gelu(self.up(self.norm2(y)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self, layers, width, heads, words):
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, tokens):
        return self.norm(self.blocks(self.words(tokens))).flatten(0, 1) @ self.words.weight.t()


def gpt_case(shape, batch, length, device):
    net = Gpt(*shape).to(device)
    tokens = torch.randint(0, shape[3], (batch, length), device=device)
    target = torch.randint(0, shape[3], (batch * length,), device=device)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)

    def loss():
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda" or IN_BF16):
            return F.cross_entropy(net(tokens), target)
    return training(net, opt, loss)


def torch_case(name, device):
    """PyTorch's side of one of Levin's rows, or None. A step that Levin replays is compared with the same step."""
    name = name.replace("_captured", "")
    fixed = {"add_1": lambda: in_loop(lambda a=ones(device), b=ones(device): torch.add(a, b)),
             "add_1_recorded": lambda: in_loop(lambda a=ones(device).requires_grad_(), b=ones(device): torch.add(a, b)),
             "view_1": lambda: in_loop(lambda v=torch.ones(1, 1, device=device): v.transpose(0, 1)),
             "backward_chain/add_1000": lambda: chain(False, device),
             "backward_chain/mul_1000": lambda: chain(True, device),
             "mnist_mlp_128_step/64": lambda: step_case(mlp([128]), 64, device),
             "mnist_mlp_512_step/64": lambda: step_case(mlp([512, 512]), 64, device),
             "mnist_cnn_step/64": lambda: faster_of(step_case(lenet(), 64, device),
                                                    step_case(lenet(), 64, device, True)),
             "resnet8_step/128": lambda: faster_of(resnet_case(128, device, False), resnet_case(128, device, True)),
             "gpt_small_step/4/128": lambda: gpt_case((2, 128, 4, 1024), 4, 128, device),
             "gcn_step/2708/4/1433": lambda: gcn_case(2708, 4, 1433, device),
             "gpt2_124m_step/16/1024": lambda: gpt_case((12, 768, 12, 50304), 16, 1024, device),
             "adamw_100_tiny": lambda: update((adamw(foreach=True), adamw(fused=True)))(
                 (100, 4), maker(torch.float32, device)),
             "sgd_100_tiny": lambda: update((lambda p: torch.optim.SGD(p, lr=1e-4, foreach=True),
                                             lambda p: torch.optim.SGD(p, lr=1e-4, fused=True)))(
                 (100, 4), maker(torch.float32, device))}
    if name in fixed:
        case = fixed[name]()
        case.steps = True
        return case
    op, _, rest = name.partition("/")
    dtype, _, shape = rest.partition("/")
    if op not in OPS or dtype not in DTYPES:
        return None
    # On a CPU PyTorch 2.13 reads beyond the image where the grid has 16 bits, and the process ends.
    if op in ("grid_sample", "grid_sample_backward") and device == "cpu" and dtype != "f32":
        return None
    call = OPS[op](tuple(int(n) for n in shape.split("x")), maker(DTYPES[dtype], device))
    return call if getattr(call, "recorded", False) or getattr(call, "has_own_mode", False) else no_grad(call)


def ones(device):
    return torch.ones(1, device=device)


def maker(dtype, device):
    def make(shape):
        return torch.randn(shape, device=device, dtype=dtype)
    make.dtype, make.device = dtype, device
    return make


def levin_rows(args, program, rows, context):
    """Runs one of Levin's benchmark programs, and yields (name, seconds) of its rows that match `rows`. The program
    waits while the caller measures the other side. The program's facts of the machine go into `context`; rows that
    failed are reported and left out."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out, tempfile.TemporaryFile("w+") as errors:
        running = subprocess.Popen([os.path.join(args.levin, "bench_" + program), "--json", out.name, "--paced",
                                    "--threads", str(args.threads), "--device", args.device, "--warm-only",
                                    "--filter", rows, "--seconds", str(args.min_time),
                                    f"--benchmark_min_time={args.min_time}", *(["--tf32"] if args.tf32 else []),
                                    *(["--dtypes", "bf16"] if args.bf16 else []), *args.levin_flags.split()],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            for line in running.stdout:
                context.update(context_of(out.name))
                name, _, said = line.rstrip("\n").partition("\t")
                name = re.sub(r"/(iterations:\d+|manual_time|real_time)", "", name)
                if said.startswith("failed"):
                    print(f"{name}: {said}", file=sys.stderr)
                else:
                    yield name, float(said)
                time.sleep(IDLE)
                running.stdin.write("\n")
                running.stdin.flush()
            running.stdin.close()
        except BrokenPipeError:
            pass  # the program has ended: its exit status says why
        except BaseException:
            running.kill()
            raise
        finally:
            running.wait()
        if running.returncode not in (0, 1) or (running.returncode == 1 and not context_of(out.name)):
            errors.seek(0)
            sys.exit(f"bench_{program} ended with {running.returncode}: {errors.read()[-2000:]}")


IDLE = 0.02  # seconds before Levin's next row: PyTorch's threads still spin for some milliseconds after its last one


def context_of(report):
    """The facts of the machine in a report of Google Benchmark, which lacks its end while rows run."""
    _, found, rest = open(report).read().partition('"context": ')
    return json.JSONDecoder().raw_decode(rest)[0] if found else {}


def torch_time(case, min_seconds):
    if case.__code__.co_varnames[:1] == ("min_seconds",):
        return case(min_seconds)
    if getattr(case, "repeats", 0):
        return measure(case, min_seconds) / case.repeats
    if getattr(case, "steps", False):
        return step_time(case, min_seconds)
    return kernel_time(case, min_seconds)


def first_line(e):
    return (str(e).splitlines() or [type(e).__name__])[0]


def torch_seconds(name, args, failed):
    """Eager, and with --compile compiled: seconds, the latter None where PyTorch cannot compile it. None where PyTorch
    has no such row, or failed: `failed` then gets the reason."""
    try:
        case = torch_case(name, args.device)
        if case is None:
            return None
        eager = torch_time(case, args.min_time)
        if not args.compile or not hasattr(case, "compiled"):
            return eager, None
        torch._dynamo.reset()
        try:
            compiled = case.compiled(args.compile_mode)
            compiled.steps = getattr(case, "steps", False)
            return eager, torch_time(compiled, args.min_time)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as e:
            print(f"{name}: not compiled: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}",
                  file=sys.stderr)
            return eager, None
    except Exception as e:  # for example a backend of attention without such heads: the other rows continue
        failed[name] = first_line(e)
        print(f"{name}: PyTorch: {failed[name]}", file=sys.stderr)
        return None


def after_row(row_failed):
    """Frees memory. Throws where a row failed and left PyTorch unable to run others: an error that CUDA keeps, or a
    generator that still belongs to a capture."""
    if not ON_GPU:
        return
    torch.cuda.empty_cache()
    if row_failed:
        torch.randn(1, device="cuda")
        torch.cuda.synchronize()


def undecided(seconds):
    """Rows whose rounds do not agree about who is faster, as Levin's --filter."""
    rows = [re.escape(name) for name, rounds in seconds.items()
            if min(r[1] / r[0] for r in rounds) < 1 < max(r[1] / r[0] for r in rounds)]
    return f"^({'|'.join(rows)})(/iterations|/manual_time|/real_time|$)" if rows else ""


def run_all(args, settings, seconds, context, failed):
    """Measures all rows, then the undecided ones again; returns why PyTorch could not go on, or ""."""
    ended = run_rounds(args, args.rounds, args.filter, settings, seconds, context, failed)
    again = undecided(seconds)
    if args.more and again and not ended:
        ended = run_rounds(args, args.more, again, settings, seconds, context, failed)
    return ended


def run_rounds(args, rounds, rows, settings, seconds, context, failed):
    """Measures the rows that match `rows`; returns why PyTorch could not go on, or ""."""
    for _ in range(rounds):
        for program in ("kernels", "step"):
            for name, ours in levin_rows(args, program, rows, context):
                theirs = torch_seconds(name, args, failed)
                try:
                    after_row(name in failed)
                except Exception as e:
                    return f"after {name}: {first_line(e)}"
                if theirs is not None:
                    seconds.setdefault(name, []).append((ours, *theirs))
                    write_json(args, settings, context, seconds)
    return ""


def sdpa_used():
    q = torch.randn(4, 12, 1024, 64, device="cuda", dtype=torch.bfloat16)
    try:
        return torch.nn.attention.SDPBackend(torch._fused_sdp_choice(q, q, q, is_causal=True)).name
    except Exception as e:
        return f"unknown ({e})"


def torch_settings(args):
    """What PyTorch was told, for the head of the table; figures must not be lost where it does not tell."""
    try:
        return told_torch(args)
    except Exception as e:
        return f"settings unknown ({e})"


def told_torch(args):
    said = [f"compiled: torch.compile(mode={args.compile_mode!r})"] if args.compile else ["torch.compile: not run"]
    if args.device == "cuda":
        cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
        backends = [n for n, on in (("flash", cuda.flash_sdp_enabled()),
                                    ("memory-efficient", cuda.mem_efficient_sdp_enabled()),
                                    ("math", cuda.math_sdp_enabled()),
                                    ("cuDNN", getattr(cuda, "cudnn_sdp_enabled", lambda: False)())) if on]
        said += [f"cudnn.benchmark {'on' if cudnn.benchmark else 'off'}, cuDNN {cudnn.version()}",
                 f"TF32: products {'on' if cuda.matmul.allow_tf32 else 'off'}, "
                 f"convolutions {'on' if cudnn.allow_tf32 else 'off'}",
                 f"SDPA: {args.sdpa}, of {' '.join(backends)}; causal bf16 heads go to {sdpa_used()}"]
    return "; ".join(said)


def set_up(args):
    global ON_GPU, IN_BF16
    ON_GPU, IN_BF16 = args.device == "cuda", args.bf16
    torch.set_num_threads(args.threads)
    if args.compile:
        torch._functorch.config.donated_buffer = False  # the gradient's rows run one backward many times
    if not ON_GPU:
        return
    # By default Levin multiplies f32 numbers exactly, and so does PyTorch here; --tf32 lets both round them.
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    if args.sdpa != "auto":
        for name, switch in (("flash", "enable_flash_sdp"), ("efficient", "enable_mem_efficient_sdp"),
                             ("math", "enable_math_sdp"),
                             ("cudnn", "enable_cudnn_sdp")):
            if hasattr(torch.backends.cuda, switch):
                getattr(torch.backends.cuda, switch)(name in (args.sdpa, "math"))


def instruction_sets():
    """What the CPU has of the instruction sets that decide a product's speed."""
    flags = next((l.split() for l in open("/proc/cpuinfo") if l.startswith("flags")), [])
    return " ".join(f for f in ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16",
                                "amx_fp16") if f in flags) or "none of AVX2 and later"


def machine(args, context):
    if args.device == "cuda":
        clocks = subprocess.run(["nvidia-smi", "--query-gpu=name,clocks.sm,clocks.mem,power.limit",
                                 "--format=csv,noheader"],
                                capture_output=True, text=True).stdout.strip()
        driver, device_name = context.get("levin_driver"), context.get("levin_device_name")
        name = f"{clocks}; CUDA {torch.version.cuda}, driver {driver}, {device_name}"
    else:
        cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")),
                   platform.machine())
        name = (f"{cpu}, {len(os.sched_getaffinity(0))} cores, level {context.get('levin_cpu_level')}, "
                f"with {instruction_sets()}")
    ceilings = ", ".join(f"{k[6:].replace('_', ' ')} {float(v):.4g}" for k, v in context.items()
                         if k.startswith("levin_") and k.split("_")[1] in ("copy", "memcpy", "own", "matmul", "launch"))
    return f"Device: {name}; load {os.getloadavg()[0]:.1f}. Measured: {ceilings}."


def write_json(args, settings, context, seconds):
    """For bench/device_table.py: {row: [[Levin, eager, compiled], ...]}, in seconds."""
    if args.json:
        with open(args.json + ".part", "w") as out:
            said = f"PyTorch {torch.__version__}, {settings}"
            json.dump({"context": context, "torch": said, "rows": seconds}, out)
        os.replace(args.json + ".part", args.json)


def readable(s):
    if s is None:
        return ""
    return f"{s * 1e9:.0f} ns" if s < 1e-6 else f"{s * 1e6:.1f} us" if s < 1e-3 else f"{s * 1e3:.2f} ms"


def failures(failed, ended):
    """What PyTorch did not measure, for the end of the table."""
    lines = [f"PyTorch ended early, {ended}. Later rows are lacking."] if ended else []
    if failed:
        lines += [f"PyTorch failed to measure {len(failed)} rows:",
                  *(f"- {name}: {why}" for name, why in failed.items())]
    return lines


def summary(ratio_of):
    """The rows below 1, lowest first, and the geometric mean of all."""
    if not ratio_of:
        return ["No row was measured on both sides."]
    below = sorted((ratio, name) for name, ratio in ratio_of.items() if ratio < 1)
    return [f"{len(ratio_of)} rows, geometric mean {statistics.geometric_mean(ratio_of.values()):.2f}; "
            f"{len(below)} below 1{':' if below else '.'}", *(f"- {name} {ratio:.2f}" for ratio, name in below)]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--levin", required=True, help="folder of Levin's benchmark programs")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--more", type=int, default=0, help="further rounds of the rows whose rounds lie on both sides of 1")
    p.add_argument("--min-time", type=float, default=0.2, help="seconds a measurement takes at least")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--filter", default=".", help="regular expression over row names")
    p.add_argument("--compile", action="store_true", help="torch.compile as well: ops, gradients and training steps")
    p.add_argument("--tf32", action="store_true", help="f32 products and convolutions of both may round to TF32 (cuda)")
    p.add_argument("--bf16", action="store_true", help="rows of kernels in bf16, steps under autocast")
    p.add_argument("--levin-flags", default="",
                   help="further flags of Levin's programs: --attention first --norm first")
    p.add_argument("--compile-mode", default="default", choices=("default", "reduce-overhead", "max-autotune"))
    p.add_argument("--sdpa", default="auto", choices=("auto", "flash", "efficient", "cudnn"),
                   help="attention's backend in PyTorch (cuda)")
    p.add_argument("--out", help="write the table as Markdown there")
    p.add_argument("--json", help="write the seconds of each round there, again after every row: "
                                  "what is stopped loses nothing")
    args = p.parse_args()
    set_up(args)
    settings = torch_settings(args)  # before the rows, which may leave PyTorch unable to tell
    seconds, context, failed = {}, {}, {}
    ended = run_all(args, settings, seconds, context, failed)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    lines = [f"# Levin and PyTorch {torch.__version__} on {args.device}", "",
             f"{machine(args, context)} {args.threads} threads; {datetime.date.today()}; commit {commit}.",
             f"PyTorch: {settings}.",
             "Made by `python3 bench/compare_torch.py "
             f"{' '.join('DIR' if a == args.levin else a for a in sys.argv[1:])}`.",
             "", "Ratio = PyTorch's time / Levin's, the median of the rounds (smallest to largest). Rows alternate.",
             "",
             "| work | Levin | PyTorch | ratio | spread | compiled | target | met |",
             "|---|---:|---:|---:|---|---:|---:|---|"]
    ratio_of, targets = {}, {} if args.bf16 else TARGETS if args.device == "cpu" else CUDA_TARGETS
    for name, rounds in seconds.items():
        ratios = [r[1] / r[0] for r in rounds]
        ratio_of[name] = statistics.median(ratios)
        ratio, target = ratio_of[name], targets.get(name)
        compiled = [r[2] / r[0] for r in rounds if r[2] is not None]
        met = "" if target is None else "yes" if ratio >= target else "no"
        ours, eager = (readable(statistics.median(r[i] for r in rounds)) for i in (0, 1))
        lines.append(f"| {name} | {ours} | {eager} "
                     f"| {ratio:.2f} | {min(ratios):.2f} to {max(ratios):.2f} "
                     f"| {f'{statistics.median(compiled):.2f}' if compiled else ''} "
                     f"| {'' if target is None else target} | {met} |")
    lacking = failures(failed, ended)
    lines += ["", *summary(ratio_of), *(["", *lacking] if lacking else [])]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
        open(args.out, "w").write(text)
    if lacking:
        sys.exit(" ".join(lacking))


if __name__ == "__main__":
    main()
