"""What the peers share: options, two processes over gloo, the clock, and one JSON line as cairn bench -o json prints.

A peer is what people use today for the work that Cairn does, in PyTorch. Its file makes a step out of its options
(`run`, below) and says what is inside the clock: nothing else is. Gradients are made outside it.

The model is that of `cairn bench step`: equal matrices of 1,024 columns, fp32, which begin as zeros. A peer that this
torch does not have prints {"bench": ..., "absent": why} and ends with status 77.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

# Threads of OpenMP that wait spin by default, which costs torch many times its time where others use the cores, too.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

ABSENT = 77
COLUMNS = 1024
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)


class Absent(Exception):
    """This torch, or this machine, cannot do it; the text says why."""


def options_of(text: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=int, default=64_000_000, help="elements of the model (64000000)")
    parser.add_argument("--tensors", type=int, default=64, help="equal matrices that it consists of (64)")
    parser.add_argument("--runs", type=int, default=5, help="measured steps, after one that is not (5)")
    parser.add_argument("--limit", type=int, default=240, help="seconds after which it gives up (240)")
    parser.add_argument("--rank", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--store", default=None, help=argparse.SUPPRESS)
    return parser


def cores() -> int:
    return len(os.sched_getaffinity(0))


def shapes(asked: argparse.Namespace) -> list:
    rows = -(-asked.params // (asked.tensors * COLUMNS))
    return [(rows, COLUMNS)] * asked.tensors


def machine() -> dict:
    def first(path: str, word: str) -> str:
        lines = Path(path).read_text().splitlines()
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(word)), "unknown")

    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": first("/proc/cpuinfo", "model name"), "cores": cores(), "memory_bytes": pages,
            "kernel": platform.release()}


def median(values: list) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


# ---- memory and time ----


def judge_memory(bytes_needed: int) -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    if bytes_needed > free:
        raise Absent(f"it needs about {bytes_needed >> 20} MiB and {free >> 20} are free; give fewer --params")


def give_up(*_: object) -> None:
    print("the peer's --limit of seconds is over", file=sys.stderr, flush=True)
    os._exit(124)


# ---- processes ----


def join(asked: argparse.Namespace, processes: int) -> None:
    import torch.distributed as dist

    if processes > 1:
        dist.init_process_group("gloo", init_method=f"file://{asked.store}", rank=asked.rank, world_size=processes,
                                timeout=datetime.timedelta(seconds=asked.limit))


def start_all(processes: int) -> int:
    """One process a rank, of this same script; all of them end here, rank 0 as the last. Its status, or that of another
    that failed."""
    environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo", PYTHONDONTWRITEBYTECODE="1")
    with tempfile.TemporaryDirectory(prefix="cairn-peer-") as folder:
        ranks = [subprocess.Popen([sys.executable, *sys.argv, "--rank", str(rank), "--store", f"{folder}/store"],
                                  env=environment) for rank in range(processes)]
        try:
            while all(rank.poll() in (None, 0) for rank in ranks) and ranks[0].poll() is None:
                time.sleep(0.05)  # one that failed leaves the other waiting
            if any(rank.poll() == ABSENT for rank in ranks):  # the first says why; it may not have come to that yet
                with contextlib.suppress(subprocess.TimeoutExpired):
                    ranks[0].wait(30)
            statuses = [rank.poll() for rank in ranks if rank.poll()]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return statuses[0] if statuses else 0


# ---- the clock ----


def measure(step: Callable, prepare: Callable, runs: int, processes: int) -> list:
    """Seconds of the slowest process, of each run but the first, which makes the optimizer's state."""
    import torch
    import torch.distributed as dist

    seconds = []
    for _ in range(1 + runs):
        prepare()
        if processes > 1:
            dist.barrier()
        begin = time.perf_counter()
        step()
        took = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
        if processes > 1:
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
        seconds.append(took.item())
    return seconds[1:]


def work(bench: str, asked: argparse.Namespace, make: Callable, processes: int) -> dict:
    import torch

    rows, columns = shapes(asked)[0]
    elems = rows * columns * asked.tensors
    threads = max(1, cores() // processes)
    torch.set_num_threads(threads)
    join(asked, processes)
    step, prepare, said = make(asked)
    seconds = measure(step, prepare, asked.runs, processes)
    return {"bench": bench, "value": median(seconds), "value_min": min(seconds), "value_max": max(seconds),
            "unit": "s", "runs": len(seconds), "machine": machine(),
            "params": {"params": elems, "tensors": asked.tensors, "processes": processes, "threads": threads,
                       "torch": torch.__version__, **said}}


def run(bench: str, asked: argparse.Namespace, make: Callable, processes: int, bytes_each: int) -> None:
    """Ends the program. make(asked) gives the step, what is done before each outside the clock, and words of it for
    the JSON. bytes_each: memory a process takes for an element, at most."""
    if asked.params < 1 or asked.runs < 1 or asked.tensors < 1:
        sys.exit("--params, --runs and --tensors are at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    status, result = 0, {}
    try:
        if asked.rank is None:
            judge_memory(asked.params * bytes_each * processes)
        if processes > 1 and asked.rank is None:
            sys.exit(start_all(processes))
        signal.signal(signal.SIGALRM, give_up)
        signal.alarm(asked.limit)
        result = work(bench, asked, make, processes)
    except (Absent, ImportError) as why:
        status, result = ABSENT, {"bench": bench, "absent": " ".join(str(why).split()), "machine": machine()}
    if not asked.rank:
        print(json.dumps(result, sort_keys=True), flush=True)
    os._exit(status)  # gloo's threads need not be waited for


def nothing() -> None:
    pass
