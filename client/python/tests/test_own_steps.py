"""Each tensor has its own count of updates, as each parameter has in torch: what is frozen for a while, thawed late or
added late moves as torch.optim moves it, across a restore and a re-sharding."""

import copy
import logging
import os
import tempfile
import threading
import unittest

from runner import main
from scenes import scene
from torched import ClusterCase

import torch
from torch import nn

import cairn

LR = 0.01
OPTIMIZERS = {
    "adamw": (cairn.AdamW(lr=LR, weight_decay=0.1), lambda ps: torch.optim.AdamW(ps, lr=LR, weight_decay=0.1)),
    "adam": (cairn.Adam(lr=LR, weight_decay=0.1), lambda ps: torch.optim.Adam(ps, lr=LR, weight_decay=0.1)),
    "sgd": (cairn.SGD(lr=LR, momentum=0.9, weight_decay=0.1),
            lambda ps: torch.optim.SGD(ps, lr=LR, momentum=0.9, weight_decay=0.1)),
}


class Model(nn.Module):
    """Its loss has gradients that are given, the same bits for us and for torch. `trunk.weight` is cut over two shards;
    `late` is what is added."""

    def __init__(self, late: bool = False):
        super().__init__()
        torch.manual_seed(3)
        self.trunk, self.middle, self.head = nn.Linear(256, 300), nn.Linear(30, 5), nn.Linear(5, 1)
        if late:
            self.late = nn.Linear(30, 5, bias=False)

    def forward(self, step: int, untouched=()):
        drawn = torch.Generator().manual_seed(step)
        loss = torch.zeros(())
        for name, parameter in sorted(self.named_parameters()):
            gradient = torch.randn(parameter.shape, generator=drawn)
            if name not in untouched:
                loss = loss + (parameter * gradient).sum()
        return loss


class Beside:
    """A job, and the same model trained by torch beside it; after each step every parameter is compared."""

    def __init__(self, case: ClusterCase, name: str, late: bool = False, frozen=(), **options):
        self.case, self.name, self.steps = case, name, 0
        self.ours, (self.served, self.made) = Model(late), OPTIMIZERS[name.split("_")[0]]
        for parameter in frozen:
            self.ours.get_parameter(parameter).requires_grad_(False)
        self.torchs = copy.deepcopy(self.ours)
        self.optim = self.made(self.torchs.parameters())
        self.m = case.session.attach(self.ours, self.served, name=name, timeout=20, **options)

    def attach_again(self, model: nn.Module) -> None:
        """The job goes on with a model that has other tensors."""
        self.m.close()
        self.ours = model
        self.m = self.case.session.attach(model, self.served, name=self.name, timeout=20)

    def step(self, untouched=()) -> None:
        for parameter in self.torchs.parameters():
            parameter.grad = None  # zero_grad of torch 1.13 leaves zeros, which are a gradient
        self.torchs(self.steps, untouched).backward()
        self.optim.step()
        while True:
            try:
                self.ours(self.steps, untouched).backward()
                self.m.step()
                break
            except cairn.EpochChanged:
                continue
        self.steps += 1
        self.compare()

    def compare(self) -> None:
        with torch.no_grad():
            served = self.m.state_dict()
            for name, theirs in self.torchs.named_parameters():
                allowed = 1e-6 * (theirs.abs() + LR * self.steps)
                worst = ((served[name] - theirs).abs() / allowed).max().item()
                self.case.assertLessEqual(worst, 1, f"{self.name}: {name} after step {self.steps}")

    def freeze(self, *names: str) -> None:
        self.m.amend(freeze_tensors=names)
        for name in names:
            self.torchs.get_parameter(name).requires_grad_(False)

    def thaw(self, *names: str) -> None:
        self.m.amend(unfreeze_tensors=names)
        for name in names:
            self.torchs.get_parameter(name).requires_grad_(True)

    def restore(self) -> None:
        """From a snapshot of now."""
        before = self.case.cluster.digest(self.name)
        taken = self.m.snapshot()
        self.case.cluster.ctl("snapshot", "restore", self.name, taken, "--yes")
        with self.case.assertRaises(cairn.RolledBack) as rolled:
            self.m.begin()
        self.case.assertEqual(rolled.exception.step, self.steps)
        self.case.assertEqual(self.case.cluster.digest(self.name), before)

    def reshard(self, *how: str) -> None:
        """While it trains."""
        told = []
        wish = threading.Thread(target=lambda: told.append(self.case.cluster.ctl("reshard", "apply", self.name, *how)))
        wish.start()
        for _ in range(200):
            self.step()
            if not wish.is_alive():
                break
        wish.join(20)
        self.case.assertEqual(len(told), 1)


