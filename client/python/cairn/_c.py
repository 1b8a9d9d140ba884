"""cairn.h, as ctypes sees it: structs, functions, and the search for the library.

The layout of every struct and every number here is compared with the header by tests/test_header.py,
which compiles a C program. Nothing is loaded before `lib()` is called.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from ctypes import (POINTER, c_bool, c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint8, c_uint32,
                    c_uint64, c_void_p)
from pathlib import Path
from typing import List, Optional, Tuple

RANK_MAX = 8

F32, BF16, F16, F64, U8 = 1, 2, 3, 4, 5
TRAINED, FROZEN, BUFFER, BLOB = 1, 2, 3, 4
NONFINITE_SKIP, NONFINITE_FAIL = 1, 2
GROUPS_NONE, GROUPS_HOST = 0, 1
SHARD_LOSS_WAIT, SHARD_LOSS_RESTORE_LATEST = 0, 1
SNAPSHOT_STAGING_STATE, SNAPSHOT_STAGING_SMALL = 0, 1
DURABILITY_DEFAULT, DURABILITY_PROCESS, DURABILITY_PEER, DURABILITY_LOG, DURABILITY_LOG_PEER = 0, 1, 2, 3, 4
WORKER_LOSS_REDO, WORKER_LOSS_WAIT, WORKER_LOSS_FAIL = 0, 1, 2
MISSING_ZERO, MISSING_LEAVE = 0, 1
TIERS_TOGETHER, TIERS_MOMENTS_ON_HOST, TIERS_PARAM_ON_HOST = 0, 1, 2
LOSS_SCALE_DEFAULT, LOSS_SCALE_FIXED, LOSS_SCALE_DYNAMIC = 0, 1, 2
INIT_NONE, INIT_ZEROS, INIT_ONES, INIT_CONSTANT, INIT_UNIFORM, INIT_NORMAL = 0, 1, 2, 3, 4, 5
SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_WSD, SCHEDULE_TABLE = 0, 1, 2, 3, 4
SCHEDULE_DRIVEN = 5
EMA_CONSTANT, EMA_WARMUP = 0, 1
ROWS, WHOLE = 0, 1
WORKER, READER = 1, 2
SNAPSHOT_WAIT = 1
WEIGHT_NONE = 2**64 - 1
OPEN_MUST_EXIST, OPEN_RESUME, OPEN_MUST_NOT_EXIST, OPEN_TAKEOVER = 1, 2, 4, 8
CHANGE_NEXT_ROUND, CHANGE_REOPENED, CHANGE_CREATED, CHANGE_NEVER = 0, 1, 2, 3

DTYPE_BYTES = {F32: 4, BF16: 2, F16: 2, F64: 8, U8: 1}


class Sized(ctypes.Structure):
    """A struct that begins with struct_size, which is set when it is made."""

    def __init__(self, *args, **fields):
        super().__init__(*args, **fields)
        self.struct_size = ctypes.sizeof(type(self))


class Box(ctypes.Structure):
    _fields_ = [("rank", c_uint32), ("start", c_uint64 * RANK_MAX), ("extent", c_uint64 * RANK_MAX)]


class Version(ctypes.Structure):
    _fields_ = [("generation", c_uint64), ("step", c_uint64)]


ON_WAIT = ctypes.CFUNCTYPE(c_bool, c_void_p, c_char_p, c_char_p, c_int)


class Opts(Sized):
    _fields_ = [("struct_size", c_size_t), ("endpoint", c_char_p), ("name", c_char_p),
                ("connect_timeout_ms", c_int), ("reserved", c_uint32), ("fabric", c_char_p),
                ("fabric_device", c_char_p), ("prefetch_units", c_uint32), ("reserved_too", c_uint32),
                ("on_wait", ON_WAIT), ("on_wait_context", c_void_p), ("device", c_int), ("reserved_last", c_uint32),
                ("token_file", c_char_p)]


class Init(ctypes.Structure):
    _fields_ = [("kind", c_int), ("a", c_double), ("b", c_double), ("seed", c_uint64)]


class Tensor(Sized):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("unit", c_char_p), ("group", c_char_p),
                ("wire", c_int), ("rank", c_uint32), ("shape", c_uint64 * RANK_MAX), ("kind", c_int),
                ("alias_of", c_char_p), ("alias_box", POINTER(Box)), ("reduce", c_int), ("master", c_int),
                ("place", c_int), ("init", Init), ("steps_missed", c_uint64)]


class SchedulePoint(ctypes.Structure):
    _fields_ = [("step", c_uint64), ("factor", c_double)]


class Group(Sized):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("optimizer", c_char_p), ("lr", c_double),
                ("beta1", c_double), ("beta2", c_double), ("eps", c_double), ("weight_decay", c_double),
                ("momentum", c_double), ("nesterov", c_bool), ("reserved", c_uint8 * 7), ("pattern", c_char_p),
                ("warmup_steps", c_uint64), ("total_steps", c_uint64), ("decay_steps", c_uint64), ("lr_min", c_double),
                ("points", POINTER(SchedulePoint)), ("point_count", c_size_t), ("schedule", c_int),
                ("reserved_last", c_uint32), ("ema", c_double), ("ema_schedule", c_int), ("reserved_ema", c_uint32)]


class JobSpec(Sized):
    _fields_ = [("struct_size", c_size_t), ("tensors", POINTER(Tensor)), ("tensor_count", c_size_t),
                ("groups", POINTER(Group)), ("group_count", c_size_t), ("rank", c_uint32),
                # The next lines are made by tests/tree/spec_fields.py
                ("workers_min", c_uint32), ("clip_norm", c_double), ("loss_scale", c_double),
                ("on_nonfinite", c_int), ("chunk_leaves", c_uint32), ("window", c_uint32),
                ("loss_scale_min", c_double), ("loss_scale_max", c_double), ("loss_scale_policy", c_int),
                ("loss_scale_growth_steps", c_uint32), ("stage", c_uint32), ("micro_batches", c_uint32),
                # From here on by hand
                ("init_from", c_char_p), ("init_prefix", c_char_p),
                # The next lines are made by tests/tree/spec_fields.py
                ("client_state_max", c_uint32), ("init_nonfinite_ok", c_bool), ("reduce_groups", c_int),
                ("skips_max", c_uint64), ("snapshot_every", c_uint64), ("snapshot_keep", c_uint64),
                ("on_shard_loss", c_int), ("shard_loss_wait_s", c_uint32), ("workers_max", c_uint32),
                # From here on by hand
                ("world", c_uint32), ("start_wait_ms", c_uint64), ("open_flags", c_uint64),
                # The next lines are made by tests/tree/spec_fields.py
                ("offload_fraction", c_double), ("tiers", c_int), ("global_batch", c_uint64), ("seed", c_uint64),
                ("on_worker_loss", c_int), ("worker_loss_wait_s", c_uint32), ("snapshot_keep_every", c_uint64),
                ("snapshot_max_bytes", c_uint64), ("snapshot_every_s", c_uint32),
                ("snapshot_keep_within_s", c_uint32), ("snapshot_durable_within_s", c_uint32),
                ("snapshot_scrub_every_s", c_uint32), ("snapshot_staging", c_int), ("snapshot_fallback", c_bool),
                ("first_step", c_uint64), ("missing_gradients", c_int), ("init_extra_ok", c_bool),
                ("buffers_every", c_uint64), ("audit_every", c_uint64), ("durability", c_int),
                ("keep_versions", c_uint64),
                # From here on by hand
                ]


class Tie(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("alias_of", c_char_p)]


class Setting(ctypes.Structure):
    _fields_ = [("key", c_char_p), ("value", c_char_p)]


class Difference(Sized):
    _fields_ = [("struct_size", c_size_t), ("text", c_char_p), ("key", c_char_p), ("value", c_char_p),
                ("change", c_int), ("tensor", c_char_p), ("field", c_char_p), ("there", c_char_p)]


class Amend(Sized):
    _fields_ = [("struct_size", c_size_t), ("revision", c_uint64), ("groups", POINTER(Group)),
                ("group_count", c_size_t), ("freeze", POINTER(c_char_p)), ("freeze_count", c_size_t),
                ("unfreeze", POINTER(c_char_p)), ("unfreeze_count", c_size_t), ("clip_norm", c_double),
                ("set_clip_norm", c_bool), ("reserved", c_uint8 * 7), ("freeze_tensors", POINTER(c_char_p)),
                ("freeze_tensor_count", c_size_t),
                ("unfreeze_tensors", POINTER(c_char_p)), ("unfreeze_tensor_count", c_size_t),
                ("unfreeze_tensor_groups", POINTER(c_char_p)), ("add", POINTER(Tensor)), ("add_count", c_size_t),
                ("ties", POINTER(Tie)), ("tie_count", c_size_t), ("snapshot_every", c_uint64),
                ("snapshot_keep", c_uint64), ("on_shard_loss", c_int), ("shard_loss_wait_s", c_uint32),
                ("set_snapshots", c_bool), ("set_shard_loss", c_bool), ("reserved_losses", c_uint8 * 2),
                ("workers_min", c_uint32), ("workers_max", c_uint32), ("on_worker_loss", c_int),
                ("worker_loss_wait_s", c_uint32), ("set_worker_loss", c_bool), ("reserved_rules", c_uint8 * 3),
                ("snapshot_keep_every", c_uint64), ("snapshot_max_bytes", c_uint64), ("snapshot_every_s", c_uint32),
                ("snapshot_keep_within_s", c_uint32), ("snapshot_durable_within_s", c_uint32),
                ("snapshot_scrub_every_s", c_uint32), ("snapshot_staging", c_int), ("snapshot_fallback", c_bool),
                ("set_snapshot_rules", c_bool), ("reserved_settings", c_uint8 * 2), ("settings", POINTER(Setting)),
                ("setting_count", c_size_t)]


def stage(number: int) -> int:
    """CAIRN_STAGE."""
    return 0x100 + number


def gpu(number: int) -> int:
    """CAIRN_GPU: a card, as every `device` of the header has it; 0 is the host."""
    return number + 0x100


class Mem(Sized):
    _fields_ = [("struct_size", c_size_t), ("ptr", c_void_p), ("dtype", c_int), ("stride", c_int64 * RANK_MAX),
                ("device", c_int), ("stream", c_void_p), ("bytes", c_size_t)]


class Part(Sized):
    _fields_ = [("struct_size", c_size_t), ("tensor", c_char_p), ("box", POINTER(Box)), ("mem", Mem)]


class Round(Sized):
    _fields_ = [("struct_size", c_size_t), ("round", c_uint64), ("step", c_uint64), ("epoch", c_uint64),
                ("version", Version), ("rank", c_uint32), ("world", c_uint32), ("loss_scale", c_double),
                ("revision", c_uint64), ("micro_batches", c_uint32), ("job", c_uint32), ("skips", c_uint64),
                ("index", c_uint64), ("seed", c_uint64), ("global_batch", c_uint64)]


class Result(Sized):
    _fields_ = [("struct_size", c_size_t), ("step", c_uint64), ("version", Version), ("grad_norm", c_double),
                ("clip_scale", c_double), ("lr", c_double), ("applied", c_bool), ("finite", c_bool),
                ("skips", c_uint64), ("index", c_uint64), ("nonfinite", c_uint64),
                ("nonfinite_tensors", c_char * 512)]


class Stats(Sized):
    _fields_ = [("struct_size", c_size_t), ("pushed_bytes", c_uint64), ("fetched_bytes", c_uint64),
                ("put_bytes", c_uint64), ("accumulated_bytes", c_uint64), ("mapped_bytes", c_uint64),
                ("mapped_bytes_peak", c_uint64), ("maps", c_uint64), ("maps_prefetched", c_uint64),
                ("maps_over_window", c_uint64), ("prefetches_dropped", c_uint64),
                ("packed_bytes", c_uint64), ("packed_bytes_peak", c_uint64), ("assembled_bytes", c_uint64),
                ("assembled_bytes_peak", c_uint64), ("maps_lent", c_uint64),
                ("shared_pushed_bytes", c_uint64), ("shared_fetched_bytes", c_uint64),
                ("device_pushed_bytes", c_uint64), ("device_fetched_bytes", c_uint64)]


class View(Sized):
    _fields_ = [("struct_size", c_size_t), ("tensor", c_char_p), ("ptr", c_void_p), ("dtype", c_int),
                ("rank", c_uint32), ("shape", c_uint64 * RANK_MAX), ("loan", c_uint64)]


class Tile(Sized):
    _fields_ = [("struct_size", c_size_t), ("tensor", c_char_p), ("box", Box)]


class JobInfo(Sized):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("tensor_count", c_size_t), ("group_count", c_size_t),
                ("rank", c_uint32), ("workers_min", c_uint32), ("clip_norm", c_double), ("loss_scale", c_double),
                ("on_nonfinite", c_int), ("newest", Version), ("initialized", c_bool), ("stage", c_uint32),
                ("micro_batches", c_uint32), ("client_state_max", c_uint32), ("reduce_groups", c_int),
                ("workers_max", c_uint32), ("global_batch", c_uint64), ("seed", c_uint64),
                ("revision", c_uint64), ("made_by", c_char_p), ("found_step", c_uint64), ("found", c_bool)]


class Env(Sized):
    _fields_ = [("struct_size", c_size_t), ("rank", c_uint32), ("world", c_uint32), ("local_rank", c_uint32),
                ("node_rank", c_uint32), ("restarts", c_uint64), ("launcher", c_char * 16), ("run_id", c_char * 128),
                ("endpoint", c_char * 128)]


# The struct of the header, for the test that compares them.
class JobEntry(Sized):
    _fields_ = [("struct_size", c_size_t), ("name", c_char * 256), ("state", c_char * 32), ("awaited", c_char * 512),
                ("version", Version), ("version_known", c_bool), ("reserved", c_bool * 7), ("workers", c_uint32),
                ("workers_min", c_uint32), ("shards", c_uint32), ("reserved_too", c_uint32), ("tensors", c_uint64),
                ("elems", c_uint64), ("state_bytes", c_uint64)]


STRUCTS = {"cairn_box": Box, "cairn_version": Version, "cairn_opts": Opts, "cairn_tensor": Tensor,
           "cairn_group": Group, "cairn_job_spec": JobSpec, "cairn_mem": Mem, "cairn_round": Round,
           "cairn_result": Result, "cairn_stats": Stats, "cairn_env": Env, "cairn_tile": Tile,
           "cairn_job_info": JobInfo, "cairn_init": Init, "cairn_schedule_point": SchedulePoint,
           "cairn_amend": Amend, "cairn_tie": Tie, "cairn_setting": Setting, "cairn_difference": Difference,
           "cairn_view": View, "cairn_part": Part, "cairn_job_entry": JobEntry}

_handle = c_void_p
FUNCTIONS = {
    "cairn_open": (c_int, [POINTER(Opts), POINTER(_handle)]),
    "cairn_close": (None, [_handle]),
    "cairn_status_name": (c_char_p, [c_int]),
    "cairn_version": (c_char_p, []),
    "cairn_error_difference": (c_int, [c_size_t, POINTER(Difference)]),
    "cairn_error": (c_char_p, []),
    "cairn_event_fd": (c_int, [_handle]),
    "cairn_data_path": (c_char_p, [_handle]),
    "cairn_job_open": (c_int, [_handle, c_char_p, POINTER(JobSpec), c_int, c_int, POINTER(_handle)]),
    "cairn_job_close": (None, [_handle]),
    "cairn_put": (c_int, [_handle, c_char_p, c_char_p, POINTER(Box), POINTER(Mem), POINTER(_handle)]),
    "cairn_init_done": (c_int, [_handle, POINTER(c_uint8), c_int]),
    "cairn_round_begin": (c_int, [_handle, c_int, POINTER(Round)]),
    "cairn_push": (c_int, [_handle, POINTER(Round), c_uint32, c_char_p, POINTER(Box), POINTER(Mem),
                           POINTER(_handle)]),
    "cairn_push_list": (c_int, [_handle, POINTER(Part), c_size_t, POINTER(_handle)]),
    "cairn_fetch_list": (c_int, [_handle, c_char_p, POINTER(Part), c_size_t, POINTER(_handle)]),
    "cairn_list_close": (None, [_handle]),
    "cairn_push_many": (c_int, [_handle, POINTER(Round), c_uint32, POINTER(_handle)]),
    "cairn_fetch_many": (c_int, [_handle, Version, POINTER(_handle)]),
    "cairn_micro_end": (c_int, [_handle, POINTER(Round), c_uint32]),
    "cairn_micro_seed": (c_uint64, [POINTER(Round), c_uint32]),
    "cairn_commit": (c_int, [_handle, POINTER(Round), c_uint64, c_void_p, c_size_t, c_int, POINTER(Result)]),
    "cairn_round_abandon": (c_int, [_handle, POINTER(Round), c_int]),
    "cairn_group_lr": (c_int, [_handle, c_char_p, c_double]),
    "cairn_fetch": (c_int, [_handle, Version, c_char_p, c_char_p, POINTER(Box), POINTER(Mem), POINTER(_handle)]),
    "cairn_version_wait": (c_int, [_handle, Version, c_int, POINTER(Version)]),
    "cairn_client_state": (c_int, [_handle, c_void_p, c_size_t, c_int, POINTER(c_size_t), POINTER(Version)]),
    "cairn_lease": (c_int, [_handle, Version, c_int, c_int, POINTER(Version)]),
    "cairn_lease_end": (c_int, [_handle, Version, c_int]),
    "cairn_wait": (c_int, [_handle, c_int]),
    "cairn_wait_any": (c_int, [POINTER(_handle), c_size_t, c_int, POINTER(c_size_t), POINTER(c_void_p)]),
    "cairn_op_set_user": (c_int, [_handle, c_void_p]),
    "cairn_cancel": (c_int, [_handle]),
    "cairn_snapshot": (c_int, [_handle, c_uint32, c_int, POINTER(c_char * 64)]),
    "cairn_job_list": (c_int, [_handle, POINTER(JobEntry), POINTER(c_size_t), c_int]),
    "cairn_job_drop": (c_int, [_handle, c_char_p, c_uint32, c_int]),
    "cairn_job_restore": (c_int, [_handle, c_char_p, c_char_p, c_uint32, c_int, POINTER(c_char * 64),
                                  POINTER(Version)]),
    "cairn_job_rollback": (c_int, [_handle, c_char_p, Version, c_int, POINTER(Version)]),
    "cairn_job_stats": (c_int, [_handle, POINTER(Stats)]),
    "cairn_job_describe": (c_int, [_handle, POINTER(JobInfo)]),
    "cairn_job_tensor": (c_int, [_handle, c_size_t, POINTER(Tensor)]),
    "cairn_job_has_plane": (c_int, [_handle, c_char_p, c_char_p, POINTER(c_bool)]),
    "cairn_tiles": (c_int, [_handle, POINTER(Tile), c_size_t, c_uint32, c_int]),
    "cairn_job_amend": (c_int, [_handle, POINTER(Amend), c_int]),
    "cairn_pause": (c_int, [_handle, c_char_p, c_int, c_int]),
    "cairn_pause_end": (c_int, [_handle, c_int]),
    "cairn_prefetch": (c_int, [_handle, Version, POINTER(c_char_p), c_size_t]),
    "cairn_map_device": (c_int, [_handle, Version, c_char_p, c_int, POINTER(View), POINTER(c_size_t),
                                 POINTER(_handle)]),
    "cairn_map": (c_int, [_handle, Version, c_char_p, POINTER(View), POINTER(c_size_t), POINTER(_handle)]),
    "cairn_unmap": (c_int, [_handle, POINTER(View), c_void_p]),
    "cairn_write_begin": (c_int, [_handle, c_int]),
    "cairn_write_end": (c_int, [_handle, c_int, POINTER(Version)]),
    "cairn_alloc": (c_int, [_handle, c_size_t, c_int, POINTER(c_void_p)]),
    "cairn_free": (c_int, [_handle, c_void_p]),
    "cairn_detach_memory": (c_int, [_handle, c_int]),
    "cairn_attach_memory": (c_int, [_handle, c_int]),
    "cairn_register": (c_int, [_handle, c_void_p, c_size_t, c_int]),
    "cairn_unregister": (c_int, [_handle, c_void_p]),
    "cairn_stream_wait": (c_int, [_handle, c_void_p]),
    "cairn_env_read": (c_int, [POINTER(Env)]),
}


def candidates() -> List[Tuple[str, str]]:
    """(path, why it is looked at), in the order of the search."""
    named = os.environ.get("CAIRN_LIBRARY")
    if named:
        return [(named, "CAIRN_LIBRARY")]
    package = Path(__file__).resolve().parent
    found = [(str(package / "libcairn.so.0"), "beside the package")]
    for folder in package.parents:  # a checkout: client/python/cairn, with build/ at its root
        if (folder / "client" / "include" / "cairn.h").is_file():
            found.append((str(folder / "build" / "lib" / "libcairn.so.0"), "the build of this checkout"))
            break
    installed = ctypes.util.find_library("cairn")
    found.append((installed or "libcairn.so.0", "the dynamic linker"))
    return found


def _load() -> ctypes.CDLL:
    tried = []
    for path, why in candidates():
        if os.sep in path and not os.path.exists(path):
            tried.append(f"{path} ({why}): no such file")
            continue
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(f"{path} ({why}): {error}")
    raise ImportError("libcairn.so was not found; tried " + "; ".join(tried) + ". Build Cairn (cmake --build build), "
                      "install it (cmake --install build && ldconfig), or set CAIRN_LIBRARY to the file")


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{library._name} has no {name}: it is of an older Cairn than this package; "
                              "install both of one version") from None
        function.restype = result
        function.argtypes = arguments
    return library


_lib: Optional[ctypes.CDLL] = None


def lib() -> ctypes.CDLL:
    """The library, loaded at the first call. ImportError says where it was looked for."""
    global _lib
    if _lib is None:
        _lib = _declare(_load())
    return _lib
