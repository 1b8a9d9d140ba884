#!/usr/bin/env python3
"""Prints the two hashes that tests/unit/test_digest.c expects, made from the text of
proto/snapshot/digest_tree.h with Python's own BLAKE2b and a recursive RFC 6962 tree.

The state: one tensor "w" of shape [3, 5000] (three quanta of one row, so leaves of 4096 and 904
elements), element i is (float)i; step 7; one group "all" of AdamW with its defaults.
"""
import hashlib
import struct


def blake(b):
    return hashlib.blake2b(b, digest_size=32).digest()


def u64(x):
    return struct.pack("<Q", x)


def field(b):
    return u64(len(b)) + b


def tree(hashes):
    if len(hashes) == 0:
        return blake(b"")
    if len(hashes) == 1:
        return hashes[0]
    k = 1
    while 2 * k < len(hashes):
        k *= 2
    return blake(b"\x01" + tree(hashes[:k]) + tree(hashes[k:]))


leaves = []
for row in range(3):
    for start, end in ((0, 4096), (4096, 5000)):
        elems = [float(5000 * row + i) for i in range(start, end)]
        leaves.append(blake(b"\x00" + struct.pack("<%df" % len(elems), *elems)))
plane = blake(field(b"cairn plane 1") + field(b"w") + field(b"param") + field(b"f32") + u64(2) +
              u64(3) + u64(5000) + u64(len(leaves)) + tree(leaves))
hyper = struct.pack("<I7d", 1, 1e-3, 0.9, 0.999, 1e-8, 0.01, 0, 0)
content = blake(field(b"cairn content 1") + u64(1) + plane + u64(7) + u64(1) + field(b"all") + hyper +
                field(b"") + struct.pack("<d", 1024.0) + blake(b""))
print("plane  ", plane.hex())
print("content", content.hex())
