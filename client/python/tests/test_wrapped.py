"""Models in wrappers: what torch.compile makes is seen through, what exchanges or cuts parameters itself is refused."""

import tempfile
import unittest
import warnings

from runner import main
import torched  # before torch: the file is skipped where there is none

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers

import cairn
from cairn.memory import Memory

CAN_COMPILE = hasattr(torch, "compile")
SAYS_COMPILE_FIRST = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)


class OptimizedModule(nn.Module):
    """What torch.compile makes, as far as names go; for torch 1.13, which has none."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self._orig_mod = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._orig_mod(x)


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="aot_eager") if CAN_COMPILE else OptimizedModule(module)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList([Block(), Block(), Block()]), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def whole(model: Net) -> nn.Module:
    return compiled(model)


def blocks(model: Net) -> nn.Module:
    for i in range(2):
        model.layers[i] = compiled(model.layers[i])
    return model


def in_place(model: Net) -> nn.Module:
    """module.compile(), of torch 2."""
    if CAN_COMPILE:
        model.compile(backend="aot_eager")
    return model


def blocks_in_place(model: Net) -> nn.Module:
    for layer in model.layers if CAN_COMPILE else ():
        layer.compile(backend="aot_eager")
    return model


def checkpointed(model: Net) -> nn.Module:
    for i in range(2):
        model.layers[i] = wrappers.checkpoint_wrapper(model.layers[i], wrappers.CheckpointImpl.NO_REENTRANT)
    return model


def offloaded(model: Net) -> nn.Module:
    """Of torch 2."""
    model.layers[1] = getattr(wrappers, "offload_wrapper", lambda layer: layer)(model.layers[1])
    return wrappers.checkpoint_wrapper(model, wrappers.CheckpointImpl.NO_REENTRANT)


def both(model: Net) -> nn.Module:
    """As torchtitan has it: each block is checkpointed, then compiled."""
    model = checkpointed(model)
    for i in range(2):
        model.layers[i] = compiled(model.layers[i])
    return model


WAYS = (whole, blocks, in_place, blocks_in_place, checkpointed, offloaded, both)


class Case(torched.ClusterCase):
    shards = 2

    def attach(self, model, name, **options):
        return super().attach(model, cairn.SGD(lr=0.1), name=name, **options)

    def trained(self, wrap, name: str, stage: int) -> dict:
        """Losses of three steps, and what the job and its state are then."""
        if CAN_COMPILE:
            torch._dynamo.reset()
        torch.manual_seed(0)
        model, losses = wrap(Net()), []
        m = self.attach(model, name, stage=stage)
        for step in range(3):
            loss = model(torch.arange(8.0).view(2, 4) + step).square().mean()
            loss.backward()
            m.step()
            losses.append(round(loss.item(), 4))
        job = [(tensor.name, tensor.unit, tensor.kind) for tensor in m.job.tensors()]
        seen = {"losses": losses, "job": job, "state": list(m.state_dict())}
        m.close()
        return seen


class Compiled(Case):
    def test_names_units_and_training_are_those_of_the_model_itself(self):
        for stage in (2, 3):
            plain = self.trained(lambda model: model, f"plain{stage}", stage)
            self.assertIn("layers.0.norm.running_mean", plain["state"])
            for wrap in WAYS:
                with self.subTest(wrap=wrap.__name__, stage=stage):
                    self.assertEqual(self.trained(wrap, f"{wrap.__name__}{stage}", stage), plain)

    def test_a_job_goes_on_compiled_or_not(self):
        m = self.attach(Net(), "either")
        m.close()
        m = self.attach(compiled(Net()), "either")
        self.assertEqual(m.version.step, 0)
        m.close()
        self.assertEqual(self.attach(whole(blocks(Net())), None).name, "net")

    def test_units_are_chosen_by_what_is_inside(self):
        for i, units in enumerate(([Block], ["layers.*"])):
            m = self.attach(blocks(Net()), f"chosen{i}", units=units)
            found = {t.unit for t in m.job.tensors() if t.kind != "blob"}
            self.assertEqual(found, {"layers.0", "layers.1", "layers.2", "root"})
            with self.assertRaisesRegex(cairn.Invalid, "there are layers, layers.0"):
                self.attach(compiled(Net()), "nowhere", units=["tail.*"])

    def test_it_is_attached_once(self):
        model = Net()
        self.attach(model, "once")
        with self.assertRaisesRegex(cairn.Invalid, "this Net is attached already"):
            self.attach(compiled(model), "twice")

    def test_what_is_read_is_seen_through_too(self):
        self.attach(Net(), "read")
        for stage in (2, 3):
            session = cairn.connect(self.cluster.endpoint)
            self.addCleanup(session.close)
            read = session.attach(compiled(Net()), name="read", stage=stage)
            self.assertTrue(torch.isfinite(read.model(torch.ones(2, 4))).all())
        with cairn.reader("read", self.cluster.endpoint) as reader:
            reader.load_into(compiled(Net()))

    @unittest.skipUnless(SAYS_COMPILE_FIRST, "torch 2.6 goes on without compiling, or fails in the backward pass")
    def test_stage_3_says_compile_first(self):
        model = Net()
        self.attach(model, "late", stage=3)
        with self.assertRaisesRegex(Exception, "compile first, then attach"):
            compiled(model)(torch.ones(2, 4))


class Checkpointed(Case):
    def test_a_job_goes_on_checkpointed_or_not(self):
        m = self.attach(checkpointed(Net()), "recomputed")
        m.model(torch.ones(2, 4)).sum().backward()
        m.step()
        Net().load_state_dict({name: value for name, value in m.state_dict().items() if "batches" not in name},
                              strict=False)
        self.assertEqual(set(m.state_dict()), set(Net().state_dict()))
        m.write(dict(m.model.named_parameters()))  # by the names that torch gives them
        m.close()
        self.assertEqual(self.attach(Net(), "recomputed").version.step, 1)

    @unittest.skipUnless(CAN_COMPILE, "get_state_dict is of torch 2")
    def test_its_own_checkpoint_is_imported(self):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict
        model = checkpointed(Net())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(torch.arange(8.0).view(2, 4)).sum().backward()
        optimizer.step()
        of_model, of_optimizer = get_state_dict(model, optimizer)
        saved = {name: value.clone() for name, value in of_model.items()}
        with tempfile.TemporaryDirectory() as folder:
            dcp.save({"model": of_model, "optim": of_optimizer}, checkpoint_id=folder, no_dist=True)
            model = checkpointed(Net())
            m = cairn.import_checkpoint(self.session, folder, model, torch.optim.AdamW(model.parameters(), lr=0.1),
                                        name="imported", rank=0, workers_min=1)
        self.addCleanup(m.close)
        self.assertEqual(m.version.step, 1)
        self.assertTrue(torch.equal(m.state_dict()["layers.0.up.weight"], saved["layers.0.up.weight"]))


class Parametrized(Case):
    def test_names_are_those_of_torch_and_training_goes_on(self):
        ways = [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm, nn.utils.parametrizations.orthogonal]
        ways += [nn.utils.parametrizations.weight_norm if CAN_COMPILE else nn.utils.weight_norm]
        for i, (way, stage) in enumerate([(way, stage) for way in ways for stage in (2, 3)]):
            with self.subTest(way=way.__name__, stage=stage):
                ours, theirs = [nn.Sequential(nn.Sequential(way(nn.Linear(4, 4)), nn.Linear(4, 1)))
                                for _ in map(torch.manual_seed, (i, i))]
                m = self.attach(ours, f"parametrized{i}", stage=stage)
                optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
                for step in range(3):
                    x = torch.arange(8.0).view(2, 4) / 8 + step
                    for model in (ours, theirs):
                        model(x).square().mean().backward()
                    m.step(), optimizer.step(), optimizer.zero_grad()
                state = m.state_dict()
                self.assertEqual(set(state), set(theirs.state_dict()))
                for name, value in theirs.named_parameters():
                    self.assertTrue(torch.allclose(state[name], value, atol=1e-6), name)


class Refused(Case):
    def one_process(self) -> None:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)

    def test_what_exchanges_gradients_itself(self):
        self.one_process()
        ddp = nn.parallel.DistributedDataParallel(Net())
        for model, where in ((ddp, "the model is in DistributedDataParallel"),
                             (nn.Sequential(ddp), "0 of the model is in DistributedDataParallel"),
                             (compiled(nn.DataParallel(Net())), "the model is in DataParallel")):
            with self.assertRaisesRegex(cairn.Invalid, where + r".*give the module inside \(\.module\)"):
                self.attach(model, "refused")
            with self.assertRaisesRegex(cairn.Invalid, where):
                self.session.attach(model, name="refused")
        self.attach(ddp.module, "inside")

    def test_one_that_is_put_around_it_later(self):
        self.one_process()
        m = self.attach(Net(), "around")
        ddp = nn.parallel.DistributedDataParallel(m.model)
        with self.assertRaisesRegex(cairn.Invalid, "second gradient of .*DistributedDataParallel .* leave it out"):
            ddp(torch.arange(8.0).view(2, 4)).sum().backward()
            m.step()

    def test_parameters_that_are_cut(self):
        class Cut(nn.Parameter):
            placements = ("Shard(0)",)

        model = Net()
        model.head.weight = Cut(model.head.weight.data)
        with self.assertRaisesRegex(cairn.Invalid, r"head.weight is a Cut.*fully_shard.*without that; stage=3"):
            self.attach(model, "cut")

    def test_a_model_of_fully_shard(self):
        if not CAN_COMPILE:
            self.skipTest("fully_shard is of torch 2.6")
        from torch.distributed.fsdp import fully_shard
        self.one_process()
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        model = Net()
        fully_shard(model, mesh=mesh)
        with self.assertRaisesRegex(cairn.Invalid, r"layers.0.up.weight is a DTensor.*fully_shard"):
            self.attach(model, "sharded")


class Scripted(Case):
    @staticmethod
    def with_one() -> nn.Module:
        """A scripted block, which may be a unit, and one that holds one."""
        model = Net()
        model.layers[0] = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
        model.layers[1] = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh())))
        return model

    def test_what_takes_no_hooks_is_said_before_anything_is_sent(self):
        for stage, model, what in ((2, torch.jit.script(nn.Sequential(nn.Linear(4, 4))), "the model is made by"),
                                   (3, self.with_one(), "unit layers.0 is made by")):
            with self.assertRaisesRegex(cairn.Unsupported, what + " torch.jit.*take no hooks"):
                self.attach(model, "scripted", stage=stage)
        self.assertNotIn("scripted", [job["name"] for job in self.cluster.ctl("job", "list")["jobs"]])

    def test_what_is_inside_a_unit_trains(self):
        for stage, units in ((2, None), (3, ["layers.1", "layers.2"])):
            m = self.attach(self.with_one(), f"inside{stage}", stage=stage, units=units)
            for _ in range(2):
                m.model(torch.ones(2, 4)).sum().backward()
                self.assertTrue(m.step().grad_norm > 0)


class HalfMade(unittest.TestCase):
    def test_what_was_never_made_goes_quietly(self):
        """An exception out of __init__ is one exception, not another one out of __del__."""
        Memory.__new__(Memory).__del__()


if __name__ == "__main__":
    main()
