#!/usr/bin/env python3
"""The .metadata of DCP folders, which is a pickle: all files of the corpus as they are, then changed ones, opcode by
opcode and byte by byte, for some seconds. Whatever they say: JSON of the promised form, or a line that can be printed;
no code is run, nothing is opened or imported, no other exception, and memory and time have an end. Most are judged in
this process; one in a while by the program that import_checkpoint starts, which must say the same.

usage: fuzz_metadata.py CORPUS_FOLDER SECONDS [SEED]

What makes it fail is left as ./fuzz_metadata.failed; the seed is printed.
"""

import importlib.util
import json
import mmap
import os
import pickletools
import random
import resource
import signal
import struct
import subprocess
import sys
import time
import types
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "client/python/cairn/_metadata.py"
FAILED = "fuzz_metadata.failed"
INPUT_BYTES_MAX, MEMORY_BYTES = 1 << 16, 1 << 30
CHANGES_MAX, BATCH, BATCH_S, CHILD_EACH_S, CHILD_S = 6, 64, 60, 0.5, 60
OPCODES = [op.code.encode("latin-1") for op in pickletools.opcodes]
NUMBERS = [0, 1, 2, 3, 255, 256, 65535, (1 << 31) - 1, -1, -(1 << 31), 1 << 32, (1 << 63) - 1, 1 << 63, -(1 << 70),
           1 << 4000]
TEXTS = ["", ".", "..", "../x", "/etc/passwd", "a\nb", "\x1b[2J", "\x00", "\ud800", "posix", "system", "builtins",
         "eval", "getattr", "canary", "call", "__class__", "__setstate__", "__dict__", "__reduce__", "state", "given",
         "fqn", "offset", "dtype", "torch", "Size", "x" * 300]
# Whole calls: by name, by mark, by object, out of the registry, elsewhere, and what a state may set on a name.
CALLS = [b"ccanary\ncall\n(tR", b"(icanary\ncall\n", b"(ccanary\ncall\no", b"\x8c\x06canary\x8c\x04call\x93)\x81",
         b"\x82\x01", b"Pcanary\n", b"\x8c\x06canaryQ", b"ctorch\nSize\nN}\x8c\x0c__defaults__)s\x86b",
         b"ccollections\nOrderedDict\n)R", b"cbuiltins\nset\n(tR", b"cbuiltins\nlist\n(tR", b"2", b"0", b"}", b"]",
         b")", b"N", b"(", b"a", b"s", b"b", b"R"]
