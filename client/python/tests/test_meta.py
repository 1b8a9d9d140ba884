"""Models on torch's meta device, whose values the servers have or make, and models that are read and not trained."""

import contextlib
import ctypes
import json
import struct
import unittest
import unittest.mock

from runner import main
from torched import ClusterCase

import torch
from torch import nn

import cairn
import gpt


INIT = {"*norm*.weight": cairn.Init("ones"), "*.bias": cairn.Init("zeros"), "mask": cairn.Init("zeros"),
        "*": cairn.Init("normal", 0.0, 0.02, seed=7)}


def on_meta(model: gpt.GPT = None) -> gpt.GPT:
    """torch.device("meta") as a context makes it so, too; torch 1.13 lacks that."""
    model = gpt.gpt() if model is None else model
    model.to("meta")
    model.head.weight = model.token.weight
    return model


def save(path, tensors) -> None:
    """A safetensors file of fp32."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        dense = tensor.contiguous()
        some = ctypes.string_at(dense.data_ptr(), 4 * dense.numel())
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data + some)]}
        data += some
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Case(ClusterCase):
    shards = 2

    def worker(self, model, optim=None, **options):
        return self.attach(model, optim or cairn.AdamW(lr=1e-3), **options)

    def refused(self, kind, words, call):
        return super().refused(words, call, kind)

    def equal(self, ours, theirs):
        self.assertEqual(set(ours), set(theirs))
        for name in ours:
            self.assertTrue(torch.equal(ours[name], theirs[name]), name)


def trained(m, steps: int = 2):
    for _ in range(steps):
        here = m.begin()
        gpt.loss_of(m.model, gpt.batch(here.step, here.rank)).backward()
        m.step()
    return m


class Meta(Case):
    def test_initializers_of_the_shards_are_a_source_in_every_stage(self):
        roots = {}
        for stage in (0, 1, 2, 3):
            for model in (on_meta(), gpt.gpt(seed=5)):  # whose own values do not count
                name = f"made{stage}{len(roots)}"
                m = trained(self.worker(model, stage=stage, init=INIT, name=name))
                roots[name] = self.cluster.digest(name)
                self.assertIs(model.head.weight, model.token.weight)
                self.assertFalse(any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()]))
                m.close()
        self.assertEqual(len(set(roots.values())), 1, roots)

    def test_a_job_that_is_there_is_a_source(self):
        whole = trained(self.worker(gpt.gpt(), name="whole"), 4).state_dict()
        for stage in (0, 3):
            trained(self.worker(gpt.gpt(), name=f"there{stage}", stage=stage), 2).close()
            m = self.worker(on_meta(), name=f"there{stage}", stage=stage)
            self.assertEqual(m.version.step, 2)
            self.equal(trained(m, 2).state_dict(), whole)

    def test_initializers_of_a_job_that_is_there_need_not_be_said_again(self):
        trained(self.worker(gpt.gpt(), init=INIT), 1).close()
        self.assertEqual(self.worker(on_meta()).version.step, 1)

    def test_safetensors_are_a_source(self):
        model = gpt.gpt(seed=4)
        values = {name: tensor.detach() for name, tensor in model.named_parameters()}
        path = self.cluster.weights / "gpt.safetensors"
        save(path, {**values, "mask": model.mask})
        for stage in (1, 3):
            m = self.worker(on_meta(), name=f"read{stage}", stage=stage, init_from=str(path))
            there = m.state_dict()
            self.equal({name: there[name] for name in values}, values)
            self.assertTrue(torch.equal(m.model.mask, model.mask))
        m = self.attach(on_meta().requires_grad_(False), name="reward", init_from=str(path), rank=0, workers_min=1)
        self.equal(dict(m.model.named_parameters()), values)

    def test_another_worker_is_a_source(self):
        first = self.attach(gpt.gpt(), cairn.SGD(), rank=0, workers_min=2)
        second = self.attach(on_meta(), cairn.SGD(), self.connect(), rank=1, workers_min=2)
        self.equal(dict(second.model.named_parameters()), dict(first.model.named_parameters()))

    def test_without_a_source_it_is_refused_before_there_is_a_job(self):
        self.refused(cairn.Invalid, "nobody has the initial values of job nowhere: .*token.weight.* init=.* init_from=",
                     lambda: self.worker(on_meta(), name="nowhere"))
        self.refused(cairn.NotFound, "nowhere", lambda: self.session.open_reader("nowhere"))
        self.refused(cairn.Invalid, "init: 'head' is no", lambda: self.worker(gpt.gpt(), init={"head": INIT["*"]}))
        self.refused(cairn.Invalid, "init must be", lambda: self.worker(gpt.gpt(), init={"*": 0.0}))

    def test_buffers_that_no_server_keeps_are_listed(self):
        model = nn.Sequential(nn.Linear(2, 2, device="meta"), nn.BatchNorm1d(2, device="meta"))
        model.eval()
        model[0].register_buffer("angles", torch.empty(3, device="meta"), persistent=False)
        init = {"1.weight": cairn.Init("ones"), "*": cairn.Init("zeros")}
        self.refused(cairn.Invalid, r": 0.angles, 1.num_batches_tracked; .* model.0.angles = torch.tensor",
                     lambda: self.worker(model, init=init))
        model[0].angles, model[1].num_batches_tracked = torch.arange(3.0), torch.tensor(0)
        m = self.worker(model, init=init)
        self.assertEqual(model[0].angles.tolist(), [0.0, 1.0, 2.0])
        self.assertEqual(model[1].running_var.tolist(), [0.0, 0.0])  # as it was said
        self.assertEqual(set(m.state_dict()), set(model.state_dict()))

    def test_what_refers_to_parameters_by_their_module_goes_on(self):
        """An LSTM keeps a list of them; attributes of a parameter stay; a torch optimizer names its groups by them."""
        model = nn.LSTM(3, 4, device="meta")
        model.weight_ih_l0.is_mine = True
        optim = torch.optim.SGD([{"params": [model.weight_ih_l0], "lr": 0.5},
                                 {"params": [model.weight_hh_l0, model.bias_ih_l0, model.bias_hh_l0], "lr": 0.25}])
        m = self.worker(model, optim, init={"*": cairn.Init("constant", 0.5)})
        model(torch.ones(2, 1, 3))[0].sum().backward()
        m.step()
        self.assertTrue(model.weight_ih_l0.is_mine)
        self.assertEqual(m.state_dict()["weight_ih_l0"].shape, (16, 3))
        self.assertTrue((model.weight_ih_l0 != 0.5).any())

    @unittest.skipUnless(hasattr(torch, "get_default_device"), "this torch has no `with torch.device`")
    def test_a_model_that_is_built_within_torch_device(self):
        with torch.device("meta"):
            model = gpt.GPT()
        self.assertTrue(trained(self.worker(model, init=INIT, stage=3), 1).version.step == 1)


class Generator(gpt.GPT):
    @torch.no_grad()
    def generate(self, tokens, count: int):
        for _ in range(count):
            tokens = torch.cat([tokens, self(tokens[:, -gpt.CONTEXT:])[:, -1:].argmax(-1)], 1)
        return tokens


def generator(seed: int = 1) -> Generator:
    torch.manual_seed(seed)
    return Generator()


class Reading(Case):
    def test_a_running_job_is_read_by_models_of_memory_and_of_none(self):
        m = trained(self.worker(gpt.gpt()), 3)
        prompt = gpt.batch(0, 0)[:, :gpt.CONTEXT]
        alone = generator()
        alone.load_state_dict(m.state_dict())
        for stage in (0, 3):
            for model in (generator(9), on_meta(generator())):
                with self.subTest(stage=stage):
                    reads = self.attach(model, session=self.connect(), name=m.name, stage=stage)
                    self.assertEqual(reads.version, m.version)
                    self.assertTrue(torch.equal(model.generate(prompt, 5), alone.generate(prompt, 5)))
                    self.equal(reads.state_dict(), m.state_dict())
                    if stage == 3:
                        memory = reads.memory()
                        self.assertLessEqual(memory.peak_bytes, 2 * memory.largest_unit_bytes)

    def test_it_stays_at_its_version_until_it_is_refreshed(self):
        m = trained(self.worker(gpt.gpt()), 1)
        reads = self.attach(on_meta(generator()), session=self.connect(), name=m.name, stage=3)
        tokens = gpt.batch(0, 0)[:, :-1]

        def seen(one):
            with torch.no_grad():
                return one.model(tokens)

        before = seen(reads)
        trained(m, 4)  # the servers keep two versions, and what is leased
        self.assertTrue(torch.equal(seen(reads), before))
        self.assertEqual(reads.refresh(), m.version)
        m.model.eval()
        self.assertTrue(torch.equal(seen(reads), seen(m)))
        reads._lease.end()  # as if it had lapsed
        trained(m, 4)
        self.refused(cairn.VersionGone, r"m.refresh\(\) takes the newest", lambda: seen(reads))
        self.assertEqual(reads.refresh(newer_than=reads.version), m.version)
        self.assertTrue(torch.equal(seen(reads), seen(m)))

    def test_a_model_that_nobody_trains_is_kept_once_for_all_its_readers(self):
        reference = generator(3).requires_grad_(False)
        tokens, own = gpt.batch(0, 0)[:, :-1], generator(3)
        first = self.attach(reference, rank=0, workers_min=1)
        readers = [self.attach(on_meta(generator()), session=self.connect(), stage=stage) for stage in (1, 3)]
        for m in [first] + readers:
            x = own.token(tokens).detach().requires_grad_()  # gradients go through it, to what was put in
            with contextlib.ExitStack() as stack:
                stack.callback(m.model.token.forward.__self__.register_forward_hook(lambda *_: x).remove)
                m.model(tokens).square().sum().backward()
            self.assertTrue(x.grad is not None and x.grad.abs().sum() > 0)
            self.assertTrue(torch.equal(m.model(tokens), own(tokens)))
            self.assertTrue(all(p.grad is None for p in reference.parameters()))

    def test_a_close_whose_lease_cannot_be_ended_closes_all_the_same(self):
        trained(self.worker(gpt.gpt()), 1)
        reads = self.attach(generator(), session=self.connect(), stage=3)
        job, hooks = reads.job, len(reads.model._forward_pre_hooks)
        with unittest.mock.patch.object(reads, "_end_lease", side_effect=cairn.Timeout("asked for too long")):
            self.refused(cairn.Timeout, "asked for too long", reads.close)
        self.assertTrue(job.closed)
        self.assertLess(len(reads.model._forward_pre_hooks), hooks)
        self.assertNotIn(reads.model, cairn._held._attached)

    def test_what_is_for_trainers_is_refused(self):
        m = self.attach(generator(3).requires_grad_(False), rank=0, workers_min=1)
        for call in (m.begin, m.step, m.micro_end, lambda: m.scale(1), lambda: m.write({}), m.snapshot):
            self.refused(cairn.Invalid, "is only read here", call)
        self.refused(cairn.Invalid, "clip_norm: of training", lambda: self.attach(generator(), clip_norm=1.0))
        other = self.connect()
        self.refused(cairn.Mismatch, "not in the job", lambda: self.attach(nn.Linear(2, 2), session=other))
        self.refused(cairn.Exists, "a session of its own", lambda: self.attach(generator()))
        self.refused(cairn.NotFound, "there is no job nothing to read",
                     lambda: self.attach(generator(), name="nothing"))
        self.refused(cairn.Invalid, r"attach\(model\)", lambda: self.worker(generator().requires_grad_(False)))
        self.refused(cairn.Invalid, "nobody has the initial values",
                     lambda: self.attach(on_meta().requires_grad_(False), name="nothing", rank=0, workers_min=1))
        self.assertEqual(self.attach(on_meta().requires_grad_(False), name="made", rank=0, workers_min=1,
                                     init=INIT).version.step, 0)


if __name__ == "__main__":
    main()