class OwnSteps(ClusterCase):
    shards = 2

    def test_a_tensor_that_is_frozen_for_a_while_goes_on_by_its_own_count(self):
        for name in OPTIMIZERS:
            with self.subTest(optimizer=name):
                both = Beside(self, name)
                both.step()
                both.freeze("trunk.weight", "head.bias")
                for _ in range(3):
                    both.step()
                both.thaw("trunk.weight")
                both.step()
                both.restore()
                both.step()
                both.thaw("head.bias")
                both.reshard("--drain", "shard-2")
                both.step()
                both.m.close()

    def test_what_is_thawed_or_added_late_begins_its_own_count(self):
        for name in OPTIMIZERS:
            with self.subTest(optimizer=name):
                both = Beside(self, f"{name}_late", frozen=("trunk.weight",))
                for _ in range(4):
                    both.step()
                added = Model(late=True)
                both.m.amend(unfreeze_tensors=["trunk.weight"])
                both.torchs.trunk.weight.requires_grad_(True)
                both.attach_again(Model())
                both.step()
                eighth = cairn.Init("constant", 0.125)
                both.m.job.amend(add=[cairn.Tensor("late.weight", (5, 30), unit="late", init=eighth)])
                both.attach_again(added)
                both.torchs.late = nn.Linear(30, 5, bias=False)
                nn.init.constant_(both.torchs.late.weight, 0.125)
                both.optim.add_param_group({"params": [both.torchs.late.weight]})
                both.step()
                both.restore()
                both.step()
                both.m.close()

    def test_a_parameter_whose_gradient_is_none_is_left_alone_if_the_job_says_so(self):
        """As a model with branches makes it: now one is used, now the other, and one never."""
        for name in OPTIMIZERS:
            with self.subTest(optimizer=name):
                both = Beside(self, f"{name}_leave", missing_gradients="leave")
                never = both.ours.middle.bias.clone()
                for step in range(6):
                    both.step(untouched=("middle.bias", "trunk.weight" if step % 3 == 0 else "head.weight"))
                both.restore()
                both.step(untouched=("middle.bias", "trunk.weight", "trunk.bias"))
                both.step(untouched=[each for each, _ in both.ours.named_parameters()][:-1])
                self.assertTrue(torch.equal(both.m.state_dict()["middle.bias"], never))
                both.reshard("--drain", "shard-2")
                both.freeze("head.bias")
                both.step(untouched=("head.bias", "middle.bias"))
                both.thaw("head.bias")
                for model in (both.ours, both.torchs):  # in a job that leaves it alone nobody need be told
                    model.head.weight.requires_grad_(False)
                both.step(untouched=("head.weight",))
                for model in (both.ours, both.torchs):
                    model.head.weight.requires_grad_(True)
                both.step()
                both.m.close()

    @unittest.skipIf(int(torch.__version__.split(".")[0]) < 2, "torch before 2.0 reads no numbers as data")
    def test_a_checkpoint_whose_parameters_are_at_different_steps_goes_on_as_torch_does(self):
        """Some were frozen for a while, one never had a gradient; then from a snapshot of the job itself."""
        for name in OPTIMIZERS:
            with self.subTest(optimizer=name), tempfile.TemporaryDirectory() as folder:
                path, net = os.path.join(folder, "trained.pt"), Model()
                optim = OPTIMIZERS[name][1](net.parameters())
                for step in range(5):
                    net.zero_grad(set_to_none=True)
                    net(step, untouched=("head.bias", "trunk.weight") if step < 3 else ("head.bias",)).backward()
                    optim.step()
                torch.save({"model": net.state_dict(), "optimizer": optim.state_dict()}, path)
                both = Beside.__new__(Beside)
                both.case, both.name, both.steps, both.ours = self, f"{name}_imported", 5, Model()
                both.served, both.torchs, both.optim = OPTIMIZERS[name][0], net, optim
                both.m = cairn.import_checkpoint(self.session, path, both.ours, both.served, name=both.name, timeout=20,
                                                 names=[each for each, _ in net.named_parameters()],
                                                 allow_missing=["head.bias"],
                                                 **({"first_step": 5} if name == "sgd" else {}))
                both.step()
                both.restore()
                both.step()
                both.m.close()

    def test_weights_alone_begin_their_moments_whatever_the_schedules_step_is(self):
        both = Beside(self, "adamw_weights", first_step=40,
                      steps_missed={each: 40 for each, _ in Model().named_parameters()})
        both.step()
        both.step()
        self.assertEqual(both.m.version.step, 42)
        both.m.close()
        with self.assertRaisesRegex(cairn.Invalid, "steps_missed is 41, and the job begins at step 40"):
            Beside(self, "adamw_wrong", first_step=40, steps_missed={"head.bias": 41})
        with self.assertRaisesRegex(cairn.Invalid, "steps_missed names head.bia"):
            Beside(self, "adamw_wrong", first_step=40, steps_missed={"head.bia": 1})

    def test_a_job_that_is_there_leaves_them_alone_from_an_amendment_on(self):
        both = Beside(self, "adamw_amended")
        both.freeze("trunk.weight")
        both.step()
        both.thaw("trunk.weight")
        self.cluster.ctl("job", "amend", both.name, "--set", "missing_gradients=leave")
        both.m.close()
        both.m = self.session.attach(both.ours, both.served, name=both.name, timeout=20, missing_gradients="leave")
        both.step(untouched=("head.bias",))
        both.step()
        both.m.close()

    def test_who_has_no_gradient_is_named_once_with_what_does_as_torch_does(self):
        def lines(name: str, optim, **options):
            m = self.session.attach(Model(), optim, name=name, timeout=20, **options)
            with self.assertLogs("cairn", "WARNING") as told:
                logging.getLogger("cairn").warning("end")
                for step in range(3):
                    m.model(step, untouched=("head.bias", "middle.bias") if step > 0 else ()).backward()
                    m.step()
            m.close()
            return told.output[1:]

        line, = lines("named", cairn.AdamW(lr=LR))
        self.assertIn("job named: the backward passes of step 2 had no gradient for middle.bias, head.bias; ", line)
        self.assertIn('attach(…, missing_gradients="leave") does as torch does', line)
        self.assertEqual(lines("led", cairn.AdamW(lr=LR), missing_gradients="leave"), [])
        self.assertEqual(lines("meant", cairn.AdamW(lr=LR), missing_gradients="zero"), [])
        self.assertEqual(lines("same", cairn.SGD(lr=LR)), [])  # a gradient of zeros changes nothing
        with self.assertRaisesRegex(cairn.Invalid, "missing_gradients"):
            lines("wrong", cairn.SGD(lr=LR), missing_gradients="none")

    @scene("`m.step()` without a backward pass, where torch's step does nothing")
    def test_a_step_without_a_backward_pass(self):
        for option, is_told in ({}, True), ({"missing_gradients": "leave"}, False):
            m = self.attach(Model(), cairn.AdamW(lr=LR), name=f"none{is_told}", **option)
            m.model(0).backward()
            m.step()
            before = m.state_dict()
            with self.assertLogs("cairn", "WARNING") as told:
                logging.getLogger("cairn").warning("end")
                m.step()
            self.assertEqual(["had no gradient for" in line for line in told.output], [False, True][:1 + is_told])
            after = m.state_dict()
            self.assertEqual(all(torch.equal(before[name], after[name]) for name in before), not is_told)


if __name__ == "__main__":
    main()
