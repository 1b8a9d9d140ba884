#!/usr/bin/env python3
"""Every fp32 and fp64 operation of the device's kernels rounds once, to nearest, and keeps subnormals: no fused
multiply-add, no flush to zero, no approximation in their PTX, and .rn on each that rounds. And it would be found: with
each flag turned around there is one.

  tests/gpu/ptx.py [NVCC]    exit status 77 where there is no nvcc"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"]
# Of floats alone: mad.lo.s64 is an address.
FORBIDDEN = re.compile(r"\b(?:fma|mad)\.[\w.]*f(?:16|32|64)\b|\b[\w.]+\.(?:ftz|approx)\b[\w.]*|"
                       r"\b\w+\.full\.[\w.]*f32\b")
# An operation of floats that rounds, and a conversion that may: without .rn a compiler may fuse or choose. Those to
# integers and to the wider float do not round, or say how.
ROUNDS = re.compile(r"\b(?:add|sub|mul|div|sqrt|rcp)\.(?:[\w]+\.)*f(?:32|64)\b|"
                    r"\bcvt\.(?:[\w]+\.)*f(?:16|32|64)\.[suf](?:8|16|32|64)\b")
TO_WIDER = re.compile(r"\bcvt\.f64\.(?:f32|[su](?:8|16|32))\b|\bcvt\.f32\.(?:f16|[su](?:8|16))\b")
MUTANTS = ("-fmad=true", "-ftz=true", "-prec-div=false", "-prec-sqrt=false")
ENTRY = re.compile(r"\.entry\s+(\w+)|\.func\b.*?(\w+)\s*\(?$")


def ptx_of(nvcc, flags, folder):
    out = Path(folder, "kernels.ptx")
    subprocess.run([nvcc, *flags, "-arch=compute_90", "-ptx", f"-I{ROOT}", "-o", out, ROOT / "gpu/cuda/kernels.cu"],
                   check=True)
    return out.read_text(encoding="utf-8").split("\n")


def forbidden(lines):
    """(kernel, number of the line, line) of each."""
    kernel, found = "?", []
    for number, line in enumerate(lines, 1):
        entry = ENTRY.search(line)
        if entry:
            kernel = entry.group(1) or entry.group(2)
        code = line.split("//")[0]
        rounding = ROUNDS.search(code)
        lacks = rounding and ".rn" not in rounding.group(0) and not TO_WIDER.search(code)
        if lacks or FORBIDDEN.search(code):
            found.append((kernel, number, code.strip()))
    return found


def mutated(flag):
    """The flags, but one of them turned around."""
    name = flag.split("=")[0]
    return [flag if old.startswith(name + "=") else old for old in FLAGS]


def kernels_of_table():
    text = Path(ROOT, "gpu/kernel/list.h").read_text(encoding="utf-8")
    return set(re.findall(r"^    X\((\w+), struct", text, re.M))


def is_new(nvcc):
    """It says that it is of CUDA 12.8 or newer, as gpu/cuda/image.cmake asks."""
    if not os.access(nvcc, os.X_OK):
        return False
    said = re.search(r"release (\d+)\.(\d+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True,
                                                              check=False).stdout)
    return said is not None and (int(said.group(1)), int(said.group(2))) >= (12, 8)


def nvcc_or_skip(what_is_not_done):
    """The one that is named, or found; None, and the skip is said, where there is none that will do."""
    nvcc = sys.argv[1] if len(sys.argv) > 1 else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if is_new(nvcc):
        return nvcc
    print(f"skip: no nvcc of CUDA 12.8 or newer: {what_is_not_done}")
    return None


def main():
    nvcc = nvcc_or_skip("the PTX of the kernels is not looked through")
    if nvcc is None:
        return 77
    with tempfile.TemporaryDirectory() as folder:
        lines = ptx_of(nvcc, FLAGS, folder)
        mutants = {flag: len(forbidden(ptx_of(nvcc, mutated(flag), folder))) for flag in MUTANTS}
    entries = set(re.findall(r"\.entry\s+cairn_kernel_(\w+)", "\n".join(lines)))
    lacking = kernels_of_table() ^ entries
    found = forbidden(lines)
    for kernel, number, code in found:
        print(f"{kernel}, line {number}: {code}")
    if lacking:
        print("of the table or of the image alone:", ", ".join(sorted(lacking)))
    for flag, count in mutants.items():
        if not count:
            print(f"with {flag} nothing is found: this test sees nothing")
    print(f"{len(entries)} kernels, {len(lines)} lines, {len(found)} that may not be; with",
          ", ".join(f"{flag} {count}" for flag, count in mutants.items()))
    return 1 if found or lacking or not all(mutants.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
