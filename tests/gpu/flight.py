#!/usr/bin/env python3
"""How much of bf16 contributions the kernels of a fold have in flight, read off their machine code: at least 32 KiB a
multiprocessor with one source and with two, which is what hides the latency of a card's memory (Little's law: 4.8 TB/s
times some 800 ns are 3.8 MB, over 132 multiprocessors 29 KB). Loads count from where they are issued until the first of
them is used; a branch ends the count.

  tests/gpu/flight.py [NVCC]    exit status 77 where there is no nvcc; with CAIRN_TEST_LONG=1 for all cards

Instructions have 128 bits from compute capability 7.0 on: the opcode is in bits 0 to 11, its bits 9 to 11 say what the
second operand is, registers are in bits 16 to 23 (result), 24 to 31, 32 to 39 and 64 to 71 (operands), the width of a
load in bits 73 to 75."""
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from ptx import FLAGS, ROOT, nvcc_or_skip

CARDS = ("sm_80", "sm_90", "sm_100", "sm_120") if os.environ.get("CAIRN_TEST_LONG") else ("sm_90", "sm_100")
KERNELS = ("cairn_kernel_fold", "cairn_kernel_fold_sums")
LEAST_BYTES = 32 << 10
REGISTERS, REGISTER_UNIT = 65536, 8  # of a multiprocessor, all four cards; of a thread, rounded up to this
WARPS_MAX = {"sm_80": 64, "sm_90": 64, "sm_100": 64, "sm_120": 48}
BLOCK_WARPS, LANES = 8, 32  # of these kernels in CAIRN_KERNELS (gpu/kernel/list.h), CAIRN_KERNEL_WARP

LOADS = (0x980, 0x981)  # LD, LDG
WIDTHS = {4: 4, 5: 8, 6: 16}
# BRA, BRX, JMP, EXIT, CALL, RET, BSSY, BSYNC
BRANCHES = (0x947, 0x949, 0x94A, 0x94D, 0x943, 0x944, 0x950, 0x945, 0x941)
BF16_ROW = 8  # bytes of one access


def sections(elf):
    """(name, bytes) of each section of a 64-bit ELF file."""
    at, entry, count, names = (struct.unpack_from(form, elf, where)[0]
                               for form, where in (("<Q", 0x28), ("<H", 0x3A), ("<H", 0x3C), ("<H", 0x3E)))
    heads = [struct.unpack_from("<IIQQQQIIQQ", elf, at + i * entry) for i in range(count)]
    table = heads[names][4]
    for head in heads:
        name = elf[table + head[0]:elf.index(b"\0", table + head[0])].decode()
        yield name, elf[head[4]:head[4] + head[5]]


def in_flight(code):
    """Of each stretch without a branch, how many loads of a row are issued before the first of them is used."""
    runs, waiting, rows = [], set(), 0
    for low, high in struct.iter_unpack("<QQ", code):
        opcode = low & 0xFFF
        operands = {low >> 24 & 0xFF, high & 0xFF}
        if opcode >> 9 == 1:  # the second operand is a register, too
            operands.add(low >> 32 & 0xFF)
        if opcode in BRANCHES or operands & waiting:
            runs.append(rows)
            waiting, rows = set(), 0
        width = WIDTHS.get(high >> 9 & 7) if opcode in LOADS else None
        if width is not None:
            first = low >> 16 & 0xFF
            waiting.update(range(first, first + width // 4))
            rows += width == BF16_ROW
    return runs + [rows]


def warps(registers, card):
    """As many blocks as have room at a time."""
    taken = -(-registers // REGISTER_UNIT) * REGISTER_UNIT * LANES * BLOCK_WARPS
    return min(REGISTERS // taken * BLOCK_WARPS, WARPS_MAX[card])


def judge(nvcc, card, folder):
    """The kernels of which fewer than two stretches, of one source and of two, have enough in flight."""
    out = Path(folder, card + ".cubin")
    said = subprocess.run([nvcc, *FLAGS, "-O3", f"-arch={card}", "-cubin", "-Xptxas", "-v", f"-I{ROOT}", "-o", out,
                           ROOT / "gpu/cuda/kernels.cu"], check=True, capture_output=True, text=True)
    registers = dict(re.findall(r"entry function '(\w+)'.*?Used (\d+) registers", said.stdout + said.stderr, re.S))
    bad = []
    for name, code in sections(out.read_bytes()):
        kernel = name.removeprefix(".text.")
        if kernel not in KERNELS:
            continue
        at_a_time = warps(int(registers[kernel]), card)
        bytes_of = [rows * BF16_ROW * LANES * at_a_time for rows in in_flight(code)]
        enough = sorted((b for b in bytes_of if b >= LEAST_BYTES), reverse=True)
        print(f"{card} {kernel}: {registers[kernel]} registers, {at_a_time} warps, KiB in flight:",
              " ".join(str(b >> 10) for b in enough))
        if len(enough) < 2:
            bad.append(f"{card} {kernel}")
    return bad


def main():
    nvcc = nvcc_or_skip("the machine code of the kernels is not read")
    if nvcc is None:
        return 77
    with tempfile.TemporaryDirectory() as folder:
        bad = [one for card in CARDS for one in judge(nvcc, card, folder)]
    for one in bad:
        print(f"{one}: less than {LEAST_BYTES >> 10} KiB of bf16 in flight with one source, or with two")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