DTYPES = {"f32", "bf16", "f16", "f64", "i64", "i32", "i16", "i8", "u8", "bool"} | set(
    "complex32 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "float4_e2m1fn_x2 uint16 uint32 uint64 qint8 qint32 quint8 quint4x2 quint2x4".split())


# ---- what must not happen ----

ran = []  # of the canary, and what Python reports of files, imports, processes, ...
judging = False


def watch(event, _arguments):
    if judging and event != "sys.excepthook":  # Python's own word on a bytearray that it had no memory for
        ran.append(event)


def plant_canary():
    canary = types.ModuleType("canary")
    canary.call = lambda *given, **named: ran.append("canary")
    sys.modules["canary"] = canary
    sys.addaudithook(watch)
    sys.excepthook = lambda *why: None if judging else sys.__excepthook__(*why)


def load_program():
    spec = importlib.util.spec_from_file_location("metadata", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_line(text):
    return 0 < len(text) <= 400 and text.isprintable()


def is_count(value):
    return type(value) is int and 0 <= value < 1 << 63


def is_catalog(text):
    for key, entry in json.loads(text).items():
        assert isinstance(key, str) and set(entry) <= {"path", "shape", "dtype", "chunks"}
        assert entry["path"] and all(isinstance(part, str) or is_count(part) for part in entry["path"])
        assert "shape" not in entry or all(map(is_count, entry["shape"])) and entry["dtype"] in DTYPES
        for chunk in entry["chunks"]:
            assert chunk["file"] and "/" not in chunk["file"] and chunk["file"].isprintable()
            assert not chunk["file"].startswith(".") and is_count(chunk["at"]) and is_count(chunk["bytes"])
            assert len(chunk.get("offsets", ())) == len(chunk.get("sizes", ())) == len(entry.get("shape", ()))
    return True


# ---- changes ----

def tokens_of(data):
    """Its opcodes with their arguments; what follows the first that is none is one more."""
    cuts = [0]
    try:
        cuts = [at for _, _, at in pickletools.genops(data)]
    except Exception:  # it is cut, or was never a pickle
        pass
    return [data[a:b] for a, b in zip(cuts, cuts[1:] + [len(data)])]


def number(r):
    n = r.choice(NUMBERS) if r.random() < 0.7 else r.getrandbits(r.randrange(1, 80))
    length = n.bit_length() // 8 + 1
    data = n.to_bytes(length, "little", signed=True)
    return b"\x8a" + bytes([length]) + data if length < 256 else b"\x8b" + struct.pack("<i", length) + data


def text(r):
    data = r.choice(TEXTS).encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def count_in(r, token):
    """The length, index or count behind the opcode is another; what follows stays."""
    width = {b"\x8c": 1, b"U": 1, b"C": 1, b"h": 1, b"q": 1, b"\x8a": 1, b"\x82": 1, b"\x83": 2, b"X": 4, b"B": 4,
             b"T": 4, b"j": 4, b"r": 4, b"\x84": 4, b"\x8b": 4, b"\x95": 8, b"\x8d": 8, b"\x8e": 8,
             b"\x96": 8}.get(token[:1], 0)
    if len(token) <= width or width == 0:
        return token
    n = r.choice((0, 1, 2, 255, 1 << 16, 1 << 20, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, (1 << 64) - 1,
                  r.getrandbits(6)))
    return token[:1] + (n & (1 << 8 * width) - 1).to_bytes(width, "little") + token[1 + width:]


def change_tokens(r, tokens, others):
    at = r.randrange(len(tokens) + 1)
    here, some = min(at, len(tokens) - 1), 1 + r.randrange(8)
    kind = r.randrange(9)
    if kind == 0:
        del tokens[at:at + some]
    elif kind == 1:
        tokens[at:at] = tokens[at:at + some]
    elif kind == 2:
        first = r.randrange(len(others))
        tokens[at:at + r.randrange(3)] = others[first:first + some]
    elif kind == 3:
        tokens[at:at] = [r.choice(CALLS)]
    elif kind == 4:
        tokens[at:at] = [r.choice(OPCODES) + r.randbytes(r.randrange(5))]
    elif tokens and kind == 5:
        tokens[here] = count_in(r, tokens[here])
    elif tokens and kind == 6:
        tokens[here] = number(r)
    elif tokens and kind == 7:
        tokens[here] = text(r)
    elif tokens:
        other = r.randrange(len(tokens))
        tokens[here], tokens[other] = tokens[other], tokens[here]


def change_bytes(r, data):
    data = bytearray(data)
    for _ in range(1 + r.randrange(4)):
        if data:
            data[r.randrange(len(data))] = r.randrange(256)
    return bytes(data[:r.randrange(len(data) + 1)] if r.random() < 0.1 else data)


def changed(r, corpus):
    tokens = list(r.choice(corpus))
    for _ in range(r.choice((1, 1 + r.randrange(CHANGES_MAX)))):
        change_tokens(r, tokens, r.choice(corpus))
    data = b"".join(tokens)
    return (change_bytes(r, data) if r.random() < 0.2 else data)[:INPUT_BYTES_MAX]


# ---- a trial ----

class Trials:
    def __init__(self, shown):
        self.program, self.shown = load_program(), shown
        self.count = self.taken = self.children = 0
        self.child_due_s = 0.0

    def run(self, data):
        global judging
        self.shown[:8 + len(data)] = struct.pack("<Q", len(data)) + data
        judging = True
        try:
            catalog, said = self.program.judge(data)
        finally:
            judging = False
        assert not ran, f"code was run: {ran}"
        assert is_line(said) if catalog is None else said is None and is_catalog(catalog), said
        self.count += 1
        self.taken += catalog is not None
        return catalog, said

    def run_child(self, data, expected):
        """By the program: in a process of its own, with its limits."""
        path = Path(FAILED + ".child")
        path.write_bytes(data)
        ran_child = subprocess.run([sys.executable, "-I", str(PROGRAM), str(path)], capture_output=True, text=True,
                                   timeout=CHILD_S, stdin=subprocess.DEVNULL)
        path.unlink()
        catalog, said = expected
        assert ran_child.returncode == (catalog is None), ran_child
        assert "memory" in (said or "") or ran_child.stdout.strip() == (catalog or ""), ran_child
        assert "memory" in (said or "") or ran_child.stderr.strip().endswith((said or "").strip()), ran_child
        self.children += 1
        self.child_due_s = time.monotonic() + CHILD_EACH_S


def try_all(shown, folder, seconds, seed):
    r, end_s = random.Random(seed), time.monotonic() + seconds
    files = sorted(Path(folder).iterdir())
    if not files:
        sys.exit(f"{folder} has no file")
    corpus = [tokens_of(file.read_bytes()) for file in files]
    trials = Trials(shown)
    plant_canary()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for tokens in corpus:
        data = b"".join(tokens)
        trials.run_child(data, trials.run(data))
    while time.monotonic() < end_s:
        signal.alarm(BATCH_S)  # not handled: unpickling that hangs is ended by it
        for _ in range(BATCH):
            data = changed(r, corpus)
            answer = trials.run(data)
        if time.monotonic() > trials.child_due_s:
            trials.run_child(data, answer)
    signal.alarm(0)
    print(f"{len(files)} files, {trials.count} changed ones, {trials.taken} of them taken, {trials.children} in a "
          "process of its own", flush=True)


def main(folder, seconds, seed):
    """In a child, which an input may end however it likes: the bytes are in memory that both see."""
    print(f"seed {seed}", flush=True)
    shown = mmap.mmap(-1, 8 + INPUT_BYTES_MAX)
    pid = os.fork()
    if pid == 0:
        try_all(shown, folder, seconds, seed)
        return 0
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        Path(FAILED).write_bytes(shown[8:8 + struct.unpack("<Q", shown[:8])[0]])
        print(f"ended with {status}: the input is in {FAILED}", file=sys.stderr)
    return int(status != 0)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else time.time_ns()))
