"""What a trainer does on its card today, by torch alone, for what a shard does to a step's gradients.

Two contributions in bf16 are there. In turn, with the bytes that each reads and writes an element:

    sum = first contribution in fp32       2 + 4
    sum += second contribution             2 + 4 + 4
    norm of the sum                        4
    sum *= clip / norm, where it is above  4 + 4
    torch.optim.AdamW(fused=True)          16 + 12    reads sum, parameter and two moments, writes the last three
    cast to bf16                           4 + 2

62 in all; `cairn bench update` counts 38 for the same work. The update is timed alone, too. No kernel is compiled
for it and nothing is captured in a graph: it is what the libraries give.
"""

import argparse
import statistics
import sys

import torch

PIECE = 25_000_000  # elements of a tensor


def pieces(params, dtype, device, like=None):
    sizes = [min(PIECE, params - at) for at in range(0, params, PIECE)]
    make = torch.zeros if like is None else lambda n, **kw: torch.full((n,), like, **kw)
    return [make(n, dtype=dtype, device=device) for n in sizes]


def seconds(call, device, runs):
    """Median, least and greatest of the runs, after three that are not counted."""
    taken = []
    for run in range(runs + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize(device)
        if run >= 3:
            taken.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(taken), min(taken), max(taken)


def show(what, params, bytes_per_param, times):
    rates = [bytes_per_param * params / s * 1e-9 for s in times]
    print(f"note: {what}, {params / 1e6:.0f} M parameters: {times[0] * 1e3:.3f} ms ({times[1] * 1e3:.3f} to "
          f"{times[2] * 1e3:.3f}), {rates[0]:.0f} GB/s of {bytes_per_param} bytes each", flush=True)
    return times[0]


def beside(what, taken, cairn, aim):
    if cairn is not None:
        print(f"note: {what} takes {taken / cairn:.3f} of Cairn's {cairn * 1e3:.3f} ms (the aim: {aim} or more)",
              flush=True)


class Trainer:
    def __init__(self, params, device):
        self.contributions = [pieces(params, torch.bfloat16, device, like=x) for x in (1e-3, -5e-4)]
        self.sums = pieces(params, torch.float32, device)
        self.params = [torch.nn.Parameter(p) for p in pieces(params, torch.float32, device)]
        self.published = pieces(params, torch.bfloat16, device)
        self.optim = torch.optim.AdamW(self.params, lr=1e-3, fused=True)
        for p, s in zip(self.params, self.sums):
            p.grad = s

    def add(self):
        first, second = self.contributions
        torch._foreach_copy_(self.sums, first)
        for s, g in zip(self.sums, second):  # fp32 += bf16 in one kernel
            s.add_(g)

    def clip(self):
        torch.nn.utils.clip_grad_norm_(self.params, 0.5, foreach=True)

    def cast(self):
        torch._foreach_copy_(self.published, [p.detach() for p in self.params])

    def step(self):
        self.add()
        self.clip()
        self.optim.step()
        self.cast()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=int, default=100_000_000)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--cairn", type=float, help="seconds of `cairn bench update` for as many parameters")
    parser.add_argument("--cairn-adamw", type=float, help="the same with --only adamw")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("skip: torch sees no card")
        return 77
    device, n = torch.device("cuda", 0), args.params
    if torch.cuda.mem_get_info(device)[0] < 24 * n:
        print(f"skip: {n} parameters take {24 * n} bytes, the card has {torch.cuda.mem_get_info(device)[0]}")
        return 77
    with torch.no_grad():
        source = torch.empty(13 * n, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        show("copy on the device", n, 26, seconds(lambda: target.copy_(source), device, args.runs))
        del source, target
    trainer = Trainer(n, device)
    trainer.step()
    taken = show("AdamW(fused=True) alone", n, 28, seconds(trainer.optim.step, device, args.runs))
    beside("it", taken, args.cairn_adamw, 1.0)
    for name, size in (("add", 16), ("clip", 12), ("cast", 6)):
        show(name, n, size, seconds(torch.no_grad()(getattr(trainer, name)), device, args.runs))
    taken = show("all that a trainer does today", n, 62, seconds(torch.no_grad()(trainer.step), device, args.runs))
    beside("it", taken, args.cairn, 1.5)
    return 0


if __name__ == "__main__":
    sys.exit(main())
