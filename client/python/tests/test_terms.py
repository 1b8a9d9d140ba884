"""Terms of a job that change: by an amendment, or by a job that is made of its snapshot; moments and step stay."""

import array
import unittest.mock

from runner import main
from torched import ClusterCase

import torch
from torch import nn

import cairn
from cairn.spec import Amendment, amend_to_c

LR = 1e-2


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def batch(step: int, micro: int) -> torch.Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * step + micro))


class Twin:
    """The same training by torch alone: one optimizer through all terms."""

    def __init__(self):
        self.model = model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR)
        self.steps = 0

    def train(self, steps: int, micro_batches: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            for micro in range(micro_batches):
                (self.model(batch(self.steps, micro)).square().mean() / micro_batches).backward()
            self.optimizer.step()
            self.steps += 1


class Terms(ClusterCase):
    shards = 2

    def attach(self, **options):
        return super().attach(model(), cairn.AdamW(lr=LR), **options)

    def train(self, m, twin: Twin, steps: int, micro_batches: int, atol: float = 0.0) -> None:
        for _ in range(steps):
            for micro in range(micro_batches):
                m.model(batch(m.version.step, micro)).square().mean().backward()
            m.step()
        twin.train(steps, micro_batches)
        self.assertEqual(m.version.step, twin.steps)
        for name, ours in m.state_dict().items():
            theirs = twin.model.state_dict()[name]
            worst = (ours - theirs).abs().max().item()
            self.assertLessEqual(worst, atol + 1e-6 * (theirs.abs().max().item() + LR * twin.steps), name)

    def cairn(self, *words: str, **options):
        return self.cluster.ctl(*words, **options)


class ByAmendment(Terms):
    def test_stage_and_micro_batches(self):
        twin, m = Twin(), self.attach(micro_batches=2)
        self.train(m, twin, 3, 2)
        for now in (dict(stage=3), dict(micro_batches=4), dict(stage=1), dict(stage=2, micro_batches=1)):
            m.amend(**now)
            with self.assertRaisesRegex(cairn.Reopen, "amended.*close it and open it again"):
                m.begin()
            m.close()
            info = self.cairn("job", "show", self.name)["spec"]
            self.assertLessEqual(now.items(), info.items())
            m = self.attach(stage=info["stage"], micro_batches=info["micro_batches"])
            self.train(m, twin, 2, info["micro_batches"])
        self.assertEqual(m.job.describe().revision, 4)

    def test_a_script_that_says_what_the_job_was_takes_what_it_is(self):
        twin, was = Twin(), dict(micro_batches=2, clip_norm=5.0, client_state_max=4)
        m = self.attach(**was)
        self.train(m, twin, 2, 2)
        m.amend(micro_batches=3, wire="bf16", client_state_max=8, clip_norm=0.0, seed=7, window=4)
        m.close()
        with self.assertLogs("cairn", "WARNING") as said:
            m = self.attach(**was)
        for word in ("micro_batches is 3 (2 was given)", "client_state_max is 8 (4 was given)", "seed is 7",
                     "clip_norm is 0.0 (5.0 was given)", "the wire dtype of 0.weight is bf16"):
            self.assertIn(word, "\n".join(said.output))
        for micro in range(3):
            m.model(batch(2, micro)).square().mean().backward()
        m.step(client_state=b"12345678")
        self.assertEqual(m.model[0].weight.detach().bfloat16().float().tolist(), m.model[0].weight.tolist())
        with self.assertRaisesRegex(cairn.Invalid, "client_state_max is 4, and the trainer's state that belongs to "
                                    "this version has 8 bytes"):
            m.amend(client_state_max=4)
        self.assertEqual(m.client_state(), b"12345678")

    def test_what_is_not_named_stays_what_others_made_it(self):
        m = self.attach()
        self.cairn("job", "amend", self.name, "--set", "default.lr=0.5", "--set", "default.schedule=linear", "--set",
                   "default.total_steps=50")
        m.amend({"default": dict(weight_decay=0.25)}, skips_max=7)
        group = self.cairn("job", "show", self.name)["groups"][0]
        self.assertEqual((group["lr"], group["schedule"]["kind"], group["schedule"]["total_steps"],
                          group["weight_decay"]), (0.5, "linear", 50, 0.25))
        self.assertEqual(self.cairn("job", "show", self.name)["spec"]["skips_max"], 7)

    def test_what_is_wrong_is_said_and_changes_nothing(self):
        m = self.attach()
        for settings, kind, text in [
                ({"stage": 4}, cairn.Invalid, r"stage is 4; allowed: 0 .*, 3 "),
                ({"stage": "x"}, cairn.Invalid, r'stage is "x"; allowed: a whole number'),
                ({"micro_batches": 0}, cairn.Invalid, r"micro_batches is 0; allowed: 1 to 65536"),
                ({"on_nonfinite": "hope"}, cairn.Invalid, r'on_nonfinite is "hope"; allowed: skip, fail'),
                ({"wire": "f16"}, cairn.CairnError, r"wire"),
                ({"nothing": 1}, cairn.NotFound, r'no field "nothing"; there are: clip_norm, .*stage, .*GROUP.lr'),
                ({"default.nothing": 1}, cairn.NotFound, r'group default: it has no field "nothing"; allowed: .*lr'),
                ({"default.lr": -1}, cairn.Invalid, r"group default: lr is -1; allowed: 0 to 1e\+18"),
                ({"default.points": "1:"}, cairn.Invalid, r'points is "1:"; allowed: STEP:FACTOR'),
                ({"first_step": 3}, cairn.Unsupported, "first_step says how job .* began, and does not change"),
                ({"global_batch": 4, "stage": 1}, cairn.Invalid, "global_batch"),
                ({"default.momentum": 0.5, "default.optimizer": "sgd"}, cairn.Unsupported, "optimizer")]:
            with self.assertRaisesRegex(kind, text, msg=settings):
                m.job.amend(settings=settings)
        with self.assertRaisesRegex(TypeError, "no argument micro"):
            m.amend(micro=3)
        self.assertEqual(self.cairn("job", "show", self.name)["spec"]["revision"], 0)
        self.train(m, Twin(), 1, 1)


class WhatAMismatchSays(Terms):
    """The way that it names is followed, and training goes on with the numbers of one optimizer."""

    def refused(self, **options) -> cairn.Mismatch:
        with self.assertRaises(cairn.Mismatch) as caught:
            self.attach(**options)
        return caught.exception

    def test_each_call_of_amend_makes_the_job_so(self):
        twin, was = Twin(), dict(micro_batches=2)
        m = self.attach(**was)
        self.train(m, twin, 2, 2)
        m.close()
        for now, spelled in [
                (dict(micro_batches=4), "micro_batches=4"),
                (dict(micro_batches=1, stage=3, client_state_max=16), "stage=3, micro_batches=1, client_state_max=16"),
                (dict(micro_batches=2, stage=1, skips_max=9, seed=5, window=None), "stage=1, micro_batches=2, "
                 "client_state_max=0, skips_max=9, seed=5"),
                (dict(global_batch=2, on_nonfinite="fail", snapshot_keep=3, snapshot_every=500), None),
                (dict(loss_scale=8.0, loss_scale_policy="fixed", clip_norm=1e3), None)]:
            mismatch = self.refused(**now)
            call = str(mismatch).rpartition("attach as it was, then ")[2].partition(", or `cairn job amend")[0]
            if spelled is not None:
                self.assertEqual(call, f"m.amend({spelled})")
            self.assertTrue(all(one.key and one.value for one in mismatch.differences), mismatch.differences)
            m = self.attach(**was)
            eval(call, {"m": m, "cairn": cairn})
            m.close()
            m, was = self.attach(**now), now
            micro_batches = now.get("global_batch", now.get("micro_batches", 1))
            self.scaled(m, twin, micro_batches) if "loss_scale" in now else self.train(m, twin, 2, micro_batches)
            m.close()

    def scaled(self, m, twin: Twin, micro_batches: int) -> None:
        self.assertEqual(m.begin().loss_scale, 8.0)
        m.scale(m.model(batch(m.version.step, 0)).square().mean()).backward()
        m.step()
        twin.train(1, 1)
        for name, ours in m.state_dict().items():
            self.assertLessEqual((ours - twin.model.state_dict()[name]).abs().max().item(), 1e-6, name)

    @unittest.mock.patch("logging.Logger.warning")
    def test_each_command_makes_the_job_so(self, _):
        twin, was = Twin(), {}
        m = self.attach(name=self.name)
        self.train(m, twin, 2, 1)
        m.close()
        for now, commands in [(dict(stage=3, micro_batches=2), 1), (dict(stage=0, clip_norm=50.0), 2),
                              (dict(chunk_leaves=4, wire_dtype="f32"), 2)]:
            text = str(self.refused(**now))
            said = [one.split()[1:] for one in text.splitlines()[-2 if "m.amend" in text else -1].split("`")[1::2]]
            self.assertEqual(len(said), commands, text)
            for words in said:
                self.cairn(*words, *["--yes"] * (words[1] == "create" and words[0] == "job"))
            m = self.attach(**now)
            self.train(m, twin, 1, now.get("micro_batches", 1))
            m.close()
            self.attach(**was).close()  # as it was is good, too
            was = now

    def test_a_wire_dtype_and_what_nothing_changes(self):
        m = self.attach()
        m.close()
        half = [cairn.Tensor(name, tuple(one.shape), wire="bf16") for name, one in model().named_parameters()]
        with self.assertRaises(cairn.Mismatch) as caught:
            self.session.open_worker(self.name, cairn.JobSpec(half, [cairn.Group(lr=LR)]), 20)
        self.assertEqual({(one.key, one.value) for one in caught.exception.differences if "wire dtype" in one.text},
                         {("wire", "bf16")})
        with self.assertRaisesRegex(cairn.Mismatch, "no setting makes it so: an optimizer") as caught:
            self.session.attach(model(), cairn.SGD(lr=LR), name=self.name, rank=0, timeout=20)
        self.assertIn(None, [one.key for one in caught.exception.differences])
        self.assertNotIn("m.amend", str(caught.exception))


class AddedTensors(Terms):
    def test_a_script_of_before_pushes_what_an_amendment_added_and_thawed(self):
        spec = cairn.JobSpec([cairn.Tensor("w", (4,)), cairn.Tensor("ice", (2,), kind="frozen")],
                             [cairn.Group(optimizer="sgd", lr=0.5)])
        job = self.session.open_worker(self.name, spec, 20)
        job.put("w", array.array("f", [1] * 4)), job.put("ice", array.array("f", [8, 9]))
        job.init_done(20)
        job.amend(add=[cairn.Tensor("late", (3,), init=cairn.Init("constant", 5.0))], unfreeze_tensors=["ice"])
        job.close()
        job = self.session.open_worker(self.name, spec, 20)
        job.init_done(20)
        round_ = job.round_begin(20)
        for name, gradient in ("w", [1] * 4), ("late", [2, 4, 6]), ("ice", [2, 2]):
            round_.push(name, array.array("f", gradient))
        version = round_.commit(timeout=20).version
        for name, right in ("w", [0.5] * 4), ("late", [4, 3, 2]), ("ice", [7, 8]):
            into = array.array("f", bytes(4 * len(right)))
            job.fetch(version, name, into).wait(20)
            self.assertEqual(list(into), right, name)
        with self.assertRaisesRegex(cairn.NotFound, "no tensor later"):
            job.fetch(version, "later", into)
        job.close()


class ByASnapshot(Terms):
    def made(self, *settings: str, job: str = "") -> None:
        words = [word for setting in settings for word in ("--set", setting)]
        self.cairn("snapshot", "create", self.name, "--wait")
        self.cairn("job", "create", job or self.name, "--from", f"{self.name}/latest", *words, "--yes")

    def test_where_state_lies_otherwise(self):
        twin, m = Twin(), self.attach(clip_norm=3.0)
        self.train(m, twin, 3, 1)
        with self.assertRaisesRegex(cairn.Unsupported, "stage of job .* changes only in a job made from its "
                                    "snapshot") as said:
            m.amend(stage=0)
        m.close()
        take, make = (one.split()[1:] for one in str(said.exception).split("`")[1::2])
        self.cairn(*take)
        self.cairn(*make, "--yes")
        m = self.attach(clip_norm=3.0, stage=0)
        self.assertEqual(self.cairn("job", "show", self.name)["shards"], 1)
        self.train(m, twin, 2, 1)
        m.close()
        self.made("stage=2", "spread=1", "chunk_leaves=2", "micro_batches=2", "clip_norm=0", job="beside")
        m = self.attach(name="beside", micro_batches=2, chunk_leaves=2)
        self.train(m, twin, 2, 2)
        m.close()
        with self.assertRaisesRegex(RuntimeError, "stage is 4; allowed: "):
            self.made("stage=4")
        with self.assertRaisesRegex(RuntimeError, r'no field \\"steps\\"|no field "steps"'):
            self.made("steps=4")
        self.attach(clip_norm=3.0, stage=0).close()  # nothing of it was touched

    def test_a_pair_has_two_values(self):
        for pair in ((500,), (500, 3, 1)):
            with self.assertRaisesRegex(ValueError, "values to unpack"):
                amend_to_c(Amendment(snapshots=pair), 0)


if __name__ == "__main__":
    main()
