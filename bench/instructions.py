#!/usr/bin/env python3
"""Instructions that memory-bound kernels issue per element, from the machine code of a CUDA build: a table, a check.

    bench/instructions.py build/cuda > bench/results/instructions_sm90.md
    bench/instructions.py build/cuda --check bench/results/instructions_sm90.md

How a kernel's vector path is found. cuobjdump prints the instructions of each kernel, and their branches make a graph
of basic blocks. A backward branch to a block that dominates it closes a loop. Loops count that have no loop inside,
apart from loops that access no memory, such as one over dimensions: these are passed once. A loop has several ways from
its first block back to it: for vectors and for single elements, with and without the slow path of a division. The
script takes the way with the most of the widest accesses, among these the one that moves the most bytes by the widest
access of each kind, among these the one with the most MUFU, among these the shortest. An unrolled body is one iteration
over several vectors.

A kernel has passes over its data. A pass is the loop whose way moves the most bytes an iteration by its kind of access:

    store   vector stores to global memory
    load    vector loads of global memory, and no stores to it
    exp     the same with MUFU
    again   vector loads of shared memory, and no stores: a row that the block has kept
    read    vector loads of global memory, by a loop that stores too
    sum     the same, with a copy in shared memory
    put     vector stores of what shared memory holds
    either  vector loads by instructions for any memory
    whole   vector stores, in a kernel without a loop: the way from its first instruction to its end

The bytes of that access, over the bytes that an element has in it, are the elements of an iteration. The sum over the
passes is the kernel's instructions per element.

What they mean. A multiprocessor has four schedulers. Each issues one warp instruction a clock, and a MUFU (exp2,
reciprocal and the like) every eighth clock. The columns of percent are these two limits against the time that an
element's bytes take in memory. Above BAR percent a kernel is slower than memory in practice, because its loads wait for
a free issue slot.

The check fails, by name, for a kernel that is in the table or in the build alone, that takes more instructions per
element than SLACK times the table's and a half, or that is above BAR and not a known case (`known` of its line in
KERNELS). It compares instructions only for the nvcc that made the table. It exits with NO_DISASSEMBLER without
cuobjdump, which CUDA's toolkit has, and the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm of PyPI.
tests/cuda/instructions_test.cpp runs it.
"""
import argparse
import collections
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

MEMORY = 4.3e12  # bytes/s of an H200, as a copy reaches them
CLOCK, SCHEDULERS = 1.98e9, 132 * 4
UNIT_CLOCKS = 8  # of a scheduler for one MUFU
BAR = 80         # percent of the time in memory
SLACK = 1.1      # and half an instruction
NO_DISASSEMBLER = 77

# The function is a regular expression for the instance's name without namespaces. `bytes` are those of an element in
# memory. A pass is its kind and the bytes that an element has in that access.
Kernel = collections.namedtuple("Kernel", "name file function bytes passes known", defaults=("",))


def row(name, file, functor, out, bytes_, *inputs):
    """A line for pointwise_row, which stores `out`."""
    operands = ", ".join(f"Operand<{t}>" for t in inputs)
    sizes = {"bool": 1, "bf16": 2, "float": 4}
    return Kernel(name, file, rf"pointwise_row<{functor}, \d, {out}, {operands} ?>", bytes_, [("whole", sizes[out])],
                  KNOWN.get(name, ""))


