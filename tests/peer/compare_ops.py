#!/usr/bin/env python3
"""Values, gradients, gradients of gradients and refusals of ops beside PyTorch's, over random cases.

    python3 tests/peer/compare_ops.py --program build/.../tests/peer_ops [--seed 1] [--cases 12] [--filter REGEX]
    python3 tests/peer/compare_ops.py --program build/.../tests/peer_ops --speed 262144 [--cases 1] [--behind 1.0]

Each op of OPS gets random shapes, dtypes and layouts (dense, transposed, every other element, with an offset), and
cases that are wrong. PyTorch's numbers are computed in f64 from the operands as rounded to the case's dtype, so that
16-bit results are held to the exact ones; dtypes, shapes and refusals are those of PyTorch in the dtype itself. A
difference that EXPLAINED names is counted by its reason; any other one is printed, and makes the exit status 1.
--speed N times each op instead, with about N elements where its operands have free shapes, forward and with its
gradient, and lists the cases that are behind PyTorch: a search for rows that bench/ should have, not a measurement.
Needs torch on the CPU; `ninja -C BUILD tests/peer_ops` builds the program.
"""
import argparse, collections, json, math, os, random, re, statistics, struct, subprocess, sys, tempfile, time

import torch
import torch.nn.functional as F

NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
         torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL", torch.int8: "I8", torch.int16: "I16"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
WIDE = [torch.float64, torch.float32]
INTEGERS = [torch.int64, torch.int32, torch.uint8]
EPS = {torch.float64: 2**-52, torch.float32: 2**-23, torch.float16: 2**-10, torch.bfloat16: 2**-7}

# (pattern of a case and its text, kind, reason): kind is value, gradient, dtype, refuses or accepts (Levin alone).
EXPLAINED = [
    (r"^cumm(ax|in) .*dimension is", "refuses", "PyTorch does not look at the dimension where there are no elements"),
    (r"^(lgamma|digamma) .*[de]0|^polygamma", "gradient", "PyTorch's trigamma has 9 digits, mpmath agrees with Levin"),
    (r"^polygamma", "value", "PyTorch's trigamma has 9 digits, mpmath agrees with Levin"),
    (r"^clamp ", "gradient", "where low equals high, PyTorch gives neither of them the gradient"),
    (r"^hardsigmoid", "gradient", "PyTorch multiplies by 1/6 in f32, in f64 too"),
    (r"^nanmean .*expected nan", "gradient", "the gradient of a mean of nothing is 0"),
    (r"^binary_cross_entropy .*e0", "gradient", "PyTorch adds 1e-12 to x (1 - x)"),
    (r"^interpolate .*nearest.* scale=", "value", "PyTorch's paths for sizes of 1 and 2 times x's ignore the scale"),
    (r"^interpolate .*size=\d+,1 .*antialias=1", "value", "PyTorch repeats the first row of images of one column"),
    (r"^interpolate .*size=\d+,1 .*antialias=1", "gradient", "PyTorch repeats the first row of images of one column"),
    (r"^interpolate .* scale=0\.5 .*antialias=1.*\[\d+, \d+, \d+, [23]\]", "value",
     "PyTorch repeats the first row of images of one column"),
    (r"^interpolate .* scale=0\.5 .*antialias=1.*\[\d+, \d+, \d+, [23]\]", "gradient",
     "PyTorch repeats the first row of images of one column"),
    (r"^interpolate .* scale=1\.3 .*antialias=1.*\[\d+, \d+, ([23], \d+|\d+, [23])\]", "value",
     "PyTorch skips the pass along a dimension whose size stays"),
    (r"^interpolate .* scale=1\.3 .*antialias=1.*\[\d+, \d+, ([23], \d+|\d+, [23])\]", "gradient",
     "PyTorch skips the pass along a dimension whose size stays"),
    (r"^prod .*e0: only one side", "gradient", "of one factor PyTorch has rounding errors in place of 0"),
    (r"^number_pow .* b=0 .*e0: 0, expected nan", "gradient", "PyTorch multiplies by log 0"),
    (r"^quantile\w* .*must be non-empty", "accepts", "no quantiles are an empty tensor"),
    (r"^(entropy|kl)_(gamma|chi2|student_t|beta|dirichlet) .*\(f64.*[de]\d: ", "gradient",
     "PyTorch's trigamma has 9 digits, mpmath agrees with Levin"),
    (r"^dist_(gamma|chi2|student_t|beta|dirichlet) .*\(f64.*e\d: ", "gradient",
     "PyTorch's trigamma has 9 digits, mpmath agrees with Levin"),
    (r"^dist_one_hot_categorical (?!.*layouts).*values have shape", "refuses", "PyTorch looks for the largest alone"),
    (r"^embedding_bag (?!.*layouts).*include_last_offset=1", "refuses", "PyTorch drops what the last offset leaves"),
    (r"^(searchsorted|bucketize) (?!.*layouts)", "value", "a case made wrong may have boundaries in no order"),
]
# Ops whose f64 is not near enough to the exact numbers to be taken for them. A cubic's coordinates round: in one case
# mpmath gives PyTorch's error as 1.5e-15, Levin's as 2.3e-15 and the bound as 3.5e-15.
INEXACT = {"interpolate"}
# Functions of factors. LAPACK's own error in u diag(s) vh reaches 38 eps of the largest element in 300 matrices 7 x 6,
# and 32 in 5 x 3. In the gradient of a matrix 3 x 3 mpmath gives PyTorch's error as 641 eps, Levin's as 60 and the
# bound of other ops as 590.
FACTORED = {"eigh_vectors", "svd_vectors"}


# ---- Files

def save(path, tensors, metadata):
    header, parts, at = {"__metadata__": metadata}, [], 0
    for name, x in sorted(tensors.items(), key=lambda item: item[0]):
        raw = x.detach().contiguous().view(-1)
        raw = raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def load(path):
    with open(path, "rb") as file:
        data = file.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        raw = bytearray(data[8 + n + begin:8 + n + end])
        dtype = DTYPES[info["dtype"]]
        x = torch.frombuffer(raw, dtype=torch.uint8).view(dtype) if raw else torch.empty(0, dtype=dtype)
        tensors[name] = x.reshape(info["shape"])
    return tensors, metadata


# ---- Random operands

class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.g = torch.Generator().manual_seed(seed)

    def int(self, low, high):
        return self.r.randint(low, high)

    def pick(self, of):
        return self.r.choice(of)

    def shape(self, low=0, high=4, most=5):
        sizes = [self.pick([1, 2, 3, 4, most]) for _ in range(self.int(low, high))]
        if sizes and self.r.random() < .1:
            sizes[0] = 0
        return sizes

    def normal(self, shape, dtype, scale=1.0, shift=0.0):
        return (torch.randn(shape, generator=self.g, dtype=torch.float64) * scale + shift).to(dtype)

    def uniform(self, shape, dtype, low, high):
        return (torch.rand(shape, generator=self.g, dtype=torch.float64) * (high - low) + low).to(dtype)

    def integers(self, shape, dtype, low, high):
        return torch.randint(low, high, shape, generator=self.g).to(dtype)

    def numbers(self, shape, dtype):
        if dtype.is_floating_point:
            return self.normal(shape, dtype, 2)
        if dtype == torch.bool:
            return self.integers(shape, dtype, 0, 2)
        return self.integers(shape, dtype, 0 if dtype == torch.uint8 else -9, 10)

    def with_edges(self, x, edges):
        """Some elements become edges: NaN, infinities, zeros."""
        flat = x.reshape(-1).clone()
        for i in range(flat.numel()):
            if self.r.random() < .1:
                flat[i] = self.pick(edges)
        return flat.reshape(x.shape)

    def broadcast(self, shape):
        """A shape that broadcasts with `shape`, and not beyond it."""
        other = [n if self.r.random() < .7 else 1 for n in shape]
        return other[self.int(0, len(other)):] if self.r.random() < .3 else other


class LargeMaker(Maker):
    """Shapes of about `numel` elements."""

    def __init__(self, seed, numel):
        super().__init__(seed)
        self.numel = numel

    def shape(self, low=0, high=4, most=5):
        rank = max(1, self.int(low, high))
        side = max(1, round(self.numel**(1 / rank)))
        if rank > 1 and self.r.random() < .5:  # a short last dimension
            last = max(1, min(side, self.pick([2, 3, 7, 16])))
            side = max(1, round((self.numel / last)**(1 / (rank - 1))))
            return [side] * (rank - 1) + [last]
        return [side] * rank


# ---- The ops: name -> (dtypes, maker of (operands, arguments), PyTorch's function)

OPS = {}


def op(name, dtypes, make, call, second=True):
    OPS[name] = (dtypes, make, call, second)


def unary(name, call, low=-3, high=3, dtypes=FLOATS, edges=(), second=True):
    def make(m, dtype):
        x = m.uniform(m.shape(), dtype, low, high) if dtype.is_floating_point else m.numbers(m.shape(), dtype)
        return [m.with_edges(x, edges) if edges and dtype.is_floating_point else x], {}
    op(name, dtypes, make, lambda x, a: call(x[0]), second)


def binary(name, call, dtypes=FLOATS, operands=None, second=True, edges=()):
    def make(m, dtype):
        shape = m.shape()
        pair = operands or (lambda m, shape, dtype: (m.numbers(shape, dtype), m.numbers(m.broadcast(shape), dtype)))
        a, b = pair(m, shape, dtype)
        if edges and dtype.is_floating_point:
            a, b = m.with_edges(a, edges), m.with_edges(b, edges)
        return ([a, b] if m.r.random() < .5 or operands else [b, a]), {}
    op(name, dtypes, make, lambda x, a: call(x[0], x[1]), second)


