"""What the .metadata of a DCP folder says, without trusting it: run as a program, it prints JSON.

The file is a pickle, and unpickling calls whatever a pickle names. Here nothing is called but stand-ins: classes
without code that keep what they are given, in place of the few of torch that such a file has; any other name is
refused. The program opens nothing but that file, and takes memory and time by the size of that: a hostile one ends it,
and nothing else. What it prints is bounded likewise: a place in a file is one chunk's, so that few bytes, which a
pickle may repeat without end, do not become many. (torch's own reader is a plain pickle.load.)

  python3 -I _metadata.py FILE    exit 0: JSON on stdout; 1: a sentence on stderr
"""

import errno
import io
import json
import os
import pickle
import resource
import stat
import sys

FILE_BYTES = 1 << 30
MEMORY_BYTES, MEMORY_TIMES, MEMORY_MAX = 512 << 20, 64, 4 << 30  # TIMES: so many bytes a byte of the file
SECONDS, BYTES_A_SECOND, SECONDS_MAX = 10, 1 << 20, 120
PRINTED_BYTES, PRINTED_TIMES = 4 << 20, 8
RANK_MAX, NAME_CHARS = 64, 4096
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64", "int64": "i64", "int32": "i32",
          "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool"}
OTHERS = ("complex32 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
          "float4_e2m1fn_x2 uint16 uint32 uint64 qint8 qint32 quint8 quint4x2 quint2x4").split()  # by torch's own name
PATH_PARTS = 32  # of a key, where the folder says what it was before it was flattened