ACTIVATION = "autograd/ops/pointwise/activation.cu"
RELU = "autograd/ops/pointwise/relu.cu"
CAST = "autograd/ops/pointwise/cast.cu"
ARITH = "autograd/ops/pointwise/pointwise_arith.cu"
MATH = "autograd/ops/pointwise/pointwise_math.cu"
TRIGONOMETRY = "autograd/ops/pointwise/trigonometry.cu"
SPECIAL = "autograd/ops/pointwise/special.cu"
COMPARE = "autograd/ops/pointwise/compare.cu"
FACTORY = "autograd/ops/pointwise/factory.cu"
HARD = "autograd/ops/pointwise/hard_activation.cu"
CHOOSE = "autograd/ops/pointwise/choose.cu"
LSTM = "autograd/ops/pointwise/lstm_cell.cu"
SPARSE = "autograd/ops/index/sparse.cu"
POOL = "autograd/ops/reduce/pool.cu"
INDEX = "autograd/ops/index/index.cu"
JOIN = "autograd/ops/index/join.cu"
INTERPOLATE = "autograd/ops/image/interpolate.cu"
ROTARY = "autograd/ops/products/rotary.cu"
RANDOM = "autograd/ops/pointwise/random.cu"
LOSS = "autograd/ops/reduce/loss.cu"
REDUCE = "autograd/ops/reduce/reduce.cu"
EXTREME = "autograd/ops/reduce/extreme.cu"
SCAN = "autograd/ops/reduce/scan.cu"
SOFTMAX = "autograd/ops/reduce/softmax.cu"
ENTROPY = "autograd/ops/reduce/cross_entropy.cu"
LINEAR_ENTROPY = "autograd/ops/products/linear_cross_entropy.cu"
NORM = "autograd/ops/reduce/norm.cu"
BATCH_NORM = "autograd/ops/reduce/batch_norm.cu"
RESIDUAL = "autograd/ops/reduce/residual_norm.cu"
UPDATE = "kernels/update/update_device.cu"
SCALE = "kernels/update/loss_scale_device.cu"
ADAFACTOR = "kernels/update/adafactor_device.cu"
MUON = "kernels/update/muon_device.cu"
BUCKET = "kernels/update/bucket_device.cu"

# The state arrays of the update rules.
RULES = {"Sgd": 1, "Adam": 2, "Rmsprop": 1, "Adagrad": 1, "Nadam": 2, "Radam": 2, "Adamax": 2, "Adadelta": 2, "Lion": 1,
         "Asgd": 1, "Rprop": 2}
PHILOX = "ten rounds of Philox for four numbers"
NORMAL = PHILOX + ", and a root, a logarithm, a sine and a cosine for two, with the same bits on all devices"
F64_STEPS = "numbers in f64, for the same bits on all devices, and their rounding to 16 bits"
PLACES = "a choice between places of 64 bits for each number of 16"
LOG_SUMS = "logarithms of sums of exponentials in f64"
KNOWN = {
    "Asinh float": "a logarithm, a root and a quotient",
    "Acosh float": "a logarithm and a root",
    "Atanh float": "a logarithm and a quotient",
    "binary_cross_entropy float": "two logarithms",
    "Tan bf16": "CUDA's tanf",
    "Pow bf16": "CUDA's powf",
    "Atan2 bf16": "CUDA's atan2f",
    **{f"{op} {t}": why for t in ("bf16", "float") for op, why in (
        ("Erfc", "an exponential of two parts, two polynomials and two quotients"),
        ("Erfinv", "two polynomials of degree 9, a logarithm and a root"), ("Lgamma", "CUDA's lgamma in f64"),
        ("Digamma", "an asymptotic series in f64"), ("Polygamma", "a sum of powers in f64"))},
}


