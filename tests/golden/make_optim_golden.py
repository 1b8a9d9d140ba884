#!/usr/bin/env python3
"""Writes optim_golden.h: parameters after STEPS steps of torch.optim, as fp32 bit patterns.

Inputs are made of integers by `number`, which tests/unit/test_optim.c has in C too, so the header
carries results only. Run where `import torch` works (see README.md):

    python3 tests/golden/make_optim_golden.py > tests/golden/optim_golden.h
"""
import struct
import torch

ELEMS, STEPS = 256, 50

# name in the registry, hyper-parameters, and max_norm (0: no clipping)
CASES = [
    ("adamw", dict(lr=1e-3, weight_decay=0.01), 0),
    ("adamw", dict(lr=3e-4, beta1=0.9, beta2=0.95, weight_decay=0.1), 1),
    ("adamw", dict(lr=1e-2, weight_decay=0.0, eps=1e-6), 0),
    ("adam", dict(lr=1e-3), 0),
    ("adam", dict(lr=1e-3, weight_decay=0.01), 0),
    ("adam", dict(lr=1e-2, beta1=0.8, beta2=0.99), 0.5),
    ("sgd", dict(lr=1e-2), 0),
    ("sgd", dict(lr=1e-2, weight_decay=1e-2), 0),
    ("sgd", dict(lr=1e-2, momentum=0.9), 0),
    ("sgd", dict(lr=1e-2, momentum=0.9, weight_decay=1e-2), 1),
    ("sgd", dict(lr=1e-2, momentum=0.9, nesterov=1), 0),
    ("sgd", dict(lr=1e-2, momentum=0.9, nesterov=1, weight_decay=1e-2), 0),
]
FIELDS = ["lr", "beta1", "beta2", "eps", "weight_decay", "momentum", "nesterov"]
DEFAULTS = {
    "adamw": dict(beta1=0.9, beta2=0.999, eps=1e-8),
    "adam": dict(beta1=0.9, beta2=0.999, eps=1e-8),
    "sgd": dict(),
}


def mix(x):
    """A 32-bit integer hash (Wellons' lowbias32)."""
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16


def number(element, step):
    """24 random bits in [-1, 1), then made smaller by up to 2^-15; element by element another scale."""
    bits = mix(element * 977 + step * 65537 + 1)
    whole = (bits >> 8) - (1 << 23)
    return whole / (1 << 23) / (1 << (element * 7 % 16))


def vector(step):
    return torch.tensor([number(i, step) for i in range(ELEMS)], dtype=torch.float32)


def optimizer(name, h, p):
    betas = (h.get("beta1"), h.get("beta2"))
    decay = h.get("weight_decay", 0)
    if name == "adamw":
        return torch.optim.AdamW([p], h["lr"], betas, h["eps"], decay)
    if name == "adam":
        return torch.optim.Adam([p], h["lr"], betas, h["eps"], decay)
    momentum = h.get("momentum", 0)
    return torch.optim.SGD([p], h["lr"], momentum, 0, decay, bool(h.get("nesterov")))


def run(name, h, max_norm):
    p = torch.nn.Parameter(vector(0))
    o = optimizer(name, h, p)
    for step in range(1, STEPS + 1):
        p.grad = vector(step)
        if max_norm > 0:
            torch.nn.utils.clip_grad_norm_([p], max_norm)
        o.step()
    return p.detach().tolist()


def bits(x):
    return "0x%08x" % struct.unpack("<I", struct.pack("<f", x))[0]


print("/* Made by make_optim_golden.py with torch %s. Do not edit. */" % torch.__version__)
print("// clang-format off")
print("#define GOLDEN_ELEMS %d\n#define GOLDEN_STEPS %d" % (ELEMS, STEPS))
print("struct golden {\n    const char *optimizer;\n    double %s;" % ", ".join(FIELDS))
print("    double max_norm;\n    uint32_t param[GOLDEN_ELEMS]; /* fp32 bits */\n};")
print("static const struct golden golden[] = {")
for name, changes, max_norm in CASES:
    h = {**DEFAULTS[name], **changes}
    print('{ "%s", %s, %r, {' % (name, ", ".join(repr(h.get(f, 0)) for f in FIELDS), max_norm))
    values = [bits(x) for x in run(name, h, max_norm)]
    for i in range(0, ELEMS, 10):
        print(", ".join(values[i:i + 10]) + ",")
    print("} },")
print("};")