class Kept:
    """A stand-in: what it was made of, and its state."""

    def __new__(cls, *given, **_named):
        self = object.__new__(cls)
        self.given, self.state = given, {}
        return self

    def __init__(self, *_given, **_named):
        pass

    def __setstate__(self, state):
        if isinstance(state, tuple) and len(state) == 2:  # of a class with slots
            state = {**(state[0] or {}), **(state[1] or {})}
        if isinstance(state, dict):
            self.__dict__["state"] = state
        elif isinstance(state, tuple):  # TensorProperties: dtype first
            self.__dict__["given"] = state

    def __getattr__(self, name):
        try:
            return self.__dict__["state"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __hash__(self):  # of a key: where it points to. What else it says may be nested without end
        fqn, offset = self.state.get("fqn"), self.state.get("offset")
        plain = type(offset) is tuple and all(type(n) is int for n in offset)
        return hash((fqn if isinstance(fqn, str) else None, offset if plain else None))

    def __eq__(self, other):
        return type(self) is type(other) and self.given == other.given and self.state == other.state


class Metadata(Kept): pass
class TensorStorage(Kept): pass
class BytesStorage(Kept): pass
class Chunk(Kept): pass
class Index(Kept): pass
class Storage(Kept): pass
class Other(Kept): pass


# No function among them: a pickle may set attributes of what it names, and of a function they count.
_CHECKPOINT = ("torch.distributed.checkpoint.metadata", "torch.distributed._shard.checkpoint.metadata")
_FILES = ("torch.distributed.checkpoint.filesystem", "torch.distributed._shard.checkpoint.filesystem")
_NAMES = {"Metadata": Metadata, "TensorStorageMetadata": TensorStorage, "BytesStorageMetadata": BytesStorage,
          "ChunkStorageMetadata": Chunk, "MetadataIndex": Index, "TensorProperties": Other, "StorageMeta": Other,
          "_MEM_FORMAT_ENCODING": Other}
ALLOWED = {**{(module, name): kept for module in _CHECKPOINT for name, kept in _NAMES.items()},
           **{(module, "_StorageInfo"): Storage for module in _FILES},
           ("torch", "Size"): tuple, ("torch.serialization", "_get_layout"): Other, ("torch", "strided"): "strided",
           ("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties"): Other,
           ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"): Other,
           **{(module, name): Other for module in ("pathlib", "pathlib._local")
              for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")},
           ("builtins", "getattr"): Other,  # a member of an enum, as Python 3.11 pickles it: it is not looked up
           ("collections", "OrderedDict"): dict, ("builtins", "set"): set, ("builtins", "list"): list,
           **{("torch", name): name for name in (*DTYPES, *OTHERS)}}


class Refused(ValueError):
    """A sentence of ours."""


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise Refused(f"it names {module}.{name}, which no checkpoint needs: it is refused, and nothing of it was "
                          "called") from None

    def persistent_load(self, pid):
        raise Refused("it refers to objects elsewhere")


def count(value):
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise Refused("a size or a place in it is no number, below 0 or too large")
    return value


def counts(of):
    if not isinstance(of, (tuple, list)) or len(of) > RANK_MAX:
        raise Refused(f"a shape in it is no list of at most {RANK_MAX} numbers")
    return [count(n) for n in of]


def named(value):
    """A name that may be printed, and be a key of JSON."""
    if not isinstance(value, str) or len(value) > NAME_CHARS or not value.isprintable():
        raise Refused(f"a name in it is no text that can be printed, of at most {NAME_CHARS} characters")
    return value


def dtype_of(properties):
    dtype = properties.state.get("dtype") if properties.state else (properties.given or (None,))[0]
    if not isinstance(dtype, str) or (dtype not in DTYPES and dtype not in OTHERS):
        raise Refused(f"a tensor is of {dtype if isinstance(dtype, str) else 'no dtype'}, which is none of "
                      + ", ".join((*DTYPES, *OTHERS)))
    return DTYPES.get(dtype, dtype)


def path_of(planned, key):
    """What the key was before the state dict was flattened: words and numbers. [key], where that is not said."""
    path = planned.get(key) if type(planned) is dict else None
    if type(path) is not tuple or not 0 < len(path) <= PATH_PARTS:
        return [key]
    return [count(part) if type(part) is int else named(part) for part in path]


def place_of(info):
    path = named(info.relative_path)
    if not path or "/" in path or path.startswith(".") or len(path) > 255:
        raise Refused(f"{path[:80]!r} is not the name of a file beside it")
    return {"file": path, "at": count(info.offset), "bytes": count(info.length)}


def take_place(places, key, offset):
    """Each is one chunk's: so there are no more chunks than places, however often one is named."""
    try:
        return places.pop((key, offset))
    except KeyError:
        raise Refused(f"it does not say where {key[:80]} lies, or says it of one chunk twice") from None


def tensors_of(metadata, room):
    """{key: {"path", "shape", "dtype", "chunks": [{"offsets", "sizes", "file", "at", "bytes"}]}}, objects without
    shape; at most `room` characters of paths."""
    places = {}
    for index, info in metadata.storage_data.items():
        offset = index.state.get("offset")
        places[named(index.fqn), tuple(counts(offset)) if offset is not None else None] = place_of(info)
    found, planned = {}, metadata.state.get("planner_data")
    for key, entry in metadata.state_dict_metadata.items():
        path = path_of(planned, key)
        room -= sum(len(str(part)) for part in path)
        if room < 0:
            raise Refused("its keys have paths longer than any such file needs")
        if isinstance(entry, BytesStorage):
            found[key] = {"path": path, "chunks": [take_place(places, named(key), None)]}
            continue
        chunks, shape = [], counts(entry.size)
        for chunk in entry.chunks:
            offsets, sizes = counts(chunk.offsets), counts(chunk.sizes)
            if not len(offsets) == len(sizes) == len(shape):
                raise Refused(f"a chunk of {named(key)[:80]} has other dimensions than the tensor")
            chunks.append({"offsets": offsets, "sizes": sizes, **take_place(places, named(key), tuple(offsets))})
        found[named(key)] = {"path": path, "shape": shape, "dtype": dtype_of(entry.properties),
                             "chunks": chunks}
    return found


def judge(data):
    """(JSON, None), or (None, why not): a line that may be printed. What a stranger's bytes lead to is never shown as
    it is: it may be endless."""
    try:
        metadata = Unpickler(io.BytesIO(data)).load()
        if type(metadata) is not Metadata:
            raise Refused("it is no metadata of a checkpoint")
        printed = json.dumps(tensors_of(metadata, PRINTED_BYTES + len(data)))
        if len(printed) > PRINTED_BYTES + PRINTED_TIMES * len(data):
            raise Refused("it describes more than any file of its size does")
        return printed, None
    except Refused as why:
        said = str(why)
    except (pickle.UnpicklingError, EOFError) as why:
        said = f"it is damaged, or no pickle: {str(why)[:100]}"
    except MemoryError:
        said = "it takes more memory than any such file needs"
    except RecursionError:
        said = "it is nested too deep"
    except Exception as why:
        said = f"it is damaged: what it describes is no metadata of a checkpoint ({type(why).__name__})"
    return None, "".join(c if c.isprintable() else "?" for c in said[:400])


def read(path):
    """A FIFO is not waited for. OSError; of none."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        there = os.fstat(fd)
        if not stat.S_ISREG(there.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read(min(there.st_size, FILE_BYTES) + 1)


def limit(data):
    memory = min(MEMORY_BYTES + MEMORY_TIMES * len(data), MEMORY_MAX)
    seconds = min(SECONDS + len(data) // BYTES_A_SECOND, SECONDS_MAX)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * FILE_BYTES, 2 * FILE_BYTES))


def main(path):
    try:
        data = read(path)
    except OSError as why:
        return f"it cannot be read: {why.strerror}"
    limit(data)
    if len(data) > FILE_BYTES:
        return "it is larger than 1 GiB"
    catalog, said = judge(data)
    if said is None:
        print(catalog)
    return said


if __name__ == "__main__":
    said = main(sys.argv[1])
    if said is not None:
        print(said, file=sys.stderr)
    sys.exit(said is not None)