def kernels_of(t, size):
    """The lines of a dtype of `size` bytes. Rows are those of 256 threads; bytes of parameters are not counted."""
    for op in ("Relu", "Tanh", "Sigmoid", "Gelu", "GeluTanh", "Silu", "Elu", "Softplus"):
        file = RELU if op == "Relu" else ACTIVATION
        yield row(f"{op} {t}", file, op, t, 2 * size, t)
        yield row(f"{op} backward {t}", file, f"Slope<{op}>", t, 3 * size, t, t)
    for op in ("Add", "Sub", "Mul", "Div", "Maximum", "Minimum"):
        yield row(f"{op} {t}", ARITH, op, t, 3 * size, t, t)
    for op in ("Abs", "Neg", "Square", "Sign", "Clamp"):
        yield row(f"{op} {t}", ARITH, op, t, 2 * size, t)
    for op in ("Exp", "Log", "Log1p", "Log2", "Sqrt", "Rsqrt", "Reciprocal", "Sine<0>", "Erf", "Expm1", "Log10",
               "Sine<1>", "Tan", "Erfc"):
        yield row(f"{op} {t}", MATH, op, t, 2 * size, t)
    for op in ("Pow", "Atan2"):
        yield row(f"{op} {t}", MATH, op, t, 3 * size, t, t)
    for op in ("Hardtanh", "Hardsigmoid", "Hardswish", "Softsign"):
        yield row(f"{op} {t}", HARD, op, t, 2 * size, t)
        yield row(f"{op} backward {t}", HARD, f"Slope<{op}>", t, 3 * size, t, t)
    yield row(f"PRelu {t}", HARD, "PRelu", t, 3 * size, t, t)
    for op in ("Lerp", "ClampMin", "Copysign"):
        yield row(f"{op} {t}", CHOOSE, op, t, 3 * size, t, t)
    for op in ("Sinh", "Cosh", "Asin", "Acos", "Atan", "Asinh", "Acosh", "Atanh"):
        yield row(f"{op} {t}", TRIGONOMETRY, op, t, 2 * size, t)
    for op in ("Erfinv", "Lgamma", "Digamma", "Polygamma"):
        yield row(f"{op} {t}", SPECIAL, op, t, 2 * size, t)
    for op in ("Hypot", "Logaddexp<0>", "Xlogy"):
        yield row(f"{op} {t}", SPECIAL, op, t, 3 * size, t, t)
    yield row(f"Eq {t}", COMPARE, "Eq", "bool", 2 * size + 1, t, t)
    yield row(f"IsNan {t}", COMPARE, "IsNan", "bool", size + 1, t)
    yield row(f"AddScaled {t}", CAST, "AddScaled", t, 3 * size, t, t)
    for name, of in (("mse", "Square"), ("l1", "Absolute"), ("huber", r"Huber<\(HuberForm\)0> ?")):
        yield row(f"{name}_loss {t}", LOSS, f"Difference<{of}>", t, 3 * size, t, t)
        yield row(f"{name}_loss backward {t}", LOSS, f"DifferenceSlope<{of}>", t, 4 * size, t, t, t)
    for name, of in (("binary_cross_entropy", "Probability"), ("binary_cross_entropy_with_logits", "Bce")):
        yield row(f"{name} {t}", LOSS, f"{of}Value", t, 3 * size, t, t)
        yield row(f"{name} backward {t}", LOSS, f"{of}Slope", t, 4 * size, t, t, t)
    # The steps of an LSTM's cell and of its gradient.
    yield row(f"Gate {t}", LSTM, "Gate", t, 3 * size, t, t)
    yield row(f"GatedTanh {t}", LSTM, "GatedTanh", t, 3 * size, t, t)
    for op in ("GatedSum", "OfTanhGate", "OfGatedTanh", "GateSlope"):
        yield row(f"{op} {t}", LSTM, op, t, 4 * size, t, t, t)
    for name, log in (("softmax", "false"), ("log_softmax", "true")):
        yield Kernel(f"{name} {t}", SOFTMAX, f"softmax_rows<{t}, {t}, 256, {log}>", 2 * size,
                     [("exp", size), ("store", size)])
        yield Kernel(f"{name} backward {t}", SOFTMAX, f"softmax_rows_backward<{t}, {t}, 256, {log}>", 3 * size,
                     [("load", 2 * size), ("store", size)])
    yield Kernel(f"cross_entropy {t}", ENTROPY, f"cross_entropy_rows<{t}, 256>", size, [("exp", size)])
    yield Kernel(f"cross_entropy backward {t}", ENTROPY, f"cross_entropy_rows_backward<{t}, 256>", 2 * size,
                 [("store", size)])
    yield Kernel(f"linear_cross_entropy of logits {t}", LINEAR_ENTROPY, f"cross_entropy_chunk_rows<{t}, 256>", 2 * size,
                 [("exp", size), ("store", size)])
    for name, centered in (("layer_norm", "true"), ("rms_norm", "false")):
        variance = [("again", size)] if name == "layer_norm" else []
        yield Kernel(f"{name} {t}", NORM, f"norm_rows<{centered}, {t}, {t}, 256>", 2 * size,
                     [("load", size), *variance, ("store", size)])
        # The first pass also loads the weight, which is f32.
        yield Kernel(f"{name} backward {t}", NORM,
                     rf"norm_rows_backward<{centered}, {t}, {t}, 256, PlainGradient<{t}, {t}> ?>", 3 * size,
                     [("load", 2 * size + 4), ("store", size)])
        yield Kernel(f"add_{name} {t}", RESIDUAL, f"add_norm_rows<{centered}, {t}, {t}, 256>", 4 * size,
                     [("sum", 2 * size), *variance, ("put", size)])
    for name, file, finish in (("batch_norm", BATCH_NORM, "GradientFinish<float> ?"), ("group_norm", NORM, "NoFinish")):
        yield Kernel(f"{name} moments {t}", file, rf"channel_moments<{t}, {t}, [48], false>", size, [("load", size)])
        yield Kernel(f"{name} apply {t}", file, rf"channel_apply<{t}, {t}, {t}, [48], \(ApplyPass\)0>", 2 * size,
                     [("store", size)])
        yield Kernel(f"{name} backward sums {t}", file, rf"channel_sums<{t}, {t}, [48], false, {finish}>", 2 * size,
                     [("load", 2 * size)])
        yield Kernel(f"{name} backward apply {t}", file, rf"channel_apply<{t}, {t}, {t}, [48], \(ApplyPass\)1>",
                     3 * size, [("store", size)])
    for name, what in (("sum", (0, 0)), ("max", (2, 0)), ("sum of squared deviations", (0, 5)),
                       ("sum of exponentials", (0, 6))):
        for of, kernel, load in (("all", "reduce_blocks", "either"), ("columns", "reduce_columns", "load"),
                                 ("rows", "reduce_groups", "either")):
            yield Kernel(f"{name} of {of} {t}", REDUCE,
                         r"%s<%s, float, \(Reduce\)%d, \(Map\)%d, [48], %s>" % (kernel, t, *what, t), size,
                         [(load, size)])
    yield Kernel(f"argmax of columns {t}", EXTREME, f"walk_extreme<true, false, {t}>", size, [("load", size)])
    for name, of, more, known in (("cumsum", f"RunningSum<{t}, {t}> ?", 0, ""),
                                  ("cummax", f"RunningExtreme<true, {t}> ?", 8, PLACES if size == 2 else ""),
                                  ("logcumsumexp", f"RunningLogSumExp<{t}> ?", 0, LOG_SUMS)):
        yield Kernel(f"{name} of rows {t}", SCAN, f"scan_dense_rows<256, {t}, {of}>", 2 * size + more,
                     [("read", size)], known if known == LOG_SUMS else "")
        yield Kernel(f"{name} totals of columns {t}", SCAN, f"walk_scan<true, {t}, {of}>", size, [("load", size)],
                     known)
    yield Kernel(f"rotary {t}", ROTARY, f"rotate_items<[48], {t}>", 2 * size, [("whole", size)])
    yield Kernel(f"dropout {t}", RANDOM, f"dropout_items<{t}>", 2 * size, [("whole", size)])
    yield Kernel(f"rand {t}", RANDOM, f"draw_items<{t}, Uniform<{t}> ?>", size, [("whole", size)],
                 PHILOX if size == 2 else "")
    yield Kernel(f"randn {t}", RANDOM, f"draw_items<{t}, Normal<{t}> ?>", size, [("whole", size)], NORMAL)
    for name, of in (("arange", "Range"), ("linspace", "Steps")):
        yield Kernel(f"{name} {t}", FACTORY, f"generate_items<[48], {t}, {of}<{t}> ?>", size, [("whole", size)],
                     F64_STEPS if size == 2 else "")
    yield Kernel(f"sum of gathered rows {t}", INDEX, rf"sum_row_items<[48], {t}, unsigned int>", 2 * size,
                 [("load", size)])
    # A row of the other matrix for each number of the pattern, whose result's share is not counted.
    for kernel in ("reduce_short_rows", "reduce_short_wide_rows", "reduce_pieces"):
        yield Kernel(f"spmm {kernel} {t}", SPARSE, rf"{kernel}<SumOfRow<Terms<[48], {t}> > ?>", size, [("load", size)])
    # An element of a pool is a result, of its gradient an input; windows are half as many along each axis.
    for windows, name in (("2, 2, 0", "2 by 2"), ("3, 2, 1", "3 by 3 padded")):
        along = rf"KnownWindows<{windows}>, WindowsAlong<int, Multiplied> ?>"
        yield Kernel(f"max_pool {name} {t}", POOL, rf"max_pool_known<true, {t}, {along}", 5 * size + 4,
                     [("whole", 4 if size == 2 else size + 4)])  # of 16 bits only the places come by 16 bytes
        yield Kernel(f"avg_pool {name} {t}", POOL, rf"avg_pool_known<true, {t}, {along}", 5 * size, [("whole", size)])
        yield Kernel(f"max_pool backward {name} {t}", POOL, rf"max_pool_inputs_known<true, {t}, {along}",
                     1.25 * size + 1, [("whole", size)])
        yield Kernel(f"avg_pool backward {name} {t}", POOL, rf"avg_pool_inputs_known<true, {t}, {along}", 1.25 * size,
                     [("whole", size)])
    yield Kernel(f"index_add of chunks {t}", INDEX, rf"sum_chunks<[48], {t}, unsigned int>", size, [("load", size)])
    # The way passes the loads of all arrays that a rule may have; those of 16 bits are not the widest.
    for op, states in RULES.items():
        yield Kernel(f"{op} {t}", UPDATE, f"update<{op}Rule, {t}>", 3 * size + 8 * states,
                     [("read", 4 * 5 if size == 4 else 4 * 3)])
    # The widest loads are the two factors of a gradient, which caches hold.
    yield Kernel(f"Lamb ratios {t}", UPDATE, f"lamb_ratios<{t}>", 2 * size + 16, [("read", 8 * 2)])
    yield Kernel(f"Lamb {t}", UPDATE, f"lamb_apply<{t}>", 2 * size + 8, [("read", 4 * 3 if size == 4 else 4 * 2)])
    yield Kernel(f"powers of gradients {t}", UPDATE, f"power_sums<{t}>", size, [("load", size)])
    for op in ("scale_to_norm", "divide_all", "clamp_all"):
        yield Kernel(f"{op} of gradients {t}", UPDATE, f"{op}<{t}>", 2 * size, [("read", size)])
    yield Kernel(f"fill_all of gradients {t}", UPDATE, f"fill_all<{t}>", size, [("store", size)])
    yield Kernel(f"Adafactor columns {t}", ADAFACTOR, f"adafactor_columns<{t}>", size, [("load", size)])
    yield Kernel(f"running average of {t}", BUCKET, f"average<{t}, float>", size + 8,
                 [("read", 4 if size == 2 else 8)])
    yield Kernel(f"Muon {t}", MUON, f"muon_apply<{t}>", 2 * size + 2, [("store", size)])
    yield Kernel(f"Muon direction {t}", MUON, f"muon_direction<{t}>", size + 10, [("store", 4)])
    yield Kernel(f"unscale and norm {t}", SCALE, f"unscale<{t}, float>", size + 4, [("store", 4)])


