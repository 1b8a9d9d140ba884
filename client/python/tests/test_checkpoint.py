"""A run of torch goes on in Cairn from its checkpoints, with moments and step, and hostile ones are refused."""

from __future__ import annotations

import copy
import enum
import errno
import inspect
import io
import mmap
import os
import pickle
import shutil
import sys
import time
import unittest
import unittest.mock
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torched

torch = torched.torch
import cairn  # noqa: E402
from cairn import _found, _metadata, _stored  # noqa: E402

STEPS_BEFORE, STEPS_AFTER = 5, 4
CHUNKED = 3  # of how many chunks a DCP tensor is, made by hand


def model() -> "torch.nn.Module":
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(9, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


NAMES = [name for name, _ in model().named_parameters()]


def batch(step: int):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 9, generator=generator), torch.randn(8, 3, generator=generator)


def loss_of(net, step: int):
    x, y = batch(step)
    return ((net(x) - y) ** 2).mean()


def run_torch(net, optimizer, first: int, end: int) -> None:
    for step in range(first, end):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        optimizer.step()


def steps(m, net, first: int, end: int) -> None:
    for step in range(first, end):
        m.begin()
        loss_of(net, step).backward()
        m.step()


def trained():
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
    run_torch(net, optimizer, 0, STEPS_BEFORE)
    return net, optimizer


# ---- a DCP folder, as torch writes it, without the torch that does ----


def modules_of_torch():
    """Classes under the names that torch has for them: what is pickled names these."""
    import types
    made = {}
    for module, names in (("torch.distributed.checkpoint.metadata",
                           ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
                            "MetadataIndex", "TensorProperties")),
                          ("torch.distributed.checkpoint.filesystem", ("_StorageInfo",))):
        fake = types.ModuleType(module)
        for name in names:
            made[name] = type(name, (), {"__module__": module, "__qualname__": name})
            setattr(fake, name, made[name])
        made[module] = sys.modules.get(module), fake
        sys.modules[module] = fake
    module, name = made["TensorProperties"].__module__, "_MEM_FORMAT_ENCODING"
    made[name] = enum.Enum(name, {"TORCH_CONTIGUOUS_FORMAT": 0}, module=module)  # pickled by getattr in Python 3.11
    setattr(sys.modules[module], name, made[name])
    return made


def give_back(made) -> None:
    for module in [key for key in made if "." in key]:
        del sys.modules[module]
        if made[module][0] is not None:
            sys.modules[module] = made[module][0]


def an(kind, **state):
    thing = kind()
    thing.__dict__.update(state)
    return thing


