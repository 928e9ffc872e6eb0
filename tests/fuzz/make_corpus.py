#!/usr/bin/env python3
"""Writes the seeds of tests/fuzz/corpus: tests/fuzz/make_corpus.py. Keeps the files that a fuzzer found, and
checkpoint_file/run, which a Trainer wrote (Python's library has no XXH3), jpeg, by
Pillow, and npz/numpy_*, by NumPy."""
import gzip
import io
import json
import lzma
import pathlib
import random
import struct
import zipfile
import zlib

CORPUS = pathlib.Path(__file__).parent / "corpus"


def write(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


# ---- safetensors
WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2, "I8": 1, "U8": 1,
          "BOOL": 1}


def safetensors(tensors, metadata=None):
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape in tensors:
        count = 1
        for size in shape:
            count *= size
        end = len(data) + count * WIDTHS[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), end]}
        data += b"\0" * (end - len(data))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


write("safetensors", "dtypes", safetensors([(d, d, [2]) for d in WIDTHS]))
write("safetensors", "metadata", safetensors([("w", "F32", [2, 3])], {"format": "pt", "\u00e9": "\u20ac \U0001f600"}))
write("safetensors", "none", safetensors([]))
write("safetensors", "ranks",
      safetensors([("0", "F32", []), ("8", "U8", [1, 2, 1, 2, 1, 2, 1, 2]), ("e", "I64", [0, 7])]))
write("safetensors", "huge", safetensors([("x", "F32", [0, 1 << 40, 1 << 40])]))
write("safetensors", "overflow", struct.pack("<Q", 80) + json.dumps(
    {"x": {"dtype": "F64", "shape": [1 << 62, 8], "data_offsets": [0, 0]}}).encode().ljust(80) + b"\0" * 8)
write("safetensors", "deep", struct.pack("<Q", 64) + (b'{"x":' * 12).ljust(64))

# ---- .npy
def npy(descr, shape, order=False, version=(1, 0), data=None, extra=""):
    text = "{'descr': '%s', 'fortran_order': %s, 'shape': %s, %s}" % (descr, order, shape, extra)
    text = text.encode() + b" " * (-(len(text) + 11) % 64) + b"\n"
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    count = 1
    for size in shape:
        count *= size
    return b"\x93NUMPY" + bytes(version) + length + text + (
        data if data is not None else b"\1" * (count * int(descr[-1])))


for number, descr in enumerate(["<f4", "<f8", "<f2", ">f4", ">i8", "|i1", "|u1", "|b1", "<u2", "<u4", ">i2"]):
    write("npy", "type%d" % number, npy(descr, (2, 3)))
write("npy", "fortran", npy("<f4", (2, 3, 2), order=True))
write("npy", "version2", npy("<i4", (5,), version=(2, 0)))
write("npy", "version3", npy(">f8", (), version=(3, 0)))
write("npy", "empty", npy("<f4", (0, 3)))
write("npy", "huge", npy("<f4", (1 << 60, 16), data=b""))
write("npy", "object", npy("|O8", (1,)))

# ---- IDX
def idx(code, dims, width):
    count = 1
    for size in dims:
        count *= size
    return bytes([0, 0, code, len(dims)]) + b"".join(struct.pack(">I", d) for d in dims) + b"\x3f" * (count * width)


for code, width in [(8, 1), (9, 1), (11, 2), (12, 4), (13, 4), (14, 8)]:
    write("idx", "type%d" % code, idx(code, [2, 3], width))
write("idx", "images", idx(8, [2, 4, 4], 1))
write("idx", "rank4", idx(13, [1, 2, 1, 2], 4))
write("idx", "empty", idx(8, [0], 1))
write("idx", "huge", idx(14, [0xFFFFFFFF, 0xFFFFFFFF, 0], 8))
write("idx", "gz", gzip.compress(idx(8, [10, 10], 1), mtime=0))
write("idx", "gz_wide", gzip.compress(idx(14, [3], 8), mtime=0))
write("idx", "gz_more", gzip.compress(idx(8, [2], 1) + b"more", mtime=0))
write("idx", "gz_bomb", gzip.compress(idx(8, [1 << 15], 1), mtime=0))