KERNELS = [
    *kernels_of("bf16", 2),
    *kernels_of("float", 4),
    row("cast float to bf16", CAST, "As<float>", "bf16", 6, "float"),
    row("cast bf16 to float", CAST, "As<float>", "float", 6, "bf16"),
    Kernel("select rows by 16 bytes", INDEX, "select_items<16>", 32, [("whole", 16)]),
    Kernel("put rows by 16 bytes", INDEX, "put_row_items<16>", 32, [("whole", 16)]),
    Kernel("gather by 4 bytes", INDEX, "gather_items<unsigned int>", 16, [("whole", 4)]),
    Kernel("cat by 16 bytes", JOIN, "copy_items<16>", 32, [("whole", 16)]),
    Kernel("nearest by 4 bytes", INTERPOLATE, "resample_nearest_items<unsigned int>", 8, [("whole", 4)]),
    # Of an image of the same size. Of 16 bits the weights would be the widest loads, in place of the image.
    Kernel("bilinear float", INTERPOLATE, "resample_plane_taps<2, float, float>", 8, [("whole", 4)]),
    Kernel("bicubic float", INTERPOLATE, "resample_plane_taps<4, float, float>", 8, [("whole", 4)],
           "16 loads and 20 products for each result"),
    *(Kernel(f"transpose by {n} bytes", CAST, f"transpose<unsigned {of}, unsigned {of}>", 2 * n, [("whole", n)])
      for of, n in (("char", 1), ("short", 2), ("int", 4), ("long", 8))),
    Kernel("transpose to float of bf16", CAST, "transpose<float, bf16>", 6, [("whole", 4)]),
    Kernel("transpose to bf16 of float", CAST, "transpose<bf16, float>", 6, [("whole", 2)]),
    Kernel("copies of a bucket by 16 bytes", BUCKET, "copy_items<16>", 32, [("store", 16)]),
    Kernel("Muon scale", MUON, "muon_scale", 4, [("store", 2)]),
    Kernel("Muon combine", MUON, "muon_combine", 6, [("store", 2)]),
]