def along(name, call, dtypes=FLOATS, low=0, second=True, distinct=False, more=None):
    """call(x, dim, args); the dimension counts from either end."""
    def make(m, dtype):
        shape = m.shape(low, 2 if distinct and dtype not in WIDE + INTEGERS[:2] else 4)
        x = m.numbers(shape, dtype)
        if distinct:
            n = x.numel()
            x = (torch.randperm(n, generator=m.g) - n // 2).to(dtype).reshape(shape)
        rank = max(1, len(shape))
        args = {"dim": m.int(-rank, rank - 1)}
        args.update(more(m, x, args) if more else {})
        return [x], args
    op(name, dtypes, make, lambda x, a: call(x[0], a["dim"], a), second)


NAN, INF = math.nan, math.inf
# PyTorch's derivatives of asin and acos lose digits near 1.
for name, low, high in (("asin", -.95, .95), ("acos", -.95, .95), ("atan", -9, 9), ("sinh", -4, 4), ("cosh", -4, 4),
                        ("asinh", -9, 9), ("acosh", 1.1, 9), ("atanh", -.95, .95)):
    unary(name, getattr(torch, name), low, high)
unary("erfinv", torch.erfinv, -.95, .95)
unary("lgamma", torch.lgamma, .2, 9)
unary("digamma", torch.digamma, .2, 9)
op("polygamma", WIDE, lambda m, t: ([m.uniform(m.shape(), t, .3, 9)], {"n": m.int(0, 3)}),
   lambda x, a: torch.polygamma(a["n"], x[0]), second=False)
unary("mish", F.mish)
unary("hardswish", F.hardswish)
unary("hardsigmoid", F.hardsigmoid, -5, 5)
unary("relu6", F.relu6, -3, 9)
unary("selu", F.selu)
unary("softsign", F.softsign)
unary("relu", F.relu, edges=(NAN, INF, -INF))
unary("abs", torch.abs, edges=(NAN, INF, -INF, 0))
unary("sign", torch.sign, edges=(NAN, INF, -INF, 0))
unary("exp2", torch.exp2, -10, 10, edges=(NAN, INF, -INF))
unary("erfc", torch.erfc, -4, 6, edges=(NAN, INF, -INF))
# Near 1/2, where it is 0, both sides have the errors of numbers near 0.7.
op("logit", FLOATS, lambda m, t: ([m.uniform(m.shape(), t, *m.pick([(.02, .4), (.6, .98)]))],
                                  m.pick([{}, {"eps": .125}])),
   lambda x, a: torch.logit(x[0], a.get("eps")))
unary("bitwise_not", torch.bitwise_not, dtypes=INTEGERS + [torch.bool])
op("celu", FLOATS, lambda m, t: ([m.normal(m.shape(), t, 2)], {"alpha": m.pick([.5, 1, 2])}),
   lambda x, a: F.celu(x[0], a["alpha"]))
op("hardtanh", FLOATS, lambda m, t: ([m.normal(m.shape(), t, 2)], {"low": m.pick([-2, -.5]), "high": m.pick([.5, 2])}),
   lambda x, a: F.hardtanh(x[0], a["low"], a["high"]))


def lstm_step(x, a):
    i, f, g, o = x[0].chunk(4, -1)
    c = f.sigmoid() * x[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def lstm_case(m, t):
    shape = m.shape(1, 3)
    return [m.normal(shape[:-1] + [4 * shape[-1]], t, 2), m.normal(shape, t)], {}


op("lstm_cell", FLOATS, lstm_case, lstm_step)


def lstm_layer_case(m, t):
    steps, n, features, hidden = m.int(1, 4), m.int(0, 3), m.int(1, 3), m.int(1, 3)
    x = [m.normal(shape, t) for shape in ([steps, n, features], [n, hidden], [n, hidden], [4 * hidden, features],
                                          [4 * hidden, hidden])]
    return x + ([m.normal([4 * hidden], t)] if m.int(0, 1) else []), {"reverse": m.int(0, 1)}


def lstm_layer(x, a):
    h, c, y = x[1], x[2], [None] * len(x[0])
    for i in reversed(range(len(y))) if a["reverse"] else range(len(y)):
        gates = x[0][i] @ x[3].mT + h @ x[4].mT
        h, c = lstm_step([gates + x[5] if len(x) > 5 else gates, c], a)
        y[i] = h
    return torch.stack(y), c


op("lstm_layer", WIDE, lstm_layer_case, lstm_layer)
op("glu", FLOATS, lambda m, t: ([m.normal(m.shape(0, 3) + [2 * m.int(1, 3)], t)], {}), lambda x, a: F.glu(x[0], -1))


def prelu_case(m, t):
    shape = m.shape(2, 4)
    return [m.normal(shape, t), m.normal([m.pick([1, shape[1]])], t, .3)], {}


op("prelu", FLOATS, prelu_case, lambda x, a: F.prelu(*x))

ALL = FLOATS + INTEGERS
MOVED = ALL + [torch.int8, torch.int16]


def quotient(m, shape, t):
    b = m.numbers(m.broadcast(shape), t)
    return m.numbers(shape, t), torch.where(b == 0, torch.ones_like(b), b)


for name in ("floor_divide", "fmod", "remainder"):
    binary(name, getattr(torch, name), ALL, quotient, second=False)
binary("pow", torch.pow, ALL, lambda m, shape, t: (
    (m.uniform(shape, t, .1, 3), m.uniform(m.broadcast(shape), t, -3, 3)) if t.is_floating_point else
    (m.numbers(shape, t), m.integers(m.broadcast(shape), t, 0, 6))))
binary("maximum", torch.maximum, ALL, edges=(NAN, INF, -INF))
binary("minimum", torch.minimum, ALL, edges=(NAN, INF, -INF))
for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    binary(name, getattr(torch, name), INTEGERS + [torch.bool])
for name in ("bitwise_left_shift", "bitwise_right_shift"):
    binary(name, getattr(torch, name), INTEGERS, lambda m, shape, t: (m.numbers(shape, t),
                                                                       m.integers(m.broadcast(shape), t, 0, 7)))
binary("logaddexp", torch.logaddexp, FLOATS)
binary("logaddexp2", torch.logaddexp2, FLOATS)
binary("hypot", torch.hypot, FLOATS)
binary("xlogy", torch.xlogy, FLOATS, lambda m, shape, t: (m.normal(shape, t), m.uniform(m.broadcast(shape), t, .1, 4)))
binary("copysign", torch.copysign, FLOATS)
binary("heaviside", torch.heaviside, ALL, second=False)
for name, call in (("floor_divide_number", torch.floor_divide), ("fmod_number", torch.fmod), ("pow_number", torch.pow)):
    op(name, ALL if name != "pow_number" else WIDE + INTEGERS,
       lambda m, t: ([m.numbers(m.shape(), t)], {"b": m.pick([1, 2, 3])}),
       lambda x, a, call=call: call(x[0], a["b"]), second=name == "pow_number")


for name, call in (("floor_divide", torch.floor_divide), ("fmod", torch.fmod), ("remainder", torch.remainder)):
    op(f"number_{name}", ALL,
       lambda m, t: ([quotient(m, m.shape(), t)[1]], {"b": m.int(-7 if t != torch.uint8 else 0, 7)}),
       lambda x, a, call=call: call(torch.full([], a["b"], dtype=x[0].dtype), x[0]), second=False)
op("number_pow", WIDE + INTEGERS,
   lambda m, t: ([m.uniform(m.shape(), t, -3, 3) if t.is_floating_point else m.integers(m.shape(), t, 0, 6)],
                 {"b": m.pick([0, 1, 2, 3])}),
   lambda x, a: torch.pow(a["b"], x[0]))
op("max_all", ALL, lambda m, t: ([m.numbers(m.shape(), t)], {}), lambda x, a: torch.max(x[0]), second=False)
op("min_all", ALL, lambda m, t: ([m.numbers(m.shape(), t)], {}), lambda x, a: torch.min(x[0]), second=False)
binary("max_pair", torch.max, ALL, edges=(NAN, INF, -INF))


def clamp_case(m, t):
    shape = m.shape()
    return [m.normal(shape, t, 2), m.normal(m.broadcast(shape), t, 1, -1), m.normal(m.broadcast(shape), t, 1, 1)], {}


op("clamp", FLOATS, clamp_case, lambda x, a: torch.clamp(*x))
unary("nan_to_num", torch.nan_to_num, edges=(NAN, INF, -INF), second=False)


def lerp_case(m, t):
    shape = m.shape()
    return [m.normal(shape, t), m.normal(shape, t), m.uniform(m.broadcast(shape), t, 0, 1)], {}


op("lerp", FLOATS, lerp_case, lambda x, a: torch.lerp(*x))

keep = lambda m, x, a: {"keep": m.int(0, 1)}


def dims_case(m, t):
    shape = m.shape()
    rank = max(1, len(shape))
    return [m.numbers(shape, t)], {"dims": m.r.sample(range(rank), m.int(1, rank)), "keep": m.int(0, 1)}


op("sum", ALL, dims_case, lambda x, a: torch.sum(x[0], a["dims"], keepdim=bool(a["keep"])))
op("nansum", FLOATS, lambda m, t: ([m.with_edges(m.normal(m.shape(1), t), [NAN])], {"dims": [0], "keep": m.int(0, 1)}),
   lambda x, a: torch.nansum(x[0], a["dims"], keepdim=bool(a["keep"])))
op("nanmean", FLOATS, lambda m, t: ([m.with_edges(m.normal(m.shape(1), t), [NAN])], {"dims": [0], "keep": m.int(0, 1)}),
   lambda x, a: torch.nanmean(x[0], a["dims"], keepdim=bool(a["keep"])))
op("count_nonzero", ALL, lambda m, t: ([m.with_edges(m.numbers(m.shape(1), t), [0])], {"dims": [-1]}),
   lambda x, a: torch.count_nonzero(x[0], a["dims"]))
op("var_mean", FLOATS, lambda m, t: ([m.normal(m.shape(1, 3, 6) + [4], t)], {"dims": [-1], "keep": m.int(0, 1)}),
   lambda x, a: torch.var_mean(x[0], a["dims"], keepdim=bool(a["keep"])))
along("aminmax", lambda x, d, a: tuple(torch.aminmax(x, dim=d, keepdim=bool(a["keep"]))), ALL, distinct=True, more=keep)
along("prod", lambda x, d, a: torch.prod(x, d, keepdim=bool(a["keep"])), ALL, more=keep)
along("cumsum", lambda x, d, a: torch.cumsum(x, d), ALL)
along("max", lambda x, d, a: tuple(torch.max(x, d, keepdim=bool(a["keep"]))), ALL, distinct=True, more=keep)
along("sort", lambda x, d, a: tuple(torch.sort(x, dim=d, stable=True)), ALL)
along("cumprod", lambda x, d, a: torch.cumprod(x, d), ALL)
along("logcumsumexp", lambda x, d, a: torch.logcumsumexp(x, d), FLOATS)
along("cummax", lambda x, d, a: tuple(torch.cummax(x, d)), ALL)
along("cummin", lambda x, d, a: tuple(torch.cummin(x, d)), ALL)
along("kthvalue", lambda x, d, a: tuple(torch.kthvalue(x, a["k"], d, keepdim=bool(a["keep"]))), ALL, distinct=True,
      more=lambda m, x, a: {"k": m.int(1, max(1, x.shape[a["dim"]] if x.ndim else 1)), "keep": m.int(0, 1)})
along("median", lambda x, d, a: tuple(torch.median(x, d, keepdim=bool(a["keep"]))), ALL, distinct=True, more=keep)
along("quantile", lambda x, d, a: torch.quantile(x, a["q"], d, keepdim=bool(a["keep"])), WIDE, distinct=True,
      more=lambda m, x, a: {"q": m.pick([0, .2, .5, .77, 1]), "keep": m.int(0, 1)})


def reading(m):
    return {"keep": m.int(0, 1), "between": m.pick(["linear", "lower", "higher", "midpoint", "nearest"])}


def quantiles(x, q, d, a):
    return torch.quantile(x, q, d, keepdim=bool(a["keep"]), interpolation=a["between"])


along("quantiles", lambda x, d, a: quantiles(x, torch.tensor(a["q"], dtype=x.dtype), d, a), WIDE, distinct=True,
      more=lambda m, x, a: {"q": [m.pick([0, .2, .5, .77, 1]) for _ in range(m.int(0, 4))], **reading(m)})


def quantiles_case(m, t):
    shape = m.shape(0, 3)
    n, rank = math.prod(shape), max(1, len(shape))
    x = (torch.randperm(n, generator=m.g) - n // 2).to(t).reshape(shape)
    q = m.uniform(m.pick([[], [1], [3], [0]]), t, 0, 1)
    return [x, torch.where(q > .8, q.round(), q)], {"dim": m.int(-rank, rank - 1), **reading(m)}


op("quantiles_of_a_tensor", WIDE, quantiles_case, lambda x, a: quantiles(x[0], x[1], a["dim"], a))


def search_case(m, t):
    n = m.int(1, 6)
    return [torch.sort(m.numbers([n], t)).values, m.numbers(m.shape(), t)], {"right": m.int(0, 1)}


op("searchsorted", ALL, search_case, lambda x, a: torch.searchsorted(x[0], x[1], right=bool(a["right"])))
op("bucketize", ALL, lambda m, t: (search_case(m, t)[0][::-1], {"right": m.int(0, 1)}),
   lambda x, a: torch.bucketize(x[0], x[1], right=bool(a["right"])))
op("isin", INTEGERS + WIDE, lambda m, t: ([m.integers(m.shape(), t, 0, 6), m.integers([m.int(1, 4)], t, 0, 6)], {}),
   lambda x, a: torch.isin(*x))
op("histc", WIDE, lambda m, t: ([m.normal(m.shape(1), t)], {"bins": m.int(1, 9), "low": -2, "high": 2, "nograd": 1}),
   lambda x, a: torch.histc(x[0], a["bins"], a["low"], a["high"]))


def bincount_case(m, t):
    n = m.int(1, 9)
    return [m.integers([n], torch.int64, 0, 5), m.normal([n], t)], {"minlength": m.int(0, 8), "nograd": 1}


op("bincount", WIDE, bincount_case, lambda x, a: torch.bincount(x[0], x[1], a["minlength"]))


def index_case(m, t):
    shape = [m.int(1, 4) for _ in range(m.int(1, 4))]
    at = m.shape(0, 2, 3)
    n = m.int(1, len(shape))
    return [m.numbers(shape, t)] + [m.integers(m.broadcast(at), torch.int64, 0, shape[i]) for i in range(n)], {}


def index_put_case(m, t):
    x, _ = index_case(m, t)
    picked = x[0][tuple(x[1:])]
    accumulate = m.int(0, 1)
    if not accumulate:  # PyTorch leaves open which of equal places wins
        seen = torch.zeros(x[0].shape[:len(x) - 1]).index_put(tuple(x[1:]), torch.ones(()), accumulate=True)
        accumulate = int(bool((seen > 1).any()))
    return x + [m.numbers(list(picked.shape), t)], {"accumulate": accumulate}


op("index", MOVED, index_case, lambda x, a: x[0][tuple(x[1:])])
op("index_put", ALL, index_put_case,
   lambda x, a: torch.index_put(x[0], tuple(x[1:-1]), x[-1], accumulate=bool(a["accumulate"])))


def index_member_case(m, t):
    # A slice, positions, whole dimensions and a mask.
    shape = [m.int(2, 4), m.int(1, 4)] + [m.int(1, 3) for _ in range(m.int(0, 1))] + [m.int(1, 4)]
    mask = m.integers([shape[-1]], torch.bool, 0, 2)
    return [m.numbers(shape, t), m.integers([m.int(1, 2), max(1, int(mask.sum()))], torch.int64, 0, shape[1]), mask], {}


op("index_member", MOVED, index_member_case, lambda x, a: x[0][1:, x[1], ..., x[2]])
op("index_put_number", ALL, lambda m, t: (index_case(m, t)[0], {"b": m.int(0, 9)}),
   lambda x, a: torch.index_put(x[0], tuple(x[1:]), torch.full([], a["b"], dtype=x[0].dtype)))


def masked_scatter_case(m, t):
    shape = m.shape()
    mask = m.integers(shape, torch.bool, 0, 2)
    return [m.numbers(shape, t), mask, m.numbers([int(mask.sum()) + m.int(0, 2)], t)], {}


op("masked_scatter", MOVED, masked_scatter_case, lambda x, a: torch.masked_scatter(*x))


def scatter_reduce_case(m, t):
    shape = [m.int(1, 4) for _ in range(m.int(1, 3))]
    dim = m.int(0, len(shape) - 1)
    index = [m.int(1, n) for n in shape]
    index[dim] = m.int(1, 5)
    x = m.normal(shape, t) if t.is_floating_point else m.numbers(shape, t)
    return [x, m.integers(index, torch.int64, 0, shape[dim]), m.numbers(index, t)], {
        "dim": dim, "reduce": m.pick(["sum", "prod", "mean", "amax", "amin"]), "include_self": m.int(0, 1)}


op("scatter_reduce", WIDE, scatter_reduce_case, lambda x, a: torch.scatter_reduce(
    x[0], a["dim"], x[1], x[2], a["reduce"], include_self=bool(a["include_self"])), second=False)


def index_reduce_case(m, t):
    shape = [m.int(1, 4) for _ in range(m.int(1, 3))]
    dim = m.int(0, len(shape) - 1)
    source = list(shape)
    source[dim] = m.int(1, 5)
    return [m.normal(shape, t), m.integers([source[dim]], torch.int64, 0, shape[dim]), m.normal(source, t)], {
        "dim": dim, "reduce": m.pick(["prod", "mean", "amax", "amin"]), "include_self": m.int(0, 1)}


op("index_reduce", WIDE, index_reduce_case, lambda x, a: torch.index_reduce(
    x[0], a["dim"], x[1], x[2], a["reduce"], include_self=bool(a["include_self"])), second=False)


def index_copy_case(m, t):
    shape = [m.int(1, 5) for _ in range(m.int(1, 3))]
    dim = m.int(0, len(shape) - 1)
    n = m.int(0, shape[dim])
    source = list(shape)
    source[dim] = n
    return [m.numbers(shape, t), torch.randperm(shape[dim], generator=m.g)[:n], m.numbers(source, t)], {"dim": dim}


op("index_copy", MOVED, index_copy_case, lambda x, a: torch.index_copy(x[0], a["dim"], x[1], x[2]))


op("where_alone", MOVED + [torch.bool], lambda m, t: ([m.numbers(m.shape(1), t)], {"nograd": 1}),
   lambda x, a: torch.where(x[0]))


def roll_case(m, t):
    shape = m.shape(1, 3)
    n = m.int(0, len(shape))
    dims = [m.int(-len(shape), len(shape) - 1) for _ in range(n)]
    return [m.numbers(shape, t)], {"shifts": [m.int(-7, 7) for _ in range(max(1, n))], "dims": dims}


op("roll", MOVED, roll_case, lambda x, a: torch.roll(x[0], a["shifts"], a["dims"]))


def repeats_case(m, t):
    shape = m.shape(1, 3)
    dim = m.int(-len(shape), len(shape) - 1)
    return [m.numbers(shape, t), m.integers([shape[dim]], torch.int64, 0, 4)], {"dim": dim}


op("repeat_interleave", MOVED, repeats_case, lambda x, a: torch.repeat_interleave(x[0], x[1], a["dim"]))


def product_case(batch):
    def make(m, t):
        lead = [m.int(0, 3)] if batch else []
        rows, depth, cols = m.int(1, 4), m.int(1, 4), m.int(1, 4)
        return [m.normal(lead + [rows, depth], t), m.normal(lead + [depth, cols], t)], {}
    return make


op("mm", WIDE, product_case(False), lambda x, a: torch.mm(*x))
op("bmm", WIDE, product_case(True), lambda x, a: torch.bmm(*x))


def stack_case(m, t):
    shape = [m.int(1, 4) for _ in range(m.int(0, 3))]
    return [m.numbers(shape, t) for _ in range(m.int(1, 3))], {}


op("hstack", MOVED, stack_case, lambda x, a: torch.hstack(x))
op("vstack", MOVED, stack_case, lambda x, a: torch.vstack(x))


def unflatten_case(m, t):
    sizes = [m.int(1, 3) for _ in range(m.int(1, 3))]
    shape = m.shape(0, 2) + [math.prod(sizes)] + m.shape(0, 1)
    dim = next(i for i, n in enumerate(shape) if n == math.prod(sizes))
    if m.int(0, 1):
        sizes[m.int(0, len(sizes) - 1)] = -1
    return [m.numbers(shape, t)], {"dim": dim, "sizes": sizes}


op("unflatten", MOVED, unflatten_case, lambda x, a: torch.unflatten(x[0], a["dim"], a["sizes"]))


def repeating_case(m, t):
    return [m.integers(m.shape(), t, 0 if t == torch.uint8 else -2, 4)], {"nograd": 1}


op("unique", ALL + [torch.bool], repeating_case,
   lambda x, a: torch.unique(x[0], return_inverse=True, return_counts=True))
op("unique_consecutive", ALL + [torch.bool], repeating_case,
   lambda x, a: torch.unique_consecutive(x[0], return_inverse=True, return_counts=True))


def repeating_slices_case(m, t):
    x = m.integers(m.shape(1, 3, 12), t, 0 if t in (torch.uint8, torch.bool) else -1, 2)
    return [x], {"dim": m.int(-x.ndim, x.ndim - 1), "nograd": 1}


op("unique_slices", MOVED + [torch.bool], repeating_slices_case,
   lambda x, a: torch.unique(x[0], return_inverse=True, return_counts=True, dim=a["dim"]))
op("unique_consecutive_slices", MOVED + [torch.bool], repeating_slices_case,
   lambda x, a: torch.unique_consecutive(x[0], return_inverse=True, return_counts=True, dim=a["dim"]))


def take_case(m, t):
    x = m.numbers([m.int(1, 4) for _ in range(m.int(1, 3))], t)
    return [x, m.integers(m.shape(), torch.int64, 0, x.numel())], {}


op("take", MOVED, take_case, lambda x, a: torch.take(*x))


def take_along_case(m, t):
    shape = [m.int(1, 4) for _ in range(m.int(1, 3))]
    dim = m.int(0, len(shape) - 1)
    index = [n if m.r.random() < .6 else 1 for n in shape]
    index[dim] = m.int(1, 5)
    return [m.numbers(shape, t), m.integers(index, torch.int64, 0, shape[dim])], {"dim": dim}


op("take_along_dim", MOVED, take_along_case, lambda x, a: torch.take_along_dim(x[0], x[1], a["dim"]))
op("diff", ALL, lambda m, t: ([m.numbers(m.shape(0, 2) + [4], t)], {"n": m.int(0, 3)}),
   lambda x, a: torch.diff(x[0], a["n"]))


def repeat_case(m, t):
    shape = m.shape(0, 3)
    return [m.numbers(shape, t)], {"times": [m.int(1, 3) for _ in range(max(1, len(shape) + m.int(0, 1)))]}


op("repeat", MOVED, repeat_case, lambda x, a: x[0].repeat(a["times"]))
op("tile", MOVED, repeat_case, lambda x, a: torch.tile(x[0], a["times"]))
op("diag", ALL, lambda m, t: ([m.numbers(m.shape(1, 2), t)], {"offset": m.int(0, 1)}),
   lambda x, a: torch.diag(x[0], a["offset"]))
op("trace", ALL, lambda m, t: ([m.numbers(m.shape(2, 2), t)], {}), lambda x, a: torch.trace(x[0]))
op("diag_embed", ALL, lambda m, t: ([m.numbers(m.shape(1, 3), t)], {"offset": m.int(-2, 2)}),
   lambda x, a: torch.diag_embed(x[0], a["offset"]))
op("kron", WIDE, lambda m, t: ([m.numbers(m.shape(0, 2, 3), t), m.numbers(m.shape(0, 2, 3), t)], {}),
   lambda x, a: torch.kron(*x))


def cross_case(m, t):
    shape = m.shape(0, 2) + [3]
    return [m.normal(shape, t), m.normal(shape, t)], {}


op("cross", FLOATS, cross_case, lambda x, a: torch.linalg.cross(*x))


def square_case(m, t, symmetric=False, columns=None):
    """Far from singular, with eigenvalues and singular values apart."""
    n, front = m.int(1, 6), m.shape(0, 2, 3)
    a = m.uniform(front + [n, n], t, -.4, .4)
    a = (a + a.mT if symmetric else a) + torch.diag(torch.arange(n) * 3. + 4).to(t)
    if columns is None:
        return [a], {}
    kept = front if m.r.random() < .5 else front[m.int(0, len(front)):]
    return [a, m.normal(kept + [n, columns], t)], {}


def triangular_case(m, t):
    (a, b), _ = square_case(m, t, columns=m.int(1, 4))
    form = {name: m.int(0, 1) for name in ("upper", "left", "unitriangular")}
    return [a, b if form["left"] else b.mT.contiguous()], form


op("solve", WIDE, lambda m, t: square_case(m, t, columns=m.int(1, 4)), lambda x, a: torch.linalg.solve(*x))
op("solve_triangular", WIDE, triangular_case,
   lambda x, a: torch.linalg.solve_triangular(*x, **{name: bool(on) for name, on in a.items()}))
op("inv", WIDE, square_case, lambda x, a: torch.linalg.inv(x[0]))
op("det", WIDE, square_case, lambda x, a: torch.linalg.det(x[0]))
op("slogdet", WIDE, square_case, lambda x, a: torch.linalg.slogdet(x[0]))
op("cholesky", WIDE, lambda m, t: square_case(m, t, symmetric=True), lambda x, a: torch.linalg.cholesky(x[0]))
op("qr", WIDE, square_case, lambda x, a: torch.linalg.qr(x[0]).R)
op("eigh", WIDE, lambda m, t: square_case(m, t, symmetric=True), lambda x, a: torch.linalg.eigh(x[0]).eigenvalues)
op("svd", WIDE, square_case, lambda x, a: torch.linalg.svd(x[0], full_matrices=False).S)


def tall_case(m, t, wide=False):
    """The case of square_case with rows more, or columns."""
    (a,), _ = square_case(m, t)
    more = m.uniform(list(a.shape[:-2]) + [m.int(0, 2), a.shape[-1]], t, -.4, .4)
    a = torch.cat([a, more], -2)
    return [a.mT.contiguous() if wide and m.int(0, 1) else a], {}


def least_squares_case(m, t):
    (a,), _ = tall_case(m, t)
    return [a, m.normal(list(a.shape[:-1]) + [m.int(1, 3)], t)], {}


op("pinv", WIDE, lambda m, t: tall_case(m, t, wide=True), lambda x, a: torch.linalg.pinv(x[0]))
op("lstsq", WIDE, least_squares_case, lambda x, a: torch.linalg.lstsq(*x).solution)


def eigh_vectors(x, a):
    w, v = torch.linalg.eigh((x[0] + x[0].mT) / 2)
    return v / w.unsqueeze(-2) @ v.mT


def svd_vectors(x, a):
    u, s, vh = torch.linalg.svd(x[0], full_matrices=False)
    return u * s.square().unsqueeze(-2) @ vh


op("qr_q", WIDE, tall_case, lambda x, a: torch.linalg.qr(x[0]).Q)
op("eigh_vectors", WIDE, lambda m, t: square_case(m, t, symmetric=True), eigh_vectors)
op("svd_vectors", WIDE, lambda m, t: tall_case(m, t, wide=True), svd_vectors)


def tensordot_case(m, t):
    shared = [m.int(1, 3) for _ in range(m.int(0, 2))]
    return [m.normal(m.shape(0, 2, 3) + shared, t), m.normal(shared + m.shape(0, 2, 3), t)], {"dims": len(shared)}


op("tensordot", WIDE, tensordot_case, lambda x, a: torch.tensordot(x[0], x[1], a["dims"]))
op("rot90", MOVED, lambda m, t: ([m.numbers(m.shape(2, 4), t)], {"times": m.int(-3, 5)}),
   lambda x, a: torch.rot90(x[0], a["times"]))


def movedim_case(m, t):
    shape = m.shape(1, 4)
    n = m.int(1, len(shape))
    return [m.numbers(shape, t)], {"from": m.r.sample(range(len(shape)), n), "to": m.r.sample(range(len(shape)), n)}


op("movedim", MOVED, movedim_case, lambda x, a: torch.movedim(x[0], a["from"], a["to"]))
op("meshgrid", MOVED, lambda m, t: ([m.numbers([m.int(1, 4)], t) for _ in range(m.int(1, 3))], {}),
   lambda x, a: torch.meshgrid(*x, indexing="ij"))

# Floats become integers of all dtypes only where both hold the value: PyTorch leaves the others open.
LEVIN_NAMES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
               torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.bool: "bool", torch.int8: "i8",
               torch.int16: "i16"}
CASTS = {name: dtype for dtype, name in LEVIN_NAMES.items()}


def cast_case(m, t):
    to = m.pick(sorted(CASTS))
    shape = m.shape()
    if t.is_floating_point:
        low = 0 if CASTS[to] == torch.uint8 else -100
        x = m.normal(shape, t, 9) if CASTS[to].is_floating_point else m.uniform(shape, t, low, 100)
    else:
        x = m.integers(shape, torch.int64, -2**40, 2**40).to(t)
    return [x], {"to": to, "nograd": 1}


op("cast", MOVED + [torch.bool], cast_case, lambda x, a: x[0].to(CASTS[a["to"]]))
binary("eq", torch.eq, MOVED + [torch.bool])
binary("lt", torch.lt, MOVED + [torch.bool], edges=(NAN, INF, -INF))
op("where", MOVED + [torch.bool], lambda m, t: (lambda s: ([m.numbers(m.broadcast(s), torch.bool), m.numbers(s, t),
                                                            m.numbers(m.broadcast(s), t)], {}))(m.shape()),
   lambda x, a: torch.where(*x))


op("where_left", ALL, lambda m, t: (lambda s: ([m.numbers(m.broadcast(s), torch.bool), m.numbers(s, t)],
                                              {"b": m.int(0, 9)}))(m.shape()),
   lambda x, a: torch.where(x[0], torch.full([], a["b"], dtype=x[1].dtype), x[1]))
op("where_right", ALL, lambda m, t: (lambda s: ([m.numbers(m.broadcast(s), torch.bool), m.numbers(s, t)],
                                               {"b": m.int(0, 9)}))(m.shape()),
   lambda x, a: torch.where(x[0], x[1], torch.full([], a["b"], dtype=x[1].dtype)))


def close_case(m, t):
    shape = m.shape()
    a = m.numbers(shape, t)
    b = torch.where(m.integers(shape, torch.bool, 0, 2), a, a + 1)
    return [m.with_edges(x, [NAN, INF, -INF]) for x in (a, b)], {"nograd": 1}


op("isclose", WIDE, close_case, lambda x, a: torch.isclose(*x))


def close_nan_case(m, t):
    (a, b), args = close_case(m, t)
    b = torch.where(m.integers(list(a.shape), torch.bool, 0, 4), a, b)
    return [a, a.clone() if m.int(0, 2) == 0 else b], {"rtol": m.pick([0, .2]), "atol": m.pick([1e-8, .5]), **args}


def close_nan(x, a):
    near = {"rtol": a["rtol"], "atol": a["atol"], "equal_nan": True}
    return torch.isclose(*x, **near), torch.tensor(torch.allclose(*x, **near))


op("isclose_equal_nan", WIDE, close_nan_case, close_nan)


def renorm_case(m, t):
    rows, cols = m.int(1, 6), m.int(1, 40)
    return ([m.normal([rows, cols], t), m.integers(m.shape(1, 2), torch.int64, 0, rows)],
            {"max_norm": m.pick([.5, 2.0, 9.0]), "p": m.pick([1.0, 2.0, 3.0, INF]), "nograd": 1})


def renorm(x, a):
    w = x[0].clone()
    return torch.embedding_renorm_(w, x[1].contiguous(), a["max_norm"], a["p"])


op("embedding_renorm", FLOATS, renorm_case, renorm)


def bag_case(m, t):
    rows, columns, bags = m.int(1, 6), m.int(1, 5), m.int(1, 4)
    mode = m.pick(["sum", "mean", "max"])
    # Equal elements of two rows share no gradient: those of max differ.
    weight = m.normal([rows, columns], t) if mode != "max" else (
        torch.randperm(rows * columns, generator=m.g) / 16).to(t).reshape(rows, columns)
    args, x = {"mode": mode}, [weight]
    if m.int(0, 1):
        shape = [m.int(1, 9)]
        starts = sorted(m.int(0, shape[0]) for _ in range(bags - 1))
        args.update(offsets=1, include_last_offset=m.int(0, 1))
        x.append(torch.tensor([0] + starts + ([shape[0]] if args["include_last_offset"] else [])))
    else:
        shape = [bags, m.int(1, 4)]
    x.append(m.integers(shape, torch.int64, 0, rows))
    if m.int(0, 1):
        args["padding_idx"] = m.int(-rows, rows - 1)
    if mode == "sum" and m.int(0, 1):
        args["weighted"] = 1
        x.append(m.normal(shape, t))
    return x, args


def bag(x, a):
    offsets = x[1] if a.get("offsets") else None
    return F.embedding_bag(x[2] if a.get("offsets") else x[1], x[0], offsets, mode=a["mode"],
                           per_sample_weights=x[-1] if a.get("weighted") else None,
                           include_last_offset=bool(a.get("include_last_offset")), padding_idx=a.get("padding_idx"))


op("embedding_bag", FLOATS, bag_case, bag)


def signs(m, shape, t):
    return (2 * m.integers(shape, torch.int64, 0, 2) - 1).to(t)


def vectors(m, shape, t):
    """Not near 0, where gradients of norms are differences of large numbers."""
    return m.uniform(shape, t, .5, 2) * signs(m, shape, t)


op("normalize", FLOATS, lambda m, t: ([vectors(m, m.shape(2, 4), t)], {"p": m.pick([1, 2, 3])}),
   lambda x, a: F.normalize(x[0], a["p"]))


def pair_case(m, t):
    shape = m.shape(2, 3)
    return [vectors(m, shape, t), vectors(m, shape, t)], {}


op("cosine_similarity", FLOATS, pair_case, lambda x, a: F.cosine_similarity(*x))
op("pairwise_distance", FLOATS, lambda m, t: (pair_case(m, t)[0], {"p": m.pick([1, 2, 3])}),
   lambda x, a: F.pairwise_distance(x[0], x[1], a["p"]))


def cdist_case(m, t):
    batch, length, n = m.int(0, 1), m.int(0, 5), [m.int(1, 5), m.int(1, 4)]
    left, right = ([2, 1], [3]) if batch else ([], [])
    return [m.normal(left + [n[0], length], t), m.normal(right + [n[1], length], t)], {
        "p": m.pick([0.0, .5, 1.0, 2.0, 3.0, math.inf])}


op("cdist", WIDE, cdist_case, lambda x, a: torch.cdist(x[0], x[1], a["p"], "donot_use_mm_for_euclid_dist"))
# PyTorch 2.13 ends the process at the second derivative of pdist.
op("pdist", [torch.float32], lambda m, t: ([m.normal([m.int(2, 5), m.int(1, 4)], t)],
                                           {"p": m.pick([0.0, 1.0, 2.0, 3.0, math.inf])}),
   lambda x, a: F.pdist(x[0], a["p"]))
REDUCTIONS = ["none", "sum", "mean"]


def bce_case(m, t):
    shape = m.shape()
    return [m.uniform(shape, t, .05, .95), m.uniform(shape, t, 0, 1)], {"reduction": m.pick(REDUCTIONS)}


op("binary_cross_entropy", FLOATS, bce_case, lambda x, a: F.binary_cross_entropy(*x, reduction=a["reduction"]))


def soft_case(m, t):
    shape = [m.int(1, 4), m.int(1, 5)] + m.shape(0, 1)
    return [m.normal(shape, t), torch.softmax(m.normal(shape, torch.float64), 1).to(t)], {
        "reduction": m.pick(REDUCTIONS), "smoothing": m.pick([0, .1])}


op("cross_entropy", FLOATS, soft_case,
   lambda x, a: F.cross_entropy(*x, reduction=a["reduction"], label_smoothing=a["smoothing"]))


def embedding_case(m, t):
    n, d = m.int(1, 4), m.int(1, 5)
    return [vectors(m, [n, d], t), vectors(m, [n, d], t), signs(m, [n], t)], {"margin": .2,
                                                                       "reduction": m.pick(REDUCTIONS)}


op("cosine_embedding_loss", WIDE, embedding_case, lambda x, a: F.cosine_embedding_loss(
    x[0], x[1], x[2].detach(), margin=a["margin"], reduction=a["reduction"]))


def ranking_case(m, t):
    n = m.int(1, 6)
    return [m.normal([n], t), m.normal([n], t), signs(m, [n], t)], {"margin": .2, "reduction": m.pick(REDUCTIONS)}


op("margin_ranking_loss", FLOATS, ranking_case,
   lambda x, a: F.margin_ranking_loss(*x, margin=a["margin"], reduction=a["reduction"]))
op("hinge_embedding_loss", FLOATS, lambda m, t: (ranking_case(m, t)[0][1:], {"reduction": m.pick(REDUCTIONS)}),
   lambda x, a: F.hinge_embedding_loss(*x, reduction=a["reduction"]))
op("soft_margin_loss", FLOATS, lambda m, t: (ranking_case(m, t)[0][1:], {"reduction": m.pick(REDUCTIONS)}),
   lambda x, a: F.soft_margin_loss(*x, reduction=a["reduction"]))


def two_like(m, t):
    shape = m.shape()
    return [m.normal(shape, t), m.normal(shape, t)]


op("huber_loss", FLOATS, lambda m, t: (two_like(m, t), {"delta": m.pick([.5, 1.0]), "reduction": m.pick(REDUCTIONS)}),
   lambda x, a: F.huber_loss(*x, delta=a["delta"], reduction=a["reduction"]))
op("smooth_l1_loss", FLOATS,
   lambda m, t: (two_like(m, t), {"beta": m.pick([0.0, .5, 1.0]), "reduction": m.pick(REDUCTIONS)}),
   lambda x, a: F.smooth_l1_loss(*x, beta=a["beta"], reduction=a["reduction"]))


def kl_div_case(m, t):
    shape = m.shape(1, 3)
    target = torch.log_softmax(m.normal(shape, torch.float64), -1)
    args = {"log_target": m.int(0, 1), "reduction": m.pick(REDUCTIONS + ["batchmean"])}
    return [torch.log_softmax(m.normal(shape, torch.float64), -1).to(t),
            (target if args["log_target"] else target.exp()).to(t)], args


op("kl_div", WIDE, kl_div_case,
   lambda x, a: F.kl_div(*x, reduction=a["reduction"], log_target=bool(a["log_target"])))


def poisson_case(m, t):
    shape = m.shape()
    args = {"log_input": m.int(0, 1), "full": m.int(0, 1), "eps": m.pick([1e-8, .5]), "reduction": m.pick(REDUCTIONS)}
    x = m.normal(shape, t) if args["log_input"] else m.uniform(shape, t, .1, 4)
    return [x, m.uniform(shape, t, .1, 5)], args


op("poisson_nll_loss", FLOATS, poisson_case, lambda x, a: F.poisson_nll_loss(
    *x, log_input=bool(a["log_input"]), full=bool(a["full"]), eps=a["eps"], reduction=a["reduction"]))


def gaussian_case(m, t):
    shape = m.shape(1)
    own = shape[:-1] + [1] if m.int(0, 1) else shape
    return [m.normal(shape, t), m.normal(shape, t), m.uniform(own, t, .1, 3)], {
        "full": m.int(0, 1), "reduction": m.pick(REDUCTIONS)}


op("gaussian_nll_loss", FLOATS, gaussian_case,
   lambda x, a: F.gaussian_nll_loss(*x, full=bool(a["full"]), reduction=a["reduction"]))


def triplet_case(m, t):
    shape = m.shape(2, 3)
    return [vectors(m, shape, t) for _ in range(3)], {
        "margin": m.pick([.5, 1.0, 4.0]), "p": m.pick([1.0, 2.0, 3.0]), "swap": m.int(0, 1),
        "reduction": m.pick(REDUCTIONS)}


op("triplet_margin_loss", FLOATS, triplet_case, lambda x, a: F.triplet_margin_loss(
    *x, margin=a["margin"], p=a["p"], swap=bool(a["swap"]), reduction=a["reduction"]))


def classes_case(m, t):
    c, front = m.int(1, 5), [m.int(1, 4)] if m.int(0, 2) else []
    weight = [m.uniform([c], t, .2, 2)] if m.int(0, 1) else []
    return [m.normal(front + [c], t), m.integers(front, torch.int64, 0, c), *weight], {
        "p": m.int(1, 2), "margin": m.pick([.5, 1.0]), "reduction": m.pick(REDUCTIONS)}


op("multi_margin_loss", FLOATS, classes_case, lambda x, a: F.multi_margin_loss(
    x[0], x[1], a["p"], a["margin"], x[2].detach() if len(x) > 2 else None, reduction=a["reduction"]))


def labels_case(m, t):
    """Some classes, then a negative number, then what does not count."""
    n, c = m.int(1, 4), m.int(1, 5)
    target = torch.stack([torch.randperm(c, generator=m.g) for _ in range(n)])
    for row in target:
        if (k := m.int(0, c)) < c:
            row[k] = -1
    rows = slice(None) if m.int(0, 2) else 0
    return [m.normal([n, c], t)[rows], target[rows].contiguous()], {"reduction": m.pick(REDUCTIONS)}


op("multilabel_margin_loss", FLOATS, labels_case,
   lambda x, a: F.multilabel_margin_loss(*x, reduction=a["reduction"]))


def soft_labels_case(m, t):
    shape = m.shape(1, 3)
    weight = [m.uniform(shape[-1:], t, .2, 2)] if m.int(0, 1) else []
    return [m.normal(shape, t), m.uniform(shape, t, 0, 1), *weight], {"reduction": m.pick(REDUCTIONS)}


op("multilabel_soft_margin_loss", FLOATS, soft_labels_case,
   lambda x, a: F.multilabel_soft_margin_loss(*x, reduction=a["reduction"]))


def ctc_case(m, t):
    steps, n, c, labels = m.int(4, 8), m.int(1, 3), m.int(2, 5), m.int(1, 3)
    lengths = torch.tensor([m.int(1, labels) for _ in range(n)])
    return [m.normal([steps, n, c], t), m.integers([n, labels], torch.int64, 1, c),
            torch.tensor([m.int(2 * labels - 1, steps) if 2 * labels - 1 <= steps else steps for _ in range(n)]),
            lengths], {"reduction": m.pick(REDUCTIONS), "zero_infinity": 1}


# PyTorch's gradient in log_probs is the one for logits, which takes a log_softmax in front for granted.
op("ctc_loss", WIDE, ctc_case, lambda x, a: F.ctc_loss(
    torch.log_softmax(x[0], -1), *x[1:], reduction=a["reduction"], zero_infinity=True), second=False)


def interpolate_case(m, t):
    dims = m.int(1, 3)
    modes = {1: ["nearest", "nearest-exact", "linear", "area"],
             2: ["nearest", "nearest-exact", "bilinear", "bicubic", "area"],
             3: ["nearest", "nearest-exact", "trilinear", "area"]}[dims]
    mode = m.pick(modes)
    args = {"mode": mode}
    if m.r.random() < .6:
        args["size"] = [m.int(1, 7) for _ in range(dims)]
    else:
        args["scale"] = m.pick([.5, 1.3, 2.0, 1.75])
    if mode in ("linear", "bilinear", "bicubic", "trilinear"):
        args["align_corners"] = m.int(0, 1)
    if mode in ("bilinear", "bicubic"):
        args["antialias"] = m.int(0, 1)
    return [m.normal([m.int(1, 2), m.int(1, 3)] + [m.int(2, 6) for _ in range(dims)], t)], args


def interpolate(x, a):
    return F.interpolate(x[0], size=a.get("size"), scale_factor=a.get("scale"), mode=a["mode"],
                         align_corners=bool(a["align_corners"]) if "align_corners" in a else None,
                         antialias=bool(a.get("antialias", 0)))


op("interpolate", WIDE, interpolate_case, interpolate)
op("pixel_shuffle", MOVED, lambda m, t: ([m.numbers([m.int(1, 2), 4 * m.int(1, 2), m.int(1, 3), 2], t)], {"factor": 2}),
   lambda x, a: F.pixel_shuffle(x[0], 2))
op("pixel_unshuffle", MOVED,
   lambda m, t: ([m.numbers([m.int(1, 2), m.int(1, 3), 2 * m.int(1, 3), 4], t)], {"factor": 2}),
   lambda x, a: F.pixel_unshuffle(x[0], 2))
op("channel_shuffle", FLOATS, lambda m, t: ([m.numbers([m.int(1, 2), 6, 2, 3], t)], {"groups": m.pick([1, 2, 3, 6])}),
   lambda x, a: torch.channel_shuffle(x[0], a["groups"]), second=False)
op("pad_circular", FLOATS, lambda m, t: ([m.numbers([2, 2, 4, 5], t)], {"pads": [m.int(0, 3) for _ in range(4)]}),
   lambda x, a: F.pad(x[0], a["pads"], mode="circular"))


def conv_case(rank, transposed):
    def make(m, t):
        groups = m.pick([1, 1, 2])
        c_in, c_out = groups * m.int(1, 2), groups * m.int(1, 2)
        kernel = [m.int(1, 3) for _ in range(rank)]
        stride = [m.int(1, 2) for _ in range(rank)]
        dilation = [m.int(1, 2) for _ in range(rank)]
        padding = [m.int(0, 1) for _ in range(rank)]
        size = [m.int(5, 7) for _ in range(rank)]
        args = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        w = [c_in, c_out // groups] if transposed else [c_out, c_in // groups]
        if transposed:
            args["output_padding"] = [m.int(0, max(stride[i], dilation[i]) - 1) for i in range(rank)]
        x = [m.normal([m.int(1, 2), c_in] + size, t), m.normal(w + kernel, t)]
        return x + ([m.normal([c_out], t)] if m.int(0, 1) else []), args
    return make


def conv(call):
    def run(x, a):
        bias = x[2] if len(x) > 2 else None
        return call(x[0], x[1], bias, **a)
    return run


op("conv3d", WIDE, conv_case(3, False), conv(F.conv3d))
op("conv_transpose1d", WIDE, conv_case(1, True), conv(F.conv_transpose1d))
op("conv_transpose3d", WIDE, conv_case(3, True), conv(F.conv_transpose3d))


def same_case(rank):
    def make(m, t):
        x, args = conv_case(rank, False)(m, t)
        return x, {"dilation": args["dilation"], "groups": args["groups"]}
    return make


for rank, call in ((1, F.conv1d), (2, F.conv2d), (3, F.conv3d)):
    op(f"conv{rank}d_same", WIDE, same_case(rank), conv(lambda *x, call=call, **a: call(*x, padding="same", **a)))


def pool_case(rank, ceil=True, largest=True):
    def make(m, t):
        kernel = [m.int(1, 3) for _ in range(rank)]
        dilation = [m.int(1, 3) if largest and m.int(0, 1) else 1 for _ in range(rank)]
        args = {"kernel": kernel, "padding": [m.int(0, k // 2) for k in kernel]}
        if largest:
            args["dilation"] = dilation
        if ceil:
            args["ceil_mode"] = m.int(0, 1)
        shape = [m.int(1, 2), m.int(1, 2)] + [m.int(max(4, (k - 1) * d + 1), 7) for k, d in zip(kernel, dilation)]
        n = math.prod(shape)
        return [(torch.randperm(n, generator=m.g) / 16).to(t).reshape(shape)], args
    return make


def pooled(call):
    return lambda x, a: call(x[0], a["kernel"], **{k: v for k, v in a.items() if k != "kernel"})


for rank in (1, 3):
    for kind in ("max", "avg"):
        call = getattr(F, f"{kind}_pool{rank}d")
        op(f"{kind}_pool{rank}d", WIDE, pool_case(rank, largest=kind == "max"), lambda x, a, call=call: pooled(call)(
            x, {**a, "ceil_mode": bool(a["ceil_mode"])}))
op("adaptive_avg_pool1d", WIDE, lambda m, t: ([m.normal([2, 2, m.int(3, 9)], t)], {"output": m.int(1, 4)}),
   lambda x, a: F.adaptive_avg_pool1d(x[0], a["output"]))
op("adaptive_max_pool1d", WIDE, lambda m, t: ([m.normal([2, 2, m.int(3, 9)], t)], {"output": m.int(1, 4)}),
   lambda x, a: F.adaptive_max_pool1d(x[0], a["output"]))
op("adaptive_avg_pool3d", WIDE, lambda m, t: ([m.normal([1, 2, 4, 5, 6], t)], {"output": [m.int(1, 3) for _ in "abc"]}),
   lambda x, a: F.adaptive_avg_pool3d(x[0], a["output"]))
op("adaptive_max_pool3d", WIDE, lambda m, t: ([m.normal([1, 2, 4, 5, 6], t)], {"output": [m.int(1, 3) for _ in "abc"]}),
   lambda x, a: F.adaptive_max_pool3d(x[0], a["output"]))
for rank in (2, 1, 3):
    op(f"max_pool{rank}d_with_indices", WIDE, pool_case(rank, ceil=False),
       pooled(getattr(F, f"max_pool{rank}d_with_indices")))


def unpool_case(rank):
    def make(m, t):
        size, kernel = [m.int(1, 4) for _ in range(rank)], [m.int(1, 3) for _ in range(rank)]
        padding = [m.int(0, 1) if min(n, k) > 1 else 0 for n, k in zip(size, kernel)]
        out = [(n - 1) * k - 2 * p + k for n, k, p in zip(size, kernel, padding)]
        shape = [m.int(1, 2), m.int(1, 2)] + size
        wrong = m.int(0, 9) == 0 or math.prod(size) > math.prod(out)
        places = [torch.randperm(max(math.prod(out), math.prod(size)), generator=m.g)[:math.prod(size)] + wrong * 10**6
                  for _ in range(shape[0] * shape[1])]
        return [m.normal(shape, t), torch.stack(places).reshape(shape)], {"kernel": kernel, "padding": padding}
    return make


for rank in (1, 2, 3):
    op(f"max_unpool{rank}d", WIDE, unpool_case(rank),
       lambda x, a, call=getattr(F, f"max_unpool{rank}d"): call(x[0], x[1], a["kernel"], padding=a["padding"]))


def grid_case(m, t):
    axes, n = m.int(2, 3), m.int(1, 2)
    x, grid = [n, m.int(1, 3)] + [m.int(1, 5) for _ in range(axes)], [n] + [m.int(1, 3) for _ in range(axes)] + [axes]
    return [m.normal(x, t), m.uniform(grid, t, -1.6, 1.6)], {
        "mode": m.pick(["bilinear", "nearest"]), "padding_mode": m.pick(["zeros", "border", "reflection"]),
        "align_corners": m.int(0, 1)}


def bicubic_case(m, t):
    """The points are multiples of 1/64: their pixels are exact in f32, and a cubic's weights lose no digits."""
    x, args = grid_case(m, t)
    while x[0].ndim != 4:
        x, args = grid_case(m, t)
    return [x[0], (x[1] * 64).round() / 64], dict(args, mode="bicubic")


def grid_sample(x, a):
    return F.grid_sample(x[0], x[1], a["mode"], a["padding_mode"], bool(a["align_corners"]))


op("grid_sample", WIDE, grid_case, grid_sample)
op("grid_sample_bicubic", WIDE, bicubic_case, grid_sample)


def affine_case(m, t):
    axes, n = m.int(2, 3), m.int(1, 2)
    return [m.normal([n, axes, axes + 1], t)], {"size": [n, 2] + [m.int(1, 4) for _ in range(axes)],
                                                "align_corners": m.int(0, 1)}


op("affine_grid", WIDE, affine_case,
   lambda x, a: F.affine_grid(x[0], a["size"], align_corners=bool(a["align_corners"])))
op("lp_pool2d", WIDE, lambda m, t: ([m.uniform([1, 2, 5, 6], t, .1, 2)], {"p": m.pick([1, 2, 3]), "kernel": [2, 3]}),
   lambda x, a: F.lp_pool2d(x[0], float(a["p"]), a["kernel"]))


def gqa_case(m, t):
    n, kv, d, length = m.int(1, 2), m.int(1, 2), 4, m.int(1, 5)
    heads = kv * m.int(1, 3)
    return [m.normal([n, heads, length, d], t), m.normal([n, kv, length, d], t), m.normal([n, kv, length, d], t)], {
        "causal": m.int(0, 1)}


op("attention_gqa", WIDE, gqa_case, lambda x, a: F.scaled_dot_product_attention(
    *x, is_causal=bool(a["causal"]), enable_gqa=True))


def attention_case(m, t):
    n, heads, length, others, d = m.int(1, 2), m.int(1, 2), m.int(1, 5), m.int(1, 5), m.int(1, 4)
    x = [m.normal([n, heads, length, d], t), m.normal([n, heads, others, d], t), m.normal([n, heads, others, 3], t)]
    args = {"causal": m.int(0, 1)}
    if m.int(0, 1):
        args["scale"] = m.pick([.5, 1.0])
    kind = m.pick(["none", "bool", "added"])
    if kind != "none":
        shape = m.pick([[length, others], [n, 1, length, others], [n, heads, 1, others]])
        mask = m.numbers(shape, torch.bool if kind == "bool" else t)
        if kind == "bool":
            mask[..., 0] = True  # a query that may see nothing gives 0, in PyTorch NaN
        x.append(mask)
    return x, args


def attention_weights(x, a):
    q, k, v = x[:3]
    scores = q @ k.mT * a.get("scale", q.shape[-1]**-.5)
    if a["causal"]:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -INF)
    if len(x) > 3:
        scores = scores.masked_fill(~x[3], -INF) if x[3].dtype == torch.bool else scores + x[3]
    share = scores.softmax(-1)
    return share @ v, share


op("attention_weights", WIDE, attention_case, attention_weights)


def rotary_case(m, t):
    half, length = m.int(1, 3), m.int(1, 5)
    shape = [m.int(1, 2), m.int(1, 3), length, 2 * half + m.int(0, 2)]
    positions = m.integers(m.pick([[length], [shape[0], 1, length]]), torch.int64, 0, 300)
    return [m.normal(shape, t), positions], {"base": m.pick([10000, 500]), "interleaved": m.int(0, 1),
                                             "rotated": 2 * half}


def rotary(x, a):
    n = a["rotated"]
    angle = x[1][..., None] * float(a["base"])**(-torch.arange(0, n, 2, dtype=torch.float64) / n)
    turned, kept = x[0][..., :n], x[0][..., n:]
    first, second = (turned[..., ::2], turned[..., 1::2]) if a["interleaved"] else turned.chunk(2, -1)
    pair = first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()
    turned = torch.stack(pair, -1).flatten(-2) if a["interleaved"] else torch.cat(pair, -1)
    return torch.cat([turned.to(kept.dtype), kept], -1)


op("rotary_embedding", FLOATS, rotary_case, rotary)

# ---- Distributions: parameters, then values, in f64 and f32, since densities of 16 bits round at each op

D = torch.distributions


def facts(make):
    """What a distribution gives beside its samples."""
    def run(x, a):
        d = make(*x[:-1])
        return d.log_prob(x[-1]), d.entropy(), d.mean, d.variance
    return run


def between(*bounds):
    """The first parameter and the values have one shape, other parameters broadcast to it."""
    def make(m, t):
        shape = m.shape(0, 3)
        shapes = [shape] + [m.broadcast(shape) for _ in bounds[2:]] + [shape]
        return [m.uniform(s, t, *b) for s, b in zip(shapes, bounds)], {}
    return make


def unchecked(make):
    return lambda *parameters, **named: make(*parameters, **named, validate_args=False)


def of_logits(make):
    return lambda l: unchecked(make)(logits=l)


LOC, SCALE, POSITIVE = (-1, 1), (.5, 2), (.2, 3)
# Sums of lgamma and digamma cancel less in f32 for such concentrations: entropies are not near 0.
LITTLE = (.2, .5)
for name, make, bounds in (
        ("normal", D.Normal, (LOC, SCALE, (-2, 2))), ("half_normal", D.HalfNormal, (SCALE, POSITIVE)),
        ("uniform", D.Uniform, ((-1, 0), (.5, 2), (.05, .45))), ("exponential", D.Exponential, (SCALE, POSITIVE)),
        ("laplace", D.Laplace, (LOC, SCALE, (-2, 2))), ("log_normal", D.LogNormal, (LOC, (.6, 1), (.5, 3))),
        ("gumbel", D.Gumbel, (LOC, SCALE, (-2, 2))), ("cauchy", D.Cauchy, (LOC, SCALE, (-2, 2)))):
    op(f"dist_{name}", WIDE, between(*bounds), facts(unchecked(make)))


def facts_apart(name, make, case, parameters_case):
    """The entropy is an op of its own: its gradient alone needs PyTorch's trigamma."""
    def run(x, a):
        d = make(*x[:-1])
        return d.log_prob(x[-1]), d.mean, d.variance
    op(f"dist_{name}", WIDE, case, run)
    op(f"entropy_{name}", WIDE, parameters_case, lambda x, a: make(*x).entropy())


for name, make, bounds, of_entropy in (
        ("gamma", D.Gamma, (POSITIVE, SCALE, POSITIVE), (POSITIVE, SCALE)),
        ("chi2", D.Chi2, (POSITIVE, POSITIVE), (POSITIVE,)),
        ("student_t", D.StudentT, ((.5, 5), LOC, SCALE, (-2, 2)), ((.5, 5), LOC, SCALE)),
        ("beta", D.Beta, (POSITIVE, POSITIVE, (.05, .95)), (LITTLE, LITTLE))):
    facts_apart(name, unchecked(make), between(*bounds), between(*of_entropy))


def counts_case(most):
    def make(m, t):
        shape = m.shape(0, 3)
        return [m.uniform(shape, t, -1.5, 1.5), m.integers(shape, t, 0, most + 1)], {}
    return make


op("dist_bernoulli", WIDE, counts_case(1), facts(of_logits(D.Bernoulli)))
op("dist_geometric", WIDE, counts_case(5), facts(of_logits(D.Geometric)))


def filled(m):
    """A shape without a 0: PyTorch's distributions of vectors refuse empty parameters."""
    return [max(1, n) for n in m.shape(0, 2)]


def categories_case(one_hot):
    def make(m, t):
        front, k = filled(m), m.int(2, 5)
        drawn = m.integers(front, torch.int64, 0, k)
        return [m.normal(front + [k], t), F.one_hot(drawn, k).to(t) if one_hot else drawn], {}
    return make


op("dist_categorical", WIDE, categories_case(False), facts(of_logits(D.Categorical)))
op("dist_one_hot_categorical", WIDE, categories_case(True), facts(of_logits(D.OneHotCategorical)))


def shares_case(m, t):
    shape = m.shape(0, 2) + [m.int(2, 4)]
    return [m.uniform(shape, t, .2, 1.5), torch.softmax(m.normal(shape, torch.float64), -1).to(t)], {}


facts_apart("dirichlet", unchecked(D.Dirichlet), shares_case,
            lambda m, t: ([m.uniform(m.shape(0, 2) + [m.int(2, 4)], t, *LITTLE)], {}))


def factors(m, front, n, t):
    """Their upper triangles are not read."""
    return m.uniform(front + [n, n], t, -.5, .5) + torch.diag(m.uniform([n], t, .7, 1.5))


def vectors_case(m, t):
    front, n = filled(m), m.int(1, 3)
    return [m.normal(front + [n], t), factors(m, m.pick([front, []]), n, t), m.normal(front + [n], t)], {}


def multivariate(loc, l):
    return D.MultivariateNormal(loc, scale_tril=l.tril(), validate_args=False)


op("dist_multivariate_normal", WIDE, vectors_case, facts(multivariate))


def divergence(make, count):
    return lambda x, a: D.kl_divergence(make(*x[:count]), make(*x[count:]))


def apart(of_p, of_q):
    """Bounds of p's and of q's parameters. Where p is near q terms cancel: the bounds of some do not meet."""
    def make(m, t):
        shape = m.shape(0, 3)
        return [m.uniform(s, t, *b) for s, of in ((shape, of_p), (m.broadcast(shape), of_q)) for b in of], {}
    return make


SMALL, LARGE = (.4, .8), (1.5, 2.5)
for name, make, of_p, of_q in (("normal", unchecked(D.Normal), (LOC, SCALE), (LOC, SCALE)),
                               ("beta", unchecked(D.Beta), (SMALL, SMALL), (LARGE, LARGE)),
                               ("gamma", unchecked(D.Gamma), (POSITIVE, SCALE), (POSITIVE, SCALE)),
                               ("geometric", of_logits(D.Geometric), ((-1, 0),), ((1, 2),))):
    op(f"kl_{name}", WIDE, apart(of_p, of_q), divergence(make, len(of_p)))


def two_rows_case(of_p, of_q):
    def make(m, t):
        shape = filled(m) + [m.int(2, 4)]
        return [m.uniform(shape, t, *of) for of in (of_p, of_q)], {}
    return make


# PyTorch's divergence of Bernoulli does not broadcast.
op("kl_bernoulli", WIDE, two_rows_case((-1.5, 1.5), (-1.5, 1.5)), divergence(of_logits(D.Bernoulli), 1))
op("kl_dirichlet", WIDE, two_rows_case(SMALL, LARGE), divergence(unchecked(D.Dirichlet), 1))
op("kl_categorical", WIDE, two_rows_case((-2, 2), (-2, 2)), divergence(of_logits(D.Categorical), 1))
op("kl_one_hot_categorical", WIDE, two_rows_case((-2, 2), (-2, 2)), divergence(of_logits(D.OneHotCategorical), 1))


def two_vectors_case(m, t):
    front, n = filled(m), m.int(1, 3)
    p = [m.normal(front + [n], t), factors(m, front, n, t)]
    return p + [m.normal([n], t), factors(m, [], n, t)], {}


op("kl_multivariate_normal", WIDE, two_vectors_case, divergence(multivariate, 2))


# ---- Cases

def listed(y):
    return list(y) if isinstance(y, (tuple, list)) else [y]


def broken(m, x, args):
    """A case that should be refused: a dimension out of range, or another size."""
    x, args = list(x), dict(args)
    if "dim" in args and m.r.random() < .6:
        args["dim"] = m.pick([9, -9])
        return x, args
    if len(x) > 1 and x[-1].ndim and x[-1].shape[-1] > 1:
        x[-1] = torch.cat([x[-1], x[-1][..., :1]], -1)
        return x, args
    return None


class Case:
    def __init__(self, number, name, dtype, x, args, wrong):
        self.number, self.name, self.dtype, self.x, self.args, self.wrong = number, name, dtype, x, args, wrong
        self.refused = None
        self.skipped = None
        self.y = self.d = self.e = ()

    def words(self):
        out = [str(self.number), self.name]
        for key, value in self.args.items():
            out.append(f"{key}={','.join(map(str, value)) if isinstance(value, list) else value}")
        return " ".join(out)

    def describe(self):
        return f"{self.words()}  ({', '.join(f'{NAMES[t.dtype].lower()}{list(t.shape)}' for t in self.x)})"

    def run(self, m, files):
        _, _, call, second = OPS[self.name]
        args = {k: v for k, v in self.args.items() if k not in ("layouts", "nograd")}
        for i, t in enumerate(self.x):
            files[f"{self.number}.x{i}"] = t
        try:
            self.y_own = listed(call([t.clone() for t in self.x], args))  # dtypes and refusals
        except NotImplementedError as e:
            self.skipped = str(e)
        except Exception as e:
            if "not implemented for" in str(e):
                self.skipped = str(e)
            else:
                self.refused = str(e).split("\n")[0]
            return
        wide = [t.to(torch.float64) if t.is_floating_point() else t.clone() for t in self.x]
        track = [t.is_floating_point() and not self.args.get("nograd") for t in wide]
        wide = [t.requires_grad_() if on else t for t, on in zip(wide, track)]
        try:
            self.y = listed(call(wide, args))
        except Exception as e:
            self.skipped = str(e)
            return
        if self.skipped is not None:
            self.y_own = [None] * len(self.y)
        outputs, seeds = [], []
        for i, y in enumerate(self.y):
            if y.requires_grad:
                seed = m.normal(list(y.shape), self.dtype)
                files[f"{self.number}.g{i}"] = seed
                outputs.append(y)
                seeds.append(seed.double())
        if not outputs:
            return
        wanted = [t for t, on in zip(wide, track) if on]
        second = second and self.dtype == torch.float64
        try:
            d = torch.autograd.grad(outputs, wanted, seeds, create_graph=second, allow_unused=True)
        except RuntimeError:  # PyTorch has no derivative, or none for a source that is larger than the index
            return
        self.d = [g.detach() if g is not None else None for g in d]
        if not second:
            return
        again = []
        for i, g in enumerate(d):
            seed = m.normal(list(wanted[i].shape), self.dtype)
            files[f"{self.number}.h{i}"] = seed
            if g is not None and g.requires_grad:
                again.append((g, seed.double()))
        if again:
            try:
                self.e = torch.autograd.grad([g for g, _ in again], wanted, [s for _, s in again], allow_unused=True)
            except RuntimeError:  # PyTorch has no second derivative
                pass


def difference(got, expected, dtype, slack, size, floor=1e-3):
    """None, or how far the worst element is off, beside the result's numbers and `size`, the largest operand."""
    if list(got.shape) != list(expected.shape):
        return f"shape {list(got.shape)}, expected {list(expected.shape)}"
    if not got.numel():
        return None
    a, b = got.double(), expected.detach().double()
    same = (a == b) | (a.isnan() & b.isnan())
    if got.dtype == torch.float16:  # beyond the dtype
        same |= a.isinf() & (b.abs() > 65000)
    eps = EPS.get(dtype, 0)
    scale = b[b.isfinite()].abs().max().item() if b.isfinite().any() else 0
    bad = ~same & ~((a - b).abs() <= slack * eps * (b.abs() + scale * .25 + size * .1 + floor))
    if not bad.any():
        return None
    i = int(bad.reshape(-1).nonzero()[0])
    return f"{a.reshape(-1)[i].item():.9g}, expected {b.reshape(-1)[i].item():.9g} at {i}"


def laid(x, layout):
    if x.ndim == 0:
        return x
    if layout == "t":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "s":
        return x.repeat_interleave(2, -1)[..., ::2]
    if layout == "o":
        return torch.cat([x[:1], x])[1:]
    return x


def median_ns(seconds, call):
    call()
    times = []
    while sum(times) < seconds * 1e9 or len(times) < 3:
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times)


def time_of(case, m, files, seconds):
    """PyTorch's time of a case in ns, forward and with gradients; None where it cannot run it."""
    args = {k: v for k, v in case.args.items() if k not in ("layouts", "nograd", "seconds")}
    call = OPS[case.name][2]
    x = [laid(t, layout).detach() for t, layout in zip(case.x, case.args["layouts"])]
    wanted = [t.requires_grad_() for t in x if t.is_floating_point() and not case.args.get("nograd")]

    def run():
        outputs = [(i, y) for i, y in enumerate(listed(call(x, args))) if y.requires_grad]
        for i, y in outputs:
            if f"{case.number}.g{i}" not in files:
                files[f"{case.number}.g{i}"] = m.normal(list(y.shape), y.dtype)
        seeds = [files[f"{case.number}.g{i}"] for i, _ in outputs]
        if outputs:
            torch.autograd.grad([y for _, y in outputs], wanted, seeds, allow_unused=True)
        return bool(outputs)

    try:
        with torch.no_grad():
            forward = median_ns(seconds, lambda: call(x, args))
        return forward, median_ns(seconds, run) if run() else 0
    except (NotImplementedError, RuntimeError):
        return None


def results_of(program, cases, files):
    with tempfile.TemporaryDirectory() as folder:
        given, results = os.path.join(folder, "cases"), os.path.join(folder, "results")
        save(given, files, {"cases": "\n".join(c.words() for c in cases)})
        subprocess.run([program, given, results], check=True)
        return load(results)


def compare_speed(options):
    m = LargeMaker(options.seed, options.speed)
    cases, files, theirs = [], {}, {}
    for name, (dtypes, make, _, _) in OPS.items():
        if not re.search(options.filter, name):
            continue
        for dtype in dtypes:
            for _ in range(options.cases):
                x, args = make(m, dtype)
                args = dict(args, layouts="".join(m.pick("ccts") for _ in x), seconds=options.seconds)
                case = Case(len(cases), name, dtype, x, args, False)
                own = time_of(case, m, files, options.seconds)
                if own is None:
                    continue
                for i, t in enumerate(x):
                    files[f"{case.number}.x{i}"] = t
                theirs[str(case.number)] = own
                cases.append(case)
    _, metadata = results_of(options.program, cases, files)
    mine = {line.split()[0]: [float(t) for t in line.split()[1:]] for line in metadata["times"].split("\n") if line}
    rows = []
    for case in cases:
        for what, ours, other in zip(("forward", "both"), mine.get(str(case.number), (0, 0)), theirs[str(case.number)]):
            if ours and other:
                rows.append((other / ours, ours, other, what, case.describe()))
    rows.sort()
    for ratio, ours, other, what, text in rows:
        if ratio < options.behind:
            print(f"{ratio:6.2f}  {ours / 1000:9.1f} us  PyTorch {other / 1000:9.1f} us  {what:8}{text}")
    print(f"{len(rows)} timings, {sum(r[0] < 1 for r in rows)} behind, geometric mean "
          f"{math.exp(statistics.fmean(math.log(r[0]) for r in rows)) if rows else 0:.2f}")
    for line in metadata["errors"].split("\n"):
        if line:
            print("refused:", line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, help="of an op and dtype; 12, or 1 with --speed")
    parser.add_argument("--filter", default="")
    parser.add_argument("--speed", type=int, metavar="N", help="time ops on about N elements")
    parser.add_argument("--seconds", type=float, default=.02, help="of each timing")
    parser.add_argument("--behind", type=float, default=1, help="list timings whose ratio is below it")
    options = parser.parse_args()
    options.cases = options.cases or (1 if options.speed else 12)
    if options.speed:
        return compare_speed(options)
    torch.set_num_threads(1)
    m = Maker(options.seed)
    cases, files = [], {}
    for name, (dtypes, make, _, _) in OPS.items():
        if not re.search(options.filter, name):
            continue
        for dtype in dtypes:
            for k in range(options.cases):
                x, args = make(m, dtype)
                wrong = k % 6 == 5
                if wrong:
                    changed = broken(m, x, args)
                    if changed is None:
                        continue
                    x, args = changed
                if not wrong:
                    args = dict(args, layouts="".join(m.pick("ctso") for _ in x))
                case = Case(len(cases), name, dtype, x, args, wrong)
                case.run(m, files)
                cases.append(case)
    got, metadata = results_of(options.program, cases, files)
    missing = set(metadata["ops"].split()) ^ set(OPS)
    errors = dict(line.split(" ", 1) for line in metadata["errors"].split("\n") if line)

    compared, explained, found = collections.Counter(), collections.Counter(), []

    def differ(case, kind, text):
        for pattern, of, reason in EXPLAINED:
            if of == kind and re.search(pattern, f"{case.name} {case.describe()} {text}"):
                explained[f"{case.name}: {kind}: {reason}"] += 1
                return
        found.append(f"{kind}: {case.describe()}\n    {text}")

    for case in cases:
        error = errors.get(str(case.number))
        if case.skipped is not None and not case.y:
            continue
        compared["refusals" if case.wrong else "cases"] += 1
        if (error is None) != (case.refused is None):
            differ(case, "refuses" if error else "accepts", error or f"PyTorch: {case.refused}")
            continue
        if error:
            continue
        size = max([t.double().nan_to_num(0, 0, 0).abs().max().item() for t in case.x
                    if t.is_floating_point() and t.numel()], default=0)
        for i, y in enumerate(case.y):
            mine = got.get(f"{case.number}.y{i}")
            if mine is None:
                differ(case, "value", f"no output {i}")
                continue
            own = case.y_own[i]
            if own is not None and own.dtype != mine.dtype:
                differ(case, "dtype", f"{mine.dtype}, PyTorch's is {own.dtype}")
            compared["values"] += 1
            slack = 16 if case.dtype in WIDE else 3
            if case.name in INEXACT and case.dtype == torch.float64:
                slack *= 2  # the errors of both
            if case.name in FACTORED:
                slack *= 20  # 80 eps of the largest element: the errors of both
            # Log densities are differences of terms of several units.
            floor = 8 if re.match("(dist|entropy|kl)_", case.name) else 1e-3
            text = difference(mine, y, mine.dtype, slack, size, floor)
            if text:
                differ(case, "value", f"output {i}: {text}")
        for kind, letter, expected, slack in (("gradient", "d", case.d, 64 if case.dtype in WIDE else 12),
                                              ("gradient", "e", case.e, 4096)):
            for i, g in enumerate(expected):
                mine = got.get(f"{case.number}.{letter}{i}")
                if g is None or mine is None:
                    other = mine if g is None else g
                    if other is not None and other.detach().abs().nan_to_num(1).sum() != 0:
                        differ(case, kind, f"{letter}{i}: only one side has a gradient")
                    continue
                compared["gradients" if letter == "d" else "gradients of gradients"] += 1
                if letter == "d" and case.name in FACTORED and case.dtype == torch.float64:
                    slack = 128  # the errors of both
                text = difference(mine, g, mine.dtype, slack, size, 1)
                if text:
                    differ(case, kind, f"{letter}{i}: {text}")

    print(f"{len(set(c.name for c in cases))} ops, {len(cases)} cases: " +
          ", ".join(f"{n} {what}" for what, n in compared.items()))
    for reason, n in sorted(explained.items()):
        print(f"explained {n}: {reason}")
    for text in found[:60]:
        print(text)
    if missing:
        print(f"only in one of the tables of ops.cpp and compare_ops.py: {', '.join(sorted(missing))}")
    print(f"{len(found)} unexplained differences")
    sys.exit(1 if found or missing else 0)


if __name__ == "__main__":
    main()
