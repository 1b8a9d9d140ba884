#!/usr/bin/env python3
"""Checks a snapshot folder from outside: by the rules of safetensors and of PyTorch's distributed
checkpoint written down once more, or by the packages themselves.

  check_snapshot.py FOLDER             by the rules, with nothing but Python's own library
  check_snapshot.py FOLDER --readers   by safetensors and torch; 77: one of them is not installed, which
                                       a line "skip: ..." says. What is installed is run all the same
exit 0: good; 1: a rule is broken (said on stderr)

Every element of the tests' snapshots has a known value (see cairn_sample_value in tests/support), which
is checked too when FOLDER/values is there."""
import json, os, re, struct, sys

PARTS = "model", "optim", "blobs"
SKIPPED = 77
FILE = re.compile(r"shard-\d{5,}-model-(\d{5,})-of-(\d{5,})\.safetensors$")


def fail(text):
    sys.exit("check_snapshot: " + text)


def product(shape):
    n = 1
    for dim in shape:
        n *= dim
    return n


def elem_bytes(path):
    """The folder says what its files hold: bytes, or fp32."""
    return 1 if os.path.basename(os.path.dirname(path)) == "blobs" else 4


def check_header(path):
    """Returns {key: (shape, saved_offsets, position of the bytes)}."""
    wanted, size_of_one = ("U8", 1) if elem_bytes(path) == 1 else ("F32", 4)
    size = os.path.getsize(path)
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        text = f.read(n)
    if n > 100_000_000 or 8 + n > size or (8 + n) % 8 != 0 or text[:1] != b"{":
        fail(f"{path}: length or start of the header")
    pairs = json.loads(text, object_pairs_hook=list)
    if len({key for key, _ in pairs}) != len(pairs):
        fail(f"{path}: a key twice")
    header = json.loads(text)
    metadata = header.pop("__metadata__")
    if metadata["DCP_VERSION"] != "1.0" or metadata["format"] != "pt":
        fail(f"{path}: __metadata__")
    sharding = json.loads(metadata["DCP_SHARDING_INFO"])
    if sharding.keys() != header.keys():
        fail(f"{path}: DCP_SHARDING_INFO has other keys than the file")
    end, found, keys = 0, {}, []
    for key, entry in header.items():
        offsets = sharding[key]["saved_offsets"]
        begin, stop = entry["data_offsets"]
        if entry["dtype"] != wanted or begin != end or stop - begin != size_of_one * product(entry["shape"]):
            fail(f"{path}: {key}: dtype, order or size")
        if len(offsets) != len(entry["shape"]) or stop == begin:
            fail(f"{path}: {key}: saved_offsets, or no elements")
        found[key] = (entry["shape"], offsets, 8 + n + begin)
        keys.append(key.encode())
        end = stop
    if 8 + n + end != size or keys != sorted(keys):
        fail(f"{path}: trailing bytes, or keys not in order")
    return found


def read_part(folder, part):
    """Returns {key: [(shape, offsets, path, position)]}; checks the file names."""
    boxes = {}
    if part == "blobs" and not os.path.exists(os.path.join(folder, part)):
        return boxes
    for name in sorted(os.listdir(os.path.join(folder, part))):
        match = FILE.match(name)
        if not match or int(match[1]) > int(match[2]):
            fail(f"{part}/{name}: not a file of a snapshot")
        path = os.path.join(folder, part, name)
        for key, (shape, offsets, position) in check_header(path).items():
            boxes.setdefault(key, []).append((shape, offsets, path, position))
    return boxes


def runs(shape, box, offsets):
    """The element numbers, in the whole tensor, of a box's elements in their order."""
    numbers = [0]
    for dim, extent, offset in zip(shape, box, offsets):
        numbers = [n * dim + offset + i for n in numbers for i in range(extent)]
    return numbers


def value_of(tensor, plane, elem):
    x = (tensor * 1000003 + plane * 10007 + elem) & 0xFFFFFFFF
    x = (x * 2654435761 + 12345) & 0xFFFFFFFF
    return (x >> 9) | 0x3F800000