# ---- Machine code to loops.

Instruction = collections.namedtuple("Instruction", "address guard op text")
LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
ENDS = ("EXIT", "RET", "BRX", "JMX", "KILL")


def functions(text):
    """Yields (mangled name, its instructions) of what cuobjdump -sass prints."""
    name, code = None, []
    for line in text.splitlines():
        if found := re.search(r"Function : (\S+)", line):
            if name:
                yield name, code
            name, code = found[1], []
        elif found := LINE.match(line):
            code.append(Instruction(int(found[1], 16), found[2], found[3], found[4]))
    if name:
        yield name, code


class Access:
    """What an instruction does with memory: its space (global, shared), direction and bytes."""
    KINDS = {"LDG": "load", "LDS": "again", "STG": "store", "STS": "keep", "LD": "either", "ST": "either"}

    @staticmethod
    def of(i):
        kind = Access.KINDS.get(i.op.split(".")[0])
        width = re.search(r"\.(128|64|U?16|U?8)\b", "." + i.op.split(".", 1)[-1])
        bits = 32 if not width else int(re.sub(r"\D", "", width[1]))
        return (kind, bits // 8) if kind else None


class Graph:
    def __init__(self, code):
        starts, at = {0}, {i.address: n for n, i in enumerate(code)}
        target = {}
        for n, i in enumerate(code):
            op = i.op.split(".")[0]
            if op == "BRA" and (found := re.findall(r"0x[0-9a-f]+", i.text)) and int(found[-1], 16) in at:
                target[n] = at[int(found[-1], 16)]
                starts.update((target[n], n + 1))
            elif op in ENDS:
                starts.add(n + 1)
        starts = sorted(s for s in starts if s < len(code))
        block_of = {s: k for k, s in enumerate(starts)}
        self.blocks, self.next, self.may_end = [], [], []
        for k, s in enumerate(starts):
            end = starts[k + 1] if k + 1 < len(starts) else len(code)
            last = code[end - 1]
            always = last.guard is None and "P" not in re.sub(r"\bPT\b", "", last.text.split("0x")[0])
            to = [block_of[target[end - 1]]] if end - 1 in target else []
            ended = (last.op.split(".")[0] in ENDS or bool(to)) and always and not last.op.startswith("BRA.DIV")
            if not ended and end < len(code):
                to.append(block_of[end])
            self.blocks.append(code[s:end])
            self.next.append(list(dict.fromkeys(to)))
            self.may_end.append(last.op.split(".")[0] in ENDS)

    def order(self):
        """The blocks that the first one reaches, in reverse postorder."""
        seen, out, stack = {0}, [], [(0, iter(self.next[0]))]
        while stack:
            node, rest = stack[-1]
            for n in rest:
                if n not in seen:
                    seen.add(n)
                    stack.append((n, iter(self.next[n])))
                    break
            else:
                out.append(node)
                stack.pop()
        return out[::-1]

    def loops(self):
        """{first block: all blocks} of the loops without a loop inside."""
        order = self.order()
        place = {b: k for k, b in enumerate(order)}
        before = {b: [] for b in order}
        for b in order:
            for n in self.next[b]:
                before[n].append(b)
        dominator, changed = {0: 0}, True
        while changed:
            changed = False
            for b in order[1:]:
                new = None
                for p in before[b]:
                    if p not in dominator:
                        continue
                    while new is not None and new != p:
                        if place[new] > place[p]:
                            new = dominator[new]
                        else:
                            p = dominator[p]
                    new = p
                if dominator.get(b) != new:
                    dominator[b], changed = new, True

        def dominates(a, b):
            while place[b] > place[a]:
                b = dominator[b]
            return a == b
        found = {}
        for b in order:
            for head in self.next[b]:
                if place[head] <= place[b] and dominates(head, b):
                    body, stack = found.setdefault(head, {head}), [b]
                    while stack:
                        if (x := stack.pop()) not in body:
                            body.add(x)
                            stack += before[x]
        moving = {h for h, body in found.items() if any(Access.of(i) for b in body for i in self.blocks[b])}
        return {h: found[h] for h in moving if not any(g != h and g in found[h] for g in moving)}

    def way(self, first, body):
        """The instructions of the way from `first` to a jump back to it, or to the kernel's end."""
        widest = {}
        for kind, size in (a for b in body for i in self.blocks[b] if (a := Access.of(i))):
            widest[kind] = max(size, widest.get(kind, 0))
        order = [b for b in self.order() if b in body]
        place = {b: k for k, b in enumerate(order)}
        best = {}
        for b in reversed(order):
            on = [n for n in self.next[b] if n in body and place[n] > place[b]]
            ends = first in self.next[b] or first == 0 and self.may_end[b]
            choices = [best[n] for n in on if n in best] + ([((0, 0, 0, 0), ())] if ends else [])
            if not choices:
                continue
            (most, moved, units, count), then = max(choices, key=lambda c: c[0])
            accesses = [a for i in self.blocks[b] if (a := Access.of(i)) and a[1] == widest[a[0]]]
            most += sum(size == max(widest.values()) for _, size in accesses)
            moved += sum(size for _, size in accesses)
            units += sum(i.op.startswith("MUFU") for i in self.blocks[b])
            best[b] = ((most, moved, units, count - len(self.blocks[b])), (b, then))
        if first not in best:
            return []
        out, node = [], best[first][1]
        while node:
            out += self.blocks[node[0]]
            node = node[1]
        return out


ACCESS_OF = {"exp": "load", "read": "load", "sum": "load", "put": "store", "whole": "store"}
Pass = collections.namedtuple("Pass", "instructions units elements")


def passes_of(code, kinds):
    """[Pass] of a kernel for each of `kinds`, or None where it has no such loop."""
    graph = Graph(code)
    ways = [graph.way(h, body) for h, body in graph.loops().items()]
    out = []
    for kind, size in kinds:
        choices = []
        for way in [graph.way(0, set(graph.order()))] if kind == "whole" else ways:
            accesses = [a for i in way if (a := Access.of(i))]
            widest = max((size for _, size in accesses), default=0)
            moved = collections.Counter()
            for of in {k for k, _ in accesses}:
                sizes = [size for k, size in accesses if k == of]
                moved[of] = max(sizes) * sizes.count(max(sizes))
            units = sum(i.op.startswith("MUFU") for i in way)
            if (kind in ("load", "exp") and moved["store"] or kind == "exp" and not units
                    or kind == "again" and (moved["store"] or moved["keep"])
                    or kind == "read" and not moved["store"] or kind == "sum" and not (moved["store"] and moved["keep"])
                    or kind == "put" and (moved["keep"] or not moved["again"])):
                continue
            if bytes_ := moved[ACCESS_OF.get(kind, kind)]:
                choices.append((widest, bytes_, -len(way), Pass(len(way), units, bytes_ / size)))
        if not choices:
            return None
        out.append(max(choices)[3])
    return out


# ---- A build to the table.

Row = collections.namedtuple("Row", "file instructions units issue unit known")
COLUMNS = ("kernel", "file", "bytes an element", "instructions an element", "MUFU an element", "issue, % of memory",
           "MUFU, % of memory", "known")


def disassembler():
    """The command that prints an object's machine code, or None."""
    folders = [pathlib.Path("/usr/local/cuda/bin")]
    folders += [p / "bin" for s in sys.path for p in pathlib.Path(s or ".").glob("nvidia/cu*")]
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    found = shutil.which("cuobjdump", path=path)
    if found:  # cuobjdump itself looks for nvdisasm
        os.environ["PATH"] = path
    return f"{found} -sass" if found else None


def plain(names):
    """Functions without return type, namespaces and arguments: norm_rows<true, bf16, bf16, 256>."""
    said = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    out = []
    for name in said.splitlines():
        name = re.sub(r"\(anonymous namespace\)::|\b[a-z_]+::", "", name.removeprefix("void "))
        depth = 0
        for at, c in enumerate(name):
            depth += (c == "<") - (c == ">")
            if c == "(" and depth == 0:
                name = name[:at]
                break
        out.append(name)
    return out


def measured(build, command):
    rows = {}
    for file in sorted({k.file for k in KERNELS}):
        made = build / (re.sub(r"\W", "_", file) + ".o")
        if not made.exists():
            continue
        text = subprocess.run([*shlex.split(command), made], capture_output=True, text=True, check=True).stdout
        code = dict(functions(text))
        named = dict(zip(plain(list(code)), code.values()))
        for k in (k for k in KERNELS if k.file == file):
            fits = [n for n in named if re.fullmatch(k.function, n)]
            if len(fits) > 1:
                sys.exit(f"{k.name} of {file} fits {fits}")
            found = passes_of(named[fits[0]], k.passes) if fits else None
            if not found:
                continue
            instructions = sum(p.instructions / p.elements for p in found)
            units = sum(p.units / p.elements for p in found)
            per_second = 32 * CLOCK * SCHEDULERS * k.bytes / MEMORY / 100
            rows[k.name] = Row(file, instructions, units, instructions / per_second, units * UNIT_CLOCKS / per_second,
                               k.known)
    if not rows:
        sys.exit(f"{build} holds no object of a file with such kernels: give the folder of a finished build with CUDA")
    return rows


def read_table(text):
    """(the nvcc it was made with, {kernel: (file, instructions per element)})"""
    rows = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) == len(COLUMNS) and re.fullmatch(r"[\d.]+", cells[3]):
            rows[cells[0]] = (cells[1], float(cells[3]))
    nvcc = re.search(r"nvcc ([0-9.]+)", text)
    return nvcc[1] if nvcc else "", rows