def write_dcp(folder: Path, tensors, objects, change=lambda metadata: metadata) -> None:
    folder.mkdir()
    made = modules_of_torch()
    storage, entries, data = {}, {}, io.BytesIO()

    def put(key, value, offset):
        at = data.tell()
        torch.save(value, data)
        index = an(made["MetadataIndex"], fqn=key, offset=None if offset is None else torch.Size(offset), index=None)
        storage[index] = an(made["_StorageInfo"], relative_path="__0_0.distcp", offset=at, length=data.tell() - at)

    try:
        for key, value in tensors.items():
            chunks, rows = [], value.shape[0] if value.dim() else 1
            cuts = sorted({rows * i // CHUNKED for i in range(CHUNKED + 1)}) if value.dim() else [0, 1]
            for first, end in zip(cuts, cuts[1:]):
                part = value[first:end].clone() if value.dim() else value.clone()
                offset = [first] + [0] * (value.dim() - 1) if value.dim() else []
                chunks.append(an(made["ChunkStorageMetadata"], offsets=torch.Size(offset), sizes=part.shape))
                put(key, part, offset)
            entries[key] = an(made["TensorStorageMetadata"], size=value.shape, chunks=chunks,
                              properties=an(made["TensorProperties"], dtype=value.dtype, memory_format=next(
                                  iter(made["_MEM_FORMAT_ENCODING"]))))
        for key, value in objects.items():
            entries[key] = an(made["BytesStorageMetadata"])
            put(key, value, None)
        metadata = an(made["Metadata"], state_dict_metadata=entries, planner_data=None, storage_data=storage)
        (folder / "__0_0.distcp").write_bytes(data.getvalue())
        (folder / ".metadata").write_bytes(pickle.dumps(change(metadata)))
    finally:
        give_back(made)


def read_all(path) -> None:
    """Every tensor and object of it, which an import reads as far as it needs them."""
    tree = _found.read_tree(path)
    try:
        found = _found.contents(tree)
        for leaf in [*found.tensors.values(), *found.objects.values()]:
            _found.value_of(leaf)
    finally:
        tree.close()


def dcp_of(folder: Path, net, optimizer, **options) -> None:
    names = [name for name, _ in net.named_parameters()]
    tensors = {f"model.{name}": p.detach() for name, p in net.named_parameters()}
    objects = {}
    for name, p in net.named_parameters():
        state = optimizer.state[p]
        tensors[f"optim.state.{name}.step"] = torch.as_tensor(float(state["step"]))
        for what in ("exp_avg", "exp_avg_sq"):
            tensors[f"optim.state.{name}.{what}"] = state[what]
        objects[f"optim.param_groups.{name}.lr"] = optimizer.param_groups[0]["lr"]
    assert len(names) == 4
    write_dcp(folder, tensors, objects, **options)


# Until then torch.load(weights_only=True) reads no number, so no optimizer.
needs_numbers = unittest.skipIf(int(torch.__version__.split(".")[0]) < 2, "torch before 2.0 reads no numbers as data")


class Checkpoints(torched.ClusterCase):
    shards = 2

    def save(self, **more) -> Path:
        net, optimizer = trained()
        path = self.folder / "run.pt"
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), **more}, path)
        return path

    def goes_on(self, path: Path, **options) -> None:
        """As near to torch's own as rounding lets it: moments, step and weights are its."""
        expected, optimizer = trained()
        run_torch(expected, optimizer, STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER)
        net = model()
        optim = cairn.AdamW(lr=1e-2, weight_decay=0.1)
        m = cairn.import_checkpoint(self.session, path, net, optim, name=self.name, **options)
        self.assertEqual(m.version.step, STEPS_BEFORE)
        steps(m, net, STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER)
        m.close()
        again = cairn.import_checkpoint(self.session, path, model(), optim, name=self.name, **options)
        self.assertEqual(again.version.step, STEPS_BEFORE + STEPS_AFTER)  # it is there: nothing was written
        again.close()
        plain = self.session.attach(model(), optim, name=self.name)  # who goes on need not say where it began
        plain.close()
        for (name, ours), theirs in zip(net.named_parameters(), expected.parameters()):
            self.assertLess(float((ours.detach() - theirs.detach()).abs().max()), 2e-6, name)

    @needs_numbers
    def test_a_file_of_torch_goes_on_with_its_moments(self):
        self.goes_on(self.save(), names=NAMES)

    def test_a_dcp_folder_goes_on_with_its_moments(self):
        net, optimizer = trained()
        dcp_of(self.folder / "dcp", net, optimizer)
        self.goes_on(self.folder / "dcp")

    def test_buffers_come_along_and_windows_of_one_tensor_are_written_whole(self):
        def net():
            return torch.nn.Sequential(torch.nn.Linear(9, 16), torch.nn.BatchNorm1d(16))
        saved, ours = net(), net()
        saved[1].running_mean.uniform_()
        tensors = {f"model.{name}": value for name, value in saved.state_dict().items() if value.dim() > 0}
        moments = {f"optim.state.{name}.{what}": torch.rand_like(p) for name, p in saved.named_parameters()
                   for what in ("exp_avg", "exp_avg_sq")}
        write_dcp(self.folder / "dcp", {**tensors, **moments}, {})
        with self.assertRaisesRegex(cairn.Mismatch, r"it lacks: 1\.num_batches_tracked\."):
            cairn.import_checkpoint(None, self.folder / "dcp", ours, cairn.AdamW(lr=1e-2))
        with self.assertRaisesRegex(cairn.Mismatch, "nothing in it says how many steps"):
            cairn.import_checkpoint(None, self.folder / "dcp", ours, cairn.AdamW(lr=1e-2), allow_missing=["*.num_*"])
        self.addCleanup(setattr, _found, "WINDOW_BYTES", _found.WINDOW_BYTES)
        _found.WINDOW_BYTES = 1
        m = cairn.import_checkpoint(self.session, self.folder / "dcp", ours, cairn.AdamW(lr=1e-2), name=self.name,
                                    first_step=3, allow_missing=["*.num_*"])
        self.assertEqual(m.version.step, 3)
        for what in ("exp_avg", "exp_avg_sq"):
            for name, value in m.state_dict(what).items():
                self.assertTrue(torch.equal(value, moments[f"optim.state.{name}.{what}"]), (name, what))
        m.close()
        for name, value in ours.state_dict().items():
            if value.dim() > 0:
                self.assertTrue(torch.equal(value, saved.state_dict()[name]), name)

    @needs_numbers
    def test_a_folder_that_torch_itself_saved_goes_on(self):
        try:
            import torch.distributed.checkpoint as dcp
            from torch.distributed.checkpoint.state_dict import get_state_dict
        except ImportError:
            self.skipTest("this torch has no get_state_dict")
        net, optimizer = get_state_dict(*trained())
        alone = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}  # else it finds out
        dcp.save({"model": net, "optim": optimizer}, checkpoint_id=str(self.folder / "real"), **alone)
        self.goes_on(self.folder / "real")

    @needs_numbers
    def test_a_job_begins_with_a_snapshot_without_its_optimizer_and_step(self):
        net, begun = model(), model()
        with self.session.attach(net, cairn.AdamW(lr=1e-2), name=self.name) as m:
            steps(m, net, 0, STEPS_BEFORE)
            saved, snapshot = m.state_dict(), m.snapshot()
        shutil.copytree(self.cluster._folder / "snapshots" / self.name / snapshot, self.cluster.weights / "saved")
        with self.session.attach(begun, cairn.AdamW(lr=1e-3), name=self.name + "-next",
                            init_from=str(self.cluster.weights / "saved")) as m:
            self.assertEqual(m.version.step, 0)
            for name, p in begun.named_parameters():
                self.assertTrue(torch.equal(p.detach(), saved[name]), name)
            for plane in ("exp_avg", "exp_avg_sq"):
                self.assertFalse(any(value.any() for value in m.state_dict(plane).values()), plane)
            steps(m, begun, 0, 1)

    def test_plain_torch_goes_on_from_a_snapshot_that_its_own_reader_reads(self):
        try:
            import torch.distributed.checkpoint as dcp
            from torch.distributed.checkpoint import HuggingFaceStorageReader
        except ImportError:
            self.skipTest("this torch has no HuggingFaceStorageReader")
        net = model()
        m = self.session.attach(net, cairn.AdamW(lr=1e-2, weight_decay=0.1), name=self.name)
        steps(m, net, 0, STEPS_BEFORE)
        folder = self.cluster._folder / "snapshots" / self.name / m.snapshot()
        steps(m, net, STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER)
        m.close()
        theirs = model()
        weights = {name: torch.zeros_like(p) for name, p in theirs.named_parameters()}
        moments = {f"state.{name}.{what}": torch.zeros_like(p) for name, p in theirs.named_parameters()
                   for what in ("exp_avg", "exp_avg_sq")}
        for part, state in (("model", weights), ("optim", moments)):
            dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder / part)), no_dist=True)
        theirs.load_state_dict(weights)
        optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1)
        for name, p in theirs.named_parameters():
            optimizer.state[p] = {"step": torch.tensor(float(STEPS_BEFORE)),
                                  **{what: moments[f"state.{name}.{what}"] for what in ("exp_avg", "exp_avg_sq")}}
        run_torch(theirs, optimizer, STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER)
        for (name, ours), p in zip(net.named_parameters(), theirs.parameters()):
            self.assertLess(float((ours.detach() - p.detach()).abs().max()), 2e-6, name)

    @needs_numbers
    def test_what_does_not_fit_is_listed_before_anything_is_done(self):
        net, optimizer = trained()
        state = copy.deepcopy(net.state_dict())
        state["0.weight"] = torch.zeros(2, 2)
        state["more"] = state.pop("2.bias")
        path = self.folder / "wrong.pt"
        torch.save({"model": state, "optimizer": optimizer.state_dict()}, path)
        with self.assertRaisesRegex(cairn.Mismatch,
                                    r"it lacks: 2\.bias; it has more: more; other shapes: 0\.weight is "):
            cairn.import_checkpoint(None, path, model(), cairn.AdamW(lr=1e-2), names=NAMES)
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
        with self.assertRaisesRegex(cairn.Invalid, "numbered, not named"):
            cairn.import_checkpoint(None, path, model(), cairn.AdamW(lr=1e-2))

    @needs_numbers
    def test_tensors_that_lie_in_a_file_in_any_way_are_imported_as_they_are(self):
        net, optimizer = trained()
        state = {name: value.clone() for name, value in net.state_dict().items()}
        both = torch.randn(2, 3)
        state["0.weight"] = torch.randn(9, 16).t()  # not contiguous
        state["2.bias"] = both[1]  # behind another one, in one storage
        state["2.weight"] = state["2.weight"].to(torch.bfloat16)
        state["0.bias"] = torch.full((1,), 3.0).expand(16)  # one element
        path = self.folder / "odd.pt"
        torch.save({"model": state, "both": both, "optimizer": optimizer.state_dict()}, path)
        ours = model()
        m = cairn.import_checkpoint(self.session, path, ours, cairn.AdamW(lr=1e-2), name=self.name, names=NAMES)
        self.assertEqual(m.version, cairn.Version(1, STEPS_BEFORE))  # all of it is the initial state
        moments = m.state_dict("exp_avg")
        m.close()
        for name, p in net.named_parameters():
            self.assertTrue(torch.equal(ours.get_parameter(name).detach(), state[name].float()), name)
            self.assertTrue(torch.equal(moments[name], optimizer.state[p]["exp_avg"]), name)

    def import_run(self, ours, session=None, **options):
        """What save() has written."""
        return cairn.import_checkpoint(session or self.session, self.folder / "run.pt", ours, cairn.AdamW(lr=1e-2), **{
            "name": self.name, "names": NAMES, **options})

    def imported(self, ours, **options):
        """Of save(): as it is there, moments too; the step."""
        expected, optimizer = trained()
        m = self.import_run(ours, **options)
        moments = {plane: m.state_dict(plane) for plane in ("exp_avg", "exp_avg_sq")}
        self.assertEqual(m.version, (1, STEPS_BEFORE))
        m.close()
        for (name, p), theirs in zip(ours.named_parameters(), expected.parameters()):
            self.assertTrue(torch.equal(p.detach(), theirs.detach()), name)
            for plane, had in moments.items():
                self.assertTrue(torch.equal(had[name], optimizer.state[theirs][plane]), (name, plane))

    @needs_numbers
    def test_an_import_that_ended_halfway_has_left_nothing(self):
        self.save()
        self.addCleanup(setattr, _found, "WINDOW_BYTES", _found.WINDOW_BYTES)
        _found.WINDOW_BYTES = 1
        whole = cairn.job.Job.putting

        def cut(job, tensor, buffer, plane="param"):
            if plane == "exp_avg_sq":
                raise KeyboardInterrupt
            return whole(job, tensor, torch.ones_like(buffer), plane)

        for _ in range(2):
            with unittest.mock.patch.object(cairn.job.Job, "putting", cut):
                self.assertRaises(KeyboardInterrupt, self.imported, model())
        self.imported(model())

    @needs_numbers
    def test_every_rank_imports_and_one_reads(self):
        self.save()
        expected = trained()[0]

        def one(rank):
            ours = model()
            with cairn.connect(self.cluster.endpoint) as session:
                with self.import_run(ours, session, rank=rank, workers=2):
                    return [p.detach().clone() for p in ours.parameters()]

        put = cairn.job.Job.putting
        with ThreadPoolExecutor(2) as ranks, \
                unittest.mock.patch.object(cairn.job.Job, "putting", autospec=True, side_effect=put) as putting:
            for values in ranks.map(one, (1, 0)):
                for value, theirs in zip(values, expected.parameters()):
                    self.assertTrue(torch.equal(value, theirs.detach()))
        self.assertEqual(putting.call_count, 3 * len(NAMES))

    @needs_numbers
    def test_a_compiled_model_is_imported_by_either_names(self):
        self.save()
        compiled = [name for name, _ in torch.compile(model()).named_parameters()]
        for which, names in (("compiled", compiled), ("plain", NAMES)):
            ours = torch.compile(model())
            with self.import_run(ours, name=f"{self.name}-{which}", names=names):
                for p, theirs in zip(ours.parameters(), trained()[0].parameters()):
                    self.assertTrue(torch.equal(p.detach(), theirs.detach()))

    @needs_numbers
    def test_hyper_parameters_of_another_optimizer_are_not_compared(self):
        net, optimizer = trained()
        saved = optimizer.state_dict()
        saved["param_groups"][0].update(betas=(0.9, 0.99, 0.999), eps=(1e-30, 1e-3), momentum=None)
        torch.save({"model": net.state_dict(), "optimizer": saved}, self.folder / "run.pt")
        self.imported(model())

    @needs_numbers
    def test_moments_of_an_import_that_ended_halfway_do_not_come_with_another_state(self):
        self.save()
        with unittest.mock.patch.object(cairn.job.Job, "init_done", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, self.imported, model())
        with self.session.attach(model(), cairn.AdamW(lr=1e-2), name=self.name) as m:
            for plane in ("exp_avg", "exp_avg_sq"):
                self.assertFalse(any(value.any() for value in m.state_dict(plane).values()), plane)

    @needs_numbers
    def test_a_checkpoint_goes_before_the_model_and_before_initializers(self):
        self.save()
        with torch.device("meta"):
            ours = model()
        self.imported(ours, init={"*": cairn.Init("zeros")})
        made = {"name": self.name + "-made", "init": {"*": cairn.Init("zeros")}}
        with self.session.attach(model(), cairn.AdamW(lr=1e-2), first_step=STEPS_BEFORE, **made):
            pass
        with self.import_run(model(), **made) as there:
            self.assertFalse(there.state_dict()["0.weight"].any())  # it had its state
        with self.assertRaisesRegex(cairn.Invalid, "two initial states"):
            self.imported(model(), init_from="weights")

    def test_of_a_file_in_the_other_byte_order_nothing_is_read_past_torch(self):
        other = {"little": "big", "big": "little"}[sys.byteorder]
        for order, is_native in ((sys.byteorder, True), (other, False)):
            path = self.folder / order
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("archive/byteorder", order)
            self.assertEqual(_stored._is_native(path), is_native)

    def test_where_a_direct_read_is_refused_the_file_is_read_all_the_same(self):
        path, ones = self.folder / "ones", b"\0\0\x80?" * 4096
        path.write_bytes(ones)
        with open(path, "rb") as opened:
            there = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        file, read = _stored.File(path), os.preadv
        self.addCleanup(file.close)
        direct = file._direct

        def refuse(fd, into, at):
            if fd == direct:
                raise OSError(errno.EINVAL, "Invalid argument")
            return read(fd, into, at)

        with unittest.mock.patch("os.preadv", refuse):
            got = file.read([torch.frombuffer(there, dtype=torch.float32)], _stored.Room())
        self.assertTrue(torch.equal(got[0], torch.ones(4096)))

    def test_neighbours_in_a_file_are_read_at_once_and_one_that_is_cut_off_is_said(self):
        count = 3000
        values = torch.arange(4 * count, dtype=torch.float32)
        path = self.folder / "values"
        path.write_bytes(bytes(64) + values.numpy().tobytes() + bytes(_stored._GAP_BYTES * 2) + b"\0\0\x80?" * count)
        with open(path, "rb") as file:
            there = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # as torch has it
        last = 64 + 4 * values.numel() + 2 * _stored._GAP_BYTES
        tensors = [torch.frombuffer(there, dtype=torch.float32, count=count, offset=at)
                   for at in (last, 64 + 8 * count, 64)] + [torch.full((3,), 7.0)]
        file = _stored.File(path)
        self.addCleanup(file.close)
        spans = _stored._spans([(i, file._place(one), 4 * one.numel()) for i, one in enumerate(tensors)])
        self.assertEqual([[i for i, _ in span.members] for span in spans], [[2, 1], [0]])
        room = _stored.Room()
        for _ in range(2):  # the room is used again
            got = file.read(tensors, room)
            self.assertTrue(torch.equal(got[0], torch.ones(count)))
            self.assertTrue(torch.equal(got[1], values[2 * count:3 * count]))
            self.assertTrue(torch.equal(got[2], values[:count]))
            self.assertIs(got[3], tensors[3])
            got[2].zero_()
        self.assertTrue(torch.equal(tensors[2], values[:count]))
        os.truncate(path, last + 100)
        with self.assertRaisesRegex(cairn.Invalid, "is cut off"):
            file.read(tensors[:1], room)

    def test_code_in_a_checkpoint_is_refused_and_not_run(self):
        mark = self.folder / "ran"

        class Evil:
            def __reduce__(self):
                return os.system, (f"touch {mark}",)

        net, optimizer = trained()
        path = self.save(surprise=Evil())
        with self.assertRaisesRegex(cairn.Invalid, "no code is run"):
            read_all(path)
        dcp_of(self.folder / "dcp", net, optimizer, change=lambda metadata: Evil())
        with self.assertRaisesRegex(cairn.Invalid, "names posix.system, which no checkpoint needs"):
            read_all(self.folder / "dcp")
        self.assertFalse(mark.exists())

    def test_metadata_that_describes_what_no_checkpoint_has_is_refused(self):
        net, optimizer = trained()

        def moved(metadata):  # before the file's first byte
            next(iter(metadata.storage_data.values())).__dict__["offset"] = -5
            return metadata

        def numbered(metadata):
            entries = metadata.state_dict_metadata
            entries[7] = entries.pop(next(iter(entries)))
            return metadata

        def flat(metadata):
            next(iter(metadata.state_dict_metadata.values())).__dict__["size"] = torch.Size([9 * 16])
            return metadata

        def vast(metadata):
            step = metadata.state_dict_metadata["optim.state.0.weight.step"]
            step.__dict__.update(size=torch.Size([1 << 60]), chunks=[])
            return metadata

        for i, (change, word) in enumerate(((moved, "below 0"), (vast, "its chunks have 0 elements"),
                                            (numbered, "no text that can be printed"),
                                            (flat, "has other dimensions than the tensor"))):
            dcp_of(self.folder / str(i), net, optimizer, change=change)
            with self.assertRaisesRegex(cairn.Invalid, word):
                read_all(self.folder / str(i))

    def test_few_bytes_of_metadata_do_not_become_many(self):
        net, optimizer = trained()

        def repeated(metadata):  # the same chunk, 20,000 times of each tensor: two bytes each in a pickle
            for entry in metadata.state_dict_metadata.values():
                if hasattr(entry, "chunks"):
                    entry.chunks *= 20_000
            return metadata

        def long_paths(metadata):
            metadata.planner_data = {key: ("x" * 4000,) * 32 for key in metadata.state_dict_metadata}
            return metadata

        def long_shapes(metadata):
            entry = metadata.state_dict_metadata["optim.state.0.weight.step"]
            entry.__dict__["size"] = torch.Size([1] * 10_000)
            return metadata

        def nested(metadata):  # its repr would have 2^60 words
            inside = ()
            for _ in range(60):
                inside = (inside, inside)
            for index in metadata.storage_data:
                index.__dict__["index"] = inside
            return metadata

        for i, (change, word) in enumerate(((repeated, "of one chunk twice"), (long_shapes, "at most 64 numbers"),
                                            (long_paths, "paths longer than"), (nested, None))):
            dcp_of(self.folder / str(i), net, optimizer, change=change)
            data = (self.folder / str(i) / ".metadata").read_bytes()
            began = time.process_time()
            room = 0 if change is long_paths else _metadata.PRINTED_BYTES
            with unittest.mock.patch.object(_metadata, "PRINTED_BYTES", room):
                catalog, said = _metadata.judge(data)
            self.assertLess(time.process_time() - began, 3)
            self.assertTrue(said is None if word is None else word in (said or ""), said)
            self.assertLess(len(catalog or ""), 8 * len(data))

    def test_metadata_that_is_a_fifo_is_not_waited_for(self):
        (self.folder / "dcp").mkdir()
        os.mkfifo(self.folder / "dcp" / ".metadata")
        with self.assertRaisesRegex(cairn.Invalid, "no regular file"):
            _stored.read_dcp(self.folder / "dcp")

    def test_an_item_that_is_not_the_tensor_of_its_metadata_is_refused(self):
        for i, (item, word) in enumerate((({"a": 1}, "is a dict and no tensor"), ([1], "is a list and no tensor"),
                                          (torch.zeros(2, 4, dtype=torch.complex64),
                                           "complex64, .metadata says float32"),
                                          (torch.zeros(2, 4, device="meta"), "without its numbers"),
                                          (torch.zeros(2, 3), r"of \[2, 3\], .metadata says \[2, 4\]"))):
            folder = self.folder / str(i)

            def elsewhere(metadata, folder=folder, item=item):
                torch.save(item, folder / "other.distcp")
                for place in metadata.storage_data.values():
                    place.__dict__.update(relative_path="other.distcp", offset=0,
                                          length=(folder / "other.distcp").stat().st_size)
                return metadata

            with unittest.mock.patch.dict(globals(), CHUNKED=1):
                write_dcp(folder, {"model.w": torch.zeros(2, 4)}, {}, change=elsewhere)
            with self.assertRaisesRegex(cairn.Invalid, word):
                read_all(folder)

    def test_metadata_that_is_damaged_or_a_bomb_is_refused(self):
        net, optimizer = trained()
        dcp_of(self.folder / "dcp", net, optimizer)
        metadata = self.folder / "dcp" / ".metadata"
        good = metadata.read_bytes()
        for data in (b"", good[:len(good) // 2], b"\x80\x04" + b"(" * 200000 + b".", pickle.dumps({"a": 1}),
                     b"\x80\x04" + b"\x8d" + (1 << 40).to_bytes(8, "little") + b"x."):
            metadata.write_bytes(data)
            with self.assertRaises(cairn.Invalid):
                read_all(self.folder / "dcp")
        metadata.write_bytes(good.replace(b"__0_0.distcp", b"../0.distcp_"))
        with self.assertRaisesRegex(cairn.Invalid, "not the name of a file beside it"):
            read_all(self.folder / "dcp")
        for word, found in ((b"\0", "that can be printed"), (b"\n", "that can be printed"), (b"q", "read: No such")):
            metadata.write_bytes(good.replace(b"__0_0.distcp", b"__0_0.distc" + word))
            with self.assertRaisesRegex(cairn.Invalid, found):
                read_all(self.folder / "dcp")
        metadata.write_bytes(good)
        (self.folder / "dcp" / "__0_0.distcp").write_bytes(b"short")
        with self.assertRaisesRegex(cairn.Invalid, "cut off"):
            read_all(self.folder / "dcp")


if __name__ == "__main__":
    unittest.main()
