#!/usr/bin/env python3
"""Writes schedule_golden.h: learning rates of torch.optim.lr_scheduler, round by round, as doubles' bits.

The lambdas are those of Hugging Face transformers, optimization.py (get_linear_schedule_with_warmup,
get_cosine_schedule_with_warmup, get_wsd_schedule with decay_type linear), written down once more here so that
only torch is needed. Run where `import torch` works (see README.md):

    python3 tests/golden/make_schedule_golden.py > tests/golden/schedule_golden.h
"""
import math
import struct
import torch
from torch.optim import lr_scheduler

STEPS = 40  # rounds of each case


def warm(w, f):
    return lambda k: k / max(1, w) if k < w else f(k)


def linear(w, t):
    return warm(w, lambda k: max(0.0, (t - k) / max(1, t - w)))


def cosine(w, t):
    # Hugging Face's rises again behind t; ours stays at the end, so the rounds behind t are cut off here.
    return warm(w, lambda k: max(0.0, 0.5 * (1.0 + math.cos(math.pi * 0.5 * 2.0 * min(1.0, (k - w) / (t - w))))))


def wsd(w, t, d, ratio):
    def f(k):
        if k < t - d:
            return 1.0
        if k < t:
            return max(0.0, (1 - ratio) * (1.0 - (k - (t - d)) / d) + ratio)
        return ratio
    return warm(w, f)


def annealing(t, low):
    return lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=t, eta_min=low)


def by_lambda(f):
    return lambda opt: lr_scheduler.LambdaLR(opt, f)


def points(*list_of):
    """Piecewise linear, by numpy.interp's rule: flat outside."""
    def f(k):
        if k <= list_of[0][0]:
            return list_of[0][1]
        for (s0, f0), (s1, f1) in zip(list_of, list_of[1:]):
            if k <= s1:
                return f0 + (f1 - f0) * (k - s0) / (s1 - s0)
        return list_of[-1][1]
    return f


TABLE = ((5, 1.0), (10, 0.25), (11, 2.0), (30, 0.0))
# kind, lr, warmup, total, decay, lr_min, points, scheduler, rounds that are compared
CASES = [
    ("CONSTANT", 1e-3, 0, 0, 0, 0.0, (), by_lambda(warm(0, lambda k: 1.0)), STEPS),
    ("CONSTANT", 3e-4, 7, 0, 0, 0.0, (), by_lambda(warm(7, lambda k: 1.0)), STEPS),
    ("LINEAR", 1e-3, 0, 30, 0, 0.0, (), by_lambda(linear(0, 30)), STEPS),
    ("LINEAR", 5e-5, 10, 33, 0, 0.0, (), by_lambda(linear(10, 33)), STEPS),
    ("COSINE", 1e-3, 0, 30, 0, 0.0, (), by_lambda(cosine(0, 30)), STEPS),
    ("COSINE", 6e-4, 9, 37, 0, 0.0, (), by_lambda(cosine(9, 37)), STEPS),
    # torch's own, in its recursive form; it rises again behind T_max
    ("COSINE", 0.1, 0, 25, 0, 1e-3, (), annealing(25, 1e-3), 26),
    ("WSD", 1e-3, 5, 30, 10, 0.0, (), by_lambda(wsd(5, 30, 10, 0.0)), STEPS),
    ("WSD", 2e-3, 0, 35, 35, 2e-4, (), by_lambda(wsd(0, 35, 35, 0.1)), STEPS),
    ("TABLE", 1e-2, 0, 0, 0, 0.0, TABLE, by_lambda(points(*TABLE)), STEPS),
    ("TABLE", 1e-2, 3, 0, 0, 0.0, TABLE, by_lambda(warm(3, points(*TABLE))), STEPS),
]


def rates(lr, make, rounds):
    opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler, out = make(opt), []
    for _ in range(STEPS):
        out.append(opt.param_groups[0]["lr"])
        opt.step()
        scheduler.step()
    return out[:rounds]


def bits(x):
    return "0x%016xull" % struct.unpack("<Q", struct.pack("<d", x))[0]


def main():
    print(f"/* Made by make_schedule_golden.py with torch {torch.__version__}: do not edit. */")
    print("#ifndef CAIRN_TESTS_SCHEDULE_GOLDEN_H\n#define CAIRN_TESTS_SCHEDULE_GOLDEN_H\n")
    print('#include <stdint.h>\n\n#include "proto/spec/schedule.h"\n')
    print(f"#define GOLDEN_STEPS {STEPS}\n")
    print("static const struct cairn_schedule_point golden_points[] = {")
    print("    " + ", ".join("{ %d, %r }" % p for p in TABLE) + "\n};")
    print("static const struct {\n    struct schedule schedule;\n    double lr;\n    int rounds;")
    print("    uint64_t rates[GOLDEN_STEPS]; /* bits */\n} golden[] = {")
    for kind, lr, w, t, d, low, table, make, rounds in CASES:
        with_points = f"golden_points, {len(table)}" if table else "0, 0"
        print(f"    {{ {{ CAIRN_SCHEDULE_{kind}, {w}, {t}, {d}, {low!r}, {with_points} }}, {lr!r}, {rounds}, {{")
        row = [bits(x) for x in rates(lr, make, rounds)]
        for i in range(0, len(row), 4):
            print("        " + ", ".join(row[i:i + 4]) + ",")
        print("    } },")
    print("};\n\n#endif")


main()