def complaints(built, table, same_compiler):
    for name, r in built.items():
        where = f"{name} of {r.file}"
        if name not in table:
            yield f"{where} is not in the table"
        elif same_compiler and r.instructions > table[name][1] * SLACK + 0.5:
            yield f"{where} takes {r.instructions:.1f} instructions an element; the table has {table[name][1]:.1f}"
        if max(r.issue, r.unit) > BAR and not r.known:
            yield (f"{where} issues for {max(r.issue, r.unit):.0f} % of its time in memory, more than {BAR} %, "
                   "and is no known case")
    for name in sorted(table.keys() - built.keys()):
        yield f"{name} of {table[name][0]} is in the table and not in this build"


def version_of(nvcc):
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"V([0-9.]+)", said)[1]


def print_table(built, nvcc):
    commit = subprocess.run(["git", "log", "-1", "--format=%h of %cs"], capture_output=True, text=True,
                            check=True).stdout.strip()
    print(f"""# Instructions per element of memory-bound kernels on sm_90

nvcc {nvcc}, commit {commit}, by `bench/instructions.py build/cuda > bench/results/instructions_sm90.md`;
the suite of a CUDA build compares itself with it. The figures come from machine code: no GPU ran.
Percent: the least time to issue the instructions, or their MUFU, against the time of the bytes in the memory of an H200
({MEMORY / 1e12} TB/s; {CLOCK * SCHEDULERS / 1e12:.2f}e12 warp instructions/s; a MUFU takes {UNIT_CLOCKS} clocks of a \
scheduler). {BAR} % is the bar.
`bench/instructions.py` says how it finds the vector path.
""")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    size = {k.name: k.bytes for k in KERNELS}
    for name, r in built.items():
        print(f"| {name} | {r.file} | {size[name]} | {r.instructions:.1f} | {r.units:.1f} | {r.issue:.0f} | "
              f"{r.unit:.0f} | {r.known} |")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build", type=pathlib.Path, help="folder of a finished build with CUDA")
    p.add_argument("--check", type=pathlib.Path, metavar="TABLE",
                   help="compare with this table instead of printing one")
    p.add_argument("--nvcc", default="nvcc", help="the compiler of the build")
    p.add_argument("--nvcc-version", help="instead of asking it")
    p.add_argument("--disassembler", metavar="COMMAND", help="prints the machine code of the object behind it")
    args = p.parse_args()
    command = args.disassembler or disassembler()
    if not command:
        print("no cuobjdump: it is in CUDA's toolkit, or: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
        sys.exit(NO_DISASSEMBLER)
    built = measured(args.build, command)
    nvcc = args.nvcc_version or version_of(args.nvcc)
    if not args.check:
        return print_table(built, nvcc)
    made_with, table = read_table(args.check.read_text())
    wrong = list(complaints(built, table, nvcc == made_with))
    for line in wrong:
        print(line)
    if nvcc != made_with:
        print(f"instructions were not compared: the table is of nvcc {made_with}, this build of {nvcc}")
    if wrong:
        print(f"where that is meant: bench/instructions.py {args.build} > {args.check}, and commit it")
        sys.exit(1)


if __name__ == "__main__":
    main()