# ---- CIFAR-10: a label and 3,072 pixels a record
def record(label, step):
    return bytes([label]) + bytes(i * step % 256 for i in range(3072))


def xz(content, filters=None, check=lzma.CHECK_CRC32):
    filters = filters or [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 4096}]
    return lzma.compress(content, format=lzma.FORMAT_XZ, check=check, filters=filters)


DELTA = [{"id": lzma.FILTER_DELTA, "dist": 1}, {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 4096}]
TWO = record(9, 1) + record(0, 0)
write("cifar", "gz", gzip.compress(TWO, mtime=0))
write("cifar", "gz_label", gzip.compress(record(3, 0) + record(10, 0), mtime=0))
write("cifar", "plain", record(7, 0))
write("cifar", "short", record(7, 0)[:-1])
write("cifar", "xz", xz(TWO))
write("cifar", "xz_delta", xz(TWO, DELTA, lzma.CHECK_CRC64))
write("cifar", "xz_none", xz(record(1, 0), check=lzma.CHECK_NONE))
write("cifar", "xz_sha256", xz(record(1, 0), check=lzma.CHECK_SHA256))
write("cifar", "xz_cifar100", xz(b"\1" + record(1, 0)))
write("cifar", "xz_more", xz(record(1, 0)) + b"more")
write("cifar", "xz_bomb", xz(b"\0" * 3073 * 60))
write("cifar", "meta", "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n")

# ---- CSV: a byte for the schema, then the file
for way, name, content in [
        (0, "floats", "x,y\n1,2.5\n-3e2,nan\n"), (8, "kinds", "a,b,c,d\n1.5,w,7,true\n,,-8,0\n"),
        (1, "no_header", "1,x,2,false\r\n+.5,\"y\",3,\n"), (10, "semicolon", "d;c;b;a\n1;2;3;4\n"),
        (56, "given", "a,b\n1,x\n2,y\n3,\n"), (8, "quotes", 'e,a,b,c,d\n"p\n,""q""",1,"",2,"TRUE"'),
        (12, "no_quotes", 'a,b,c,d\n1,5",2,1\n'), (88, "bytes", "b,a\nw,255\nw,NA\n"),
        (0, "mark", "\ufeffx\n\n1\n\r\n2\r"), (0, "extremes", "x\n1e-60\n3.4e38\n1e-42\n-inf\n"),
        (8, "integers", "c,a,b,d\n-9223372036854775808,1e308,,1\n"), (0, "ragged", "x,y\n1\n")]:
    write("csv", name, bytes([way]) + content.encode())

# ---- .npz
def npz(members, method=zipfile.ZIP_STORED, **local):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members:
            with archive.open(zipfile.ZipInfo(name), "w", **local) as member:
                member.write(content)
    return out.getvalue()


write("npz", "empty", npz([]))
write("npz", "deflated", npz([("a.npy", npy("<i4", (40,)))], zipfile.ZIP_DEFLATED))
write("npz", "two", npz([("a.npy", npy("|u1", (2,))), ("b/c.npy", npy(">f8", ()))]))
write("npz", "zip64", npz([("a.npy", npy("<f2", (1, 2)))], force_zip64=True))
write("npz", "comment", npz([("a.npy", npy("|b1", (1,)))])[:-2] + b"\3\0abc")
write("npz", "no_array", npz([("a.txt", b"text")]))
write("npz", "up", npz([("../a.npy", npy("|u1", (2,)))]))

# ---- PNG: check sums are 0, and the target corrects them
def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + b"\0\0\0\0"


CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def png(width, height, depth, color, interlace=0, before=b"", rows=None):
    if rows is None:
        rows = (b"\1" + bytes((7 * i) % 256 for i in range((width * depth * CHANNELS[color] + 7) // 8))) * height * 2
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before +\
        chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PALETTE = chunk(b"PLTE", bytes(range(12)))
for depth, color in [(1, 0), (2, 0), (8, 0), (16, 0), (8, 2), (16, 2), (8, 4), (8, 6), (16, 6)]:
    write("png", "color%d_%d" % (color, depth), png(5, 3, depth, color))
write("png", "palette", png(4, 2, 2, 3, before=PALETTE))
write("png", "palette_alpha", png(4, 2, 2, 3, before=PALETTE + chunk(b"tRNS", b"\0\x80\xff")))
write("png", "grey_key", png(4, 2, 8, 0, before=chunk(b"tRNS", b"\0\7")))
write("png", "interlaced", png(9, 9, 8, 2, interlace=1))
write("png", "gamma", png(4, 2, 8, 2, before=chunk(b"gAMA", struct.pack(">I", 45455)) + chunk(b"sBIT", b"\5\6\5")))
write("png", "srgb_16", png(2, 2, 16, 2, before=chunk(b"sRGB", b"\0") + chunk(b"tIME", b"\7\xe5\1\1\1\1\1")))
write("png", "text",
      png(1, 1, 8, 0, before=chunk(b"tEXt", b"Title\0x") + chunk(b"zTXt", b"a\0\0" + zlib.compress(b"y" * 99))))
write("png", "huge", png(0x7FFFFFFF, 0x7FFFFFFF, 16, 6, rows=b""))
write("png", "short", png(64, 64, 8, 2, rows=b"\0"))

# ---- Checkpoints
STATE = {
    "version": 4, "epoch": 1, "global_step": 7,
    "loops": {"epochs_completed": 1, "batches_in_epoch": 3, "batches_ahead": [], "batches_per_epoch": 4,
              "batch_size": 8,
              "total_batches": 7, "train_loaded_at": -1, "val_loaded_at": -1, "records": 2, "accumulate": 1,
              "validated_at": 4, "batches_validated": [2], "stop": False, "due": "nothing",
              "writers_to_come": ["ModelCheckpoint"]},
    "optimizers": ["AdamW"], "lr_schedulers": 1,
    "callbacks": {"EarlyStopping": {"best_score": "0x1.8p-1", "wait_count": "1"}, "levin.data": {}},
    "hparams": [["lr", 0.001], ["layers", 2], ["bias", True], ["name", "mlp"], ["beta", None]],
    "generators": {"net": [1, 18446744073709551615]},
    "log": [{"name": "train_loss", "on_step": True, "on_epoch": True, "prog_bar": False, "logger": True,
             "reduce": "sum",
             "sum": 1.5, "weight": 8.0, "last": None, "fresh": True, "hook": "training_step", "metric": ""}],
    "metrics": [["val_loss", 0.5], ["val_nan", None]],
}


def state(name, **changes):
    changed = json.loads(json.dumps(STATE))
    for path, value in changes.items():
        at = changed
        *parents, key = path.split("__")
        for parent in parents:
            at = at[parent]
        at[key] = value
    write("checkpoint_state", name, json.dumps(changed, separators=(",", ":")))


state("run")
state("version_3", version=3, loops__due=2, log=[dict(STATE["log"][0], reduce=1)])
state("window", loops__accumulate=4, loops__batches_ahead=[3], loops__batches_in_epoch=2)
state("float_as_int", loops__epochs_completed=1e300)
state("negative", loops__records=-1)
state("due", loops__due=9)
state("generator", generators__net=[-1, 0.5])
state("no_log", log=[], metrics=[], callbacks={}, generators={})
write("checkpoint_state", "least", '{"version":3}')
write("checkpoint_state", "deep", "[" * 40 + "]" * 40)
write("checkpoint_state", "numbers",
      '{"version":3,"global_step":-9223372036854775809,"loops":{"records":18446744073709551616}}')
write("checkpoint_state", "repeated", '{"version":2,"version":3,"loops":{},"loops":[]}')
write("checkpoint_file", "weights", safetensors([("w", "F32", [2])]))
write("checkpoint_file", "wrong_hash", safetensors(
    [("w", "F32", [1])], {"levin.state": '{"version":3}', "levin.hashes": '{"levin.state":"0","w":"0","gone":"0"}'}))
write("checkpoint_file", "no_state", safetensors([("levin.optimizer.0.m", "F32", [1])], {"levin.hashes": "{}"}))
write("checkpoint_file", "list_of_hashes", safetensors([], {"levin.state": "{}", "levin.hashes": "[[1],2]"}))

# ---- Texts
write("options", "new",
      "max_epochs=3\nlimit_val_batches=0.25\nmax_time=00:01:00:00\nprofiler=simple\nval_check_interval=1.0\n"
      "precision=bf16-mixed\ndeterministic=warn\ngradient_clip_val=1e-3\nfast_dev_run=true\ncapture=step\n")
write("options", "old", "gpus=0\nuse_amp=true\namp_level=O2\nmax_epochs=1\n")
write("options", "lists", "gpus=[0, 1],\ndevices=2\nstrategy=ddp\nplugins=pipe\n")
write("options", "none", "max_epochs=none\nmax_time=None\nlogger=false\nmemory_limit=1000\nsync_budget=0\n")
write("options", "accelerators", "accelerator=auto\n")
write("options", "not_built", "accelerator=tpu\ntpu_cores=8\nnb_gpu_nodes=2\ndistributed_backend=horovod\n")
write("options", "edges",
      "max_steps=-9223372036854775809\nlimit_train_batches=1e400\nval_check_interval=-0\n"
      "max_time=99999999999:99:99:99\n")
write("options", "unknown", "max_epoch=1\n=\nx\n")
for number, content in enumerate(["d00:01:30:00", "d99:23:59:59", "d1", "d-1:00:00:00",
                                  "eij,jk->ik", "e...ij,...jk->...ik", "eii", "eij,jk,aib->", "e->", "eij->jii", "e...",
                                  "eij,ji",
                                  "f{epoch}-{step}", "f{val_loss:.2f}", "f{a/b:012.3e}x.safetensors", "f{step:d}{",
                                  "f{x:040.30f}",
                                  "n0.5", "n100", "n1e3", "ncuda:0", "ncpu", "n-0x1p3", "n99999999999999999999",
                                  "cstep,epoch,loss\n1,0,0.5\n2,0,\n", 'cstep,epoch,"a,""b"\n1,0,nan\nx,1,2\n3',
                                  "cstep"]):
    write("text", "seed%02d" % number, content)

# ---- Calls of ops: any bytes are a program
rng = random.Random(1)
for number in range(24):
    write("ops", "random%02d" % number, bytes(rng.randrange(256) for _ in range(40 + 8 * number)))

# ---- TU text: a byte of options, then files by their letters
TU = "=A\n1, 2\n2, 1\n1, 2\n3, 3\n5, 6\n=i\n1\n1\n1\n2\n4\n4\n=l\n7\n-1\n7\n2"
write("tu", "plain", "\0" + TU)
write("tu", "ones", "\4" + TU)
write("tu", "labels", "\0" + TU + "\n=n\n3\n5\n3\n4\n3\n3\n=e\n0\n1\n1\n0\n1")
write("tu", "attributes", "\3" + TU + "\n=m\n1.5, -2\n0, 1e1\n1,1\n2,2\n3,3\n4, 4\n=f\n1\n2\n4\n8\n16")
write("tu", "between", "\0=A\n1, 2\n=i\n1\n2\n=l\n1\n1\n")
write("tu", "huge", "\0=A\n=i\n1\n1\n=l\n1\n=n\n-9223372036854775808\n9223372036854775807\n")
write("tu", "folds", "\0=t\n0\n2\n=s\n1\n19\n")

# ---- Stores: a header, a table, sections; the target corrects size and hashes
DTYPES = {"f4": 0, "i4": 4, "i8": 5, "u1": 6, "b1": 7}


def store(sections, keep_hashes=False):
    """Sections are (name, dtype, shape, numbers)."""
    least = sum(56 + 8 * len(shape) + len(name) for name, _, shape, _ in sections)
    table, data, at = b"", b"", 128 + least + -least % 8
    for name, dtype, shape, numbers in sections:
        code = {"f4": "f", "i4": "i", "i8": "q", "u1": "B", "b1": "B"}[dtype]
        content = struct.pack("<%d%s" % (len(numbers), code), *numbers)
        table += struct.pack("<IBBHQQ32s", len(name), DTYPES[dtype], len(shape), 0, at + len(data), len(content), b"")
        table += struct.pack("<%dq" % len(shape), *shape) + name.encode()
        data += content + b"\0" * (-len(content) % 8)
    header = b"LVNSTORE" + struct.pack("<IIQQQ32xIIQ", 1, 0x01020304, 0, len(sections), len(table), 1, 0, 128)
    header = (header + bytes([keep_hashes])).ljust(128, b"\0")
    return header + table + b"\0" * (at - 128 - len(table)) + data


def records(first, fields, *chunks):
    return store([("", *chunk) for chunk in chunks] + [("key", "u1", [1], [107]), ("first", "i8", [len(first)], first),
                                                       ("fields", "i8", [len(fields)], fields)])


PAIR = [("numbers", "i8", [5], [2, 1, 0, 0, 2]), ("name", "u1", [1], [103]), ("crow", "i8", [3], [0, 1, 2]),
        ("col", "i4", [2], [1, 0])]
TURNING = [("numbers", "i8", [5], [2, 1, 1, 0, 2])] + PAIR[1:]
TURNED = [("t_crow", "i8", [3], [0, 1, 2]), ("t_col", "i4", [2], [1, 0]), ("t_edge", "i4", [2], [1, 0])]
write("store", "shared", store([("0", "f4", [2, 1], [1, 2]), ("1", "b1", [2], [0, 1]), ("2", "i8", [], [5])]))
write("store", "none", store([]))
write("store", "empty", store([("0", "f4", [0, 1 << 40, 1 << 40], [])]))
write("store", "wrong_hash", store([("0", "f4", [1], [1])], keep_hashes=True))
write("store", "no_bool", store([("0", "b1", [2], [0, 2])]))
write("store", "records", records([0, 2, 3], [2, 1], ("f4", [2, 1], [1, 2]), ("u1", [2], [3, 4]), ("i8", [1], [5])))
write("store", "records_none", records([0], []))
write("store", "records_huge", records([0, 1 << 40], [1], ("f4", [1 << 40, 0], [])))
write("store", "graph", store(PAIR))
write("store", "graph_turned", store(TURNING + TURNED))
write("store", "graph_half", store(TURNING + TURNED[1:]))
write("store", "graph_nodes", store(PAIR + [("x", "f4", [2, 1], [1, 2]), ("y", "i8", [2], [0, 1]),
                                            ("train", "i8", [1], [1])]))
write("store", "graph_class", store(PAIR + [("y", "i8", [2], [0, 2])]))
write("store", "graph_promise", store([("numbers", "i8", [5], [2, 7, 1, 0, 2])] + PAIR[1:]))

# ---- Planetoid: a byte of options, then arrays: file, dtype, rank, dimensions, a byte an element
PLANETOID = (bytes([0, 0, 2, 2, 5, 2, 1, 0, 0, 3, 2, 0, 1, 1, 0]) + bytes([1, 1, 1, 4, 0, 1, 1, 2]))
SPLIT = bytes([7, 0, 1, 2, 3, 0, 11, 4, 1, 4, 0, 1, 0, 0, 9, 1, 1, 1, 2])
SPARSE = (bytes([3, 2, 1, 5, 72, 72, 80, 80, 96, 4, 1, 1, 5, 0, 2, 1, 0, 1]) +
          bytes([5, 0, 1, 5, 0, 2, 3, 3, 5, 6, 0, 1, 2, 4, 3]))
write("planetoid", "plain", b"\0" + PLANETOID + SPLIT)
write("planetoid", "dense", b"\0" + PLANETOID + SPLIT + bytes([2, 3, 2, 4, 1, 72, 64, 80, 66]))
write("planetoid", "dense_to_sparse", b"\x40" + PLANETOID + SPLIT[:-1] + b"\2" + bytes([2, 5, 2, 4, 1, 7, 0, 8, 9]))
write("planetoid", "sparse", b"\x43" + PLANETOID + SPLIT + SPARSE)
write("planetoid", "sparse_to_dense", b"\0" + PLANETOID + SPLIT + SPARSE)
write("planetoid", "full", b"\1" + PLANETOID + SPLIT)
write("planetoid", "random", b"\2" + PLANETOID + bytes([1, 0, 1, 6, 0, 1, 1, 2, 0, 1]))
write("planetoid", "not_a_number", b"\0" + PLANETOID + SPLIT + bytes([2, 2, 2, 4, 1, 255, 254, 80, 66]))