def check_tensor(key, shape, pieces, tensor, plane, values):
    seen = [False] * product(shape)
    for box, offsets, path, position in pieces:
        numbers = runs(shape, box, offsets)
        with open(path, "rb") as f:
            f.seek(position)
            size = elem_bytes(path)
            bits = struct.unpack(f"<{len(numbers)}{'B' if size == 1 else 'I'}", f.read(size * len(numbers)))
        mask = 256 ** size - 1
        for number, got in zip(numbers, bits):
            if seen[number]:
                fail(f"{key}: element {number} twice")
            seen[number] = True
            if values and got != value_of(tensor, plane, number) & mask:
                fail(f"{key}: element {number} in {path}")
    if not all(seen):
        fail(f"{key}: elements missing")


def check_own_rules(folder, manifest, values):
    model, optim, blobs = [read_part(folder, part) for part in PARTS]
    for index, tensor in enumerate(manifest["spec"]["tensors"]):
        name, shape = tensor["name"], tensor["shape"]
        keys = [(blobs if tensor["kind"] == "blob" else model, name, 1)]
        if tensor["kind"] == "trained":
            keys += [(optim, f"state.{name}.exp_avg", 3), (optim, f"state.{name}.exp_avg_sq", 4)]
        for part, key, plane in keys:
            pieces = part.pop(key, [])
            if product(shape) > 0 or pieces:
                check_tensor(key, shape, pieces, index, plane, values)
    if model or optim or blobs:
        fail(f"unknown keys: {list(model) + list(optim) + list(blobs)}")


def check_by_safetensors(folder, manifest):
    import numpy
    import safetensors
    from safetensors import safe_open
    for entry in manifest["files"]:
        path = os.path.join(folder, entry["path"])
        header = check_header(path)
        with safe_open(path, framework="numpy") as f:
            if set(f.keys()) != set(header):
                fail(f"{path}: safetensors sees other keys")
            for key, (shape, _, position) in header.items():
                tensor = f.get_tensor(key)
                dtype = numpy.dtype("u1" if elem_bytes(path) == 1 else "<f4")
                ours = numpy.fromfile(path, dtype, product(shape), offset=position).reshape(shape)
                if tensor.dtype != dtype or tensor.tobytes() != ours.tobytes():
                    fail(f"{path}: safetensors reads {key} differently")
    print(f"note: safetensors {safetensors.__version__} reads every file of a snapshot")


def check_by_torch(folder, manifest):
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    for part in PARTS:
        dtype, size = (torch.uint8, 1) if part == "blobs" else (torch.float32, 4)
        boxes = read_part(folder, part)
        shapes = {t["name"]: t["shape"] for t in manifest["spec"]["tensors"]}
        whole = {}
        for key in boxes:
            name = key if part != "optim" else key[len("state.") : key.rindex(".")]
            whole[key] = torch.full(shapes[name], 0 if size == 1 else float("nan"), dtype=dtype)
        if not whole:
            continue
        reader = HuggingFaceStorageReader(path=os.path.join(folder, part))
        dcp.load(whole, storage_reader=reader, no_dist=True)
        for key, pieces in boxes.items():
            for box, offsets, path, position in pieces:
                here = tuple(slice(o, o + e) for o, e in zip(offsets, box))
                with open(path, "rb") as f:
                    f.seek(position)
                    ours = torch.frombuffer(bytearray(f.read(size * product(box))), dtype=dtype)
                if not torch.equal(whole[key][here].reshape(-1), ours):
                    fail(f"PyTorch reads {key} differently")
    print(f"note: the distributed checkpoint of torch {torch.__version__} reads every folder of a snapshot")


def check_by_readers(folder, manifest):
    """Whether all of them are there."""
    missing = []
    for check in check_by_safetensors, check_by_torch:
        try:
            check(folder, manifest)
        except ImportError as error:
            missing.append(str(error))
    if missing:
        print(f"skip: {sys.executable} lacks readers of snapshots: {'; '.join(missing)}")
    return not missing


def main():
    folder = sys.argv[1]
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    for entry in manifest["files"]:
        if os.path.getsize(os.path.join(folder, entry["path"])) != entry["bytes"]:
            fail(f"{entry['path']}: another size than in the manifest")
    if sys.argv[2:] == ["--readers"]:
        sys.exit(0 if check_by_readers(folder, manifest) else SKIPPED)
    check_own_rules(folder, manifest, os.path.exists(os.path.join(folder, "values")))


main()
