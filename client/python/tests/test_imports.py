"""What an import takes it can justify, and says: the optimizer of the file against the job's, whatever dicts a program
has put around them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import textwrap
import unittest
import zipfile
from pathlib import Path

import torched

torch = torched.torch
import cairn  # noqa: E402
from cairn import _stored  # noqa: E402
from cluster import BIN  # noqa: E402
from test_checkpoint import model, needs_numbers, run_torch, steps, write_dcp  # noqa: E402

BEFORE, AFTER = 3, 3
SOURCE = Path(__file__).resolve().parents[3]
NAMES = [name for name, _ in model().named_parameters()]


def trained(make, steps_made: int = BEFORE):
    net = model()
    optimizer = make(net.parameters())
    run_torch(net, optimizer, 0, steps_made)
    return net, optimizer


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


class Imports(torched.ClusterCase):
    shards = 2

    def save(self, tree, name="run.pt") -> Path:
        torch.save(tree, self.folder / name)
        return self.folder / name

    def refused(self, path, optim, words, **options):
        with self.assertRaisesRegex(cairn.CairnError, words):
            cairn.import_checkpoint(None, path, model(), optim, **options)

    def goes_on(self, path, make, name=None, net=None, first=BEFORE, **options) -> "cairn.torch.AttachedModel":
        """As torch does from the same file: its optimizer, given as it is, and AFTER steps."""
        expected, optimizer = trained(make)
        run_torch(expected, optimizer, BEFORE, BEFORE + AFTER)
        net = model() if net is None else net
        with self.assertLogs("cairn", "INFO") as log:
            m = cairn.import_checkpoint(self.session, path, net, make(net.parameters()), name=name or self.name,
                                        **options)
        line = [text for text in log.output if "imported" in text]
        self.assertEqual(len(line), 1, log.output)
        self.assertIn(m.imported.text, line[0])
        self.assertEqual((m.version.step, m.imported.step), (first, first))
        steps(m, net, BEFORE, BEFORE + AFTER)
        m.close()
        for (which, ours), theirs in zip(net.named_parameters(), expected.parameters()):
            bound = 1e-6 * (theirs.detach().abs() + 1e-2 * AFTER)
            self.assertTrue(bool(((ours.detach() - theirs.detach()).abs() <= bound).all()), which)
        return m

    # ---- the optimizer ----

    @needs_numbers
    def test_momentum_of_sgd_is_used(self):
        net, optimizer = trained(sgd)
        path = self.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()})
        for options in ({}, {"first_step": 0}):
            self.refused(path, cairn.SGD(lr=1e-2, momentum=0.9), "nothing in it says how many steps.*first_step=N",
                         names=NAMES, **options)
        m = self.goes_on(path, sgd, first_step=BEFORE)
        self.assertEqual(m.imported.moments, {"momentum_buffer": 4})
        with cairn.import_checkpoint(self.session, path, model(), cairn.SGD(lr=1e-2), name="without", names=NAMES,
                                     allow_options=["momentum"]) as m:
            self.assertIn("left: momentum_buffer of 4, for which the job's optimizer has no use", m.imported.text)

    @needs_numbers
    def test_moments_that_cannot_be_are_refused_and_a_missing_step_is_no_sgds(self):
        net, optimizer = trained(adamw)
        saved = optimizer.state_dict()
        for state in saved["state"].values():
            state.pop("step")
        path = self.save({"model": net.state_dict(), "optimizer": saved}, "stepless.pt")
        self.refused(path, cairn.AdamW(lr=1e-2), "how many steps its run has made \\(the state of each parameter has a "
                     "'step' where torch wrote it.*first_step=N", names=NAMES)
        saved["state"][1]["exp_avg_sq"][0] = -1e-9
        path = self.save({"model": net.state_dict(), "optimizer": saved}, "negative.pt")
        with self.assertRaisesRegex(cairn.Mismatch, f"exp_avg_sq of {NAMES[1]} is below 0"):
            cairn.import_checkpoint(self.session, path, model(), cairn.AdamW(lr=1e-2), name="negative", names=NAMES,
                                    first_step=BEFORE, timeout=10)
        saved["state"][1]["exp_avg_sq"][0] = float("inf")
        path = self.save({"model": net.state_dict(), "optimizer": saved}, "infinite.pt")
        with self.assertRaisesRegex(cairn.Mismatch, f"exp_avg_sq of {NAMES[1]} is not finite"):
            cairn.import_checkpoint(self.session, path, model(), cairn.AdamW(lr=1e-2), name="infinite", names=NAMES,
                                    first_step=BEFORE, timeout=10)
        ours = model()
        ones = torch.ones_like(dict(ours.named_parameters())[NAMES[0]])
        with self.session.attach(ours, cairn.AdamW(lr=1e-2), name="written") as m:
            for plane, value, word in (("exp_avg_sq", -ones, "below 0"),
                                       ("exp_avg", ones * float("nan"), "not finite")):
                with self.assertRaisesRegex(cairn.Invalid, f"{plane} of {NAMES[0]} is {word}"):
                    m.write({NAMES[0]: value}, plane=plane)

    @needs_numbers
    def test_moments_of_another_rule_are_refused(self):
        def of(make, **changes):
            net, optimizer = trained(make)
            saved = optimizer.state_dict()
            saved["param_groups"][0].update(changes)
            return self.save({"model": net.state_dict(), "optimizer": saved}, f"{next(number)}.pt")

        lr, number = 1e-2, itertools.count()
        rms = lambda p: torch.optim.RMSprop(p, lr=lr, momentum=0.9)  # noqa: E731
        muon = dict(ns_steps=5, ns_coefficients=(3.4, -4.7, 2.0), adjust_lr_fn=None)
        for job, path, words in (
                (cairn.AdamW(lr=lr), of(sgd), "those of SGD, and the job's optimizer is AdamW"),
                (cairn.AdamW(lr=lr), of(rms), "those of RMSprop"),
                (cairn.SGD(lr=lr, momentum=0.9), of(rms), "those of RMSprop"),
                (cairn.SGD(lr=lr, momentum=0.9), of(sgd, **muon), "those of Muon"),
                (cairn.SGD(lr=lr, momentum=0.9), of(adamw), "those of Adam.*SGD"),
                (cairn.AdamW(lr=lr), of(lambda p: torch.optim.Adamax(p, lr=lr)), "those of Adamax"),
                (cairn.AdamW(lr=lr), of(lambda p: torch.optim.NAdam(p, lr=lr)), "those of NAdam"),
                (cairn.AdamW(lr=lr), of(adamw, amsgrad=True), "ran with amsgrad=True"),
                (cairn.AdamW(lr=lr), of(adamw, maximize=True), "maximize=True"),
                (cairn.AdamW(lr=lr), of(adamw, decoupled_weight_decay=False), "added to the gradient, as Adam has it"),
                (cairn.Adam(lr=lr), of(adamw, decoupled_weight_decay=True), "beside the moments, as AdamW has it"),
                (cairn.SGD(lr=lr, momentum=0.9), of(sgd, dampening=0.5), r"dampening=0\.5"),
                (cairn.SGD(lr=lr, momentum=0.9), of(lambda p: torch.optim.SGD(p, lr=lr)),
                 r"no moments of: 0\.bias \(momentum_buffer\)")):
            self.refused(path, job, words, names=NAMES, first_step=BEFORE if "SGD" in str(job) else None)

    @needs_numbers
    def test_the_advice_against_another_rule_is_right(self):
        net, optimizer = trained(lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True))
        path = self.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()})
        self.refused(path, cairn.AdamW(lr=1e-2), r"amsgrad=True.*allow_options=\['amsgrad'\]", names=NAMES)
        with cairn.import_checkpoint(self.session, path, model(), cairn.AdamW(lr=1e-2), name=self.name, names=NAMES,
                                     allow_options=["amsgrad"]) as m:
            self.assertEqual(m.imported.moments, {"exp_avg": 4, "exp_avg_sq": 4})
        ours = model()
        with cairn.import_checkpoint(self.session, path, ours, cairn.SGD(lr=1e-2, momentum=0.9), moments=False,
                                     first_step=7, name=self.name + "-weights") as m:
            self.assertEqual((m.version.step, m.imported.moments), (7, {}))
            self.assertIn("left: the moments in optimizer", m.imported.text)
            self.assertFalse(any(value.any() for value in m.state_dict("exp_avg").values()))
        for name, p in ours.named_parameters():
            self.assertTrue(torch.equal(p.detach(), net.get_parameter(name).detach()), name)

    @needs_numbers
    def test_the_step_that_is_given_and_the_steps_own_do_not_differ_in_silence(self):
        net, optimizer = trained(adamw)
        path = self.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()})
        self.refused(path, cairn.AdamW(lr=1e-2), "first_step=9, and its optimizer has made 3", names=NAMES,
                     first_step=9)
        saved = optimizer.state_dict()
        for wrong in (float("nan"), -1.0, 2.5, 1e30):
            saved["state"][0]["step"] = torch.tensor(wrong)
            self.refused(self.save({"model": net.state_dict(), "optimizer": saved}), cairn.AdamW(lr=1e-2),
                         "is no count of steps", names=NAMES)

    # ---- names ----

    @needs_numbers
    def test_a_torch_optimizer_says_the_order_of_numbers(self):
        def groups(net):
            decay = [p for p in net.parameters() if p.dim() > 1]
            return [{"params": decay, "weight_decay": 0.1}, {"params": [p for p in net.parameters() if p.dim() < 2]}]

        def make(net):
            return torch.optim.AdamW(groups(net), lr=1e-2, weight_decay=0.0)

        net, ours = model(), model()
        optimizer = make(net)
        run_torch(net, optimizer, 0, BEFORE)
        path = self.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()})
        with cairn.import_checkpoint(self.session, path, ours, make(ours), name=self.name) as m:
            moments = m.state_dict("exp_avg")
        for name, p in net.named_parameters():
            self.assertTrue(torch.equal(moments[name], optimizer.state[p]["exp_avg"]), name)
        self.refused(path, cairn.AdamW(lr=1e-2), "numbered, not named: give the torch optimizer itself")
        other = model()
        with self.assertRaisesRegex(cairn.Mismatch, "have 2, 2 parameters, those of the optimizer that was given 4"):
            cairn.import_checkpoint(None, path, other, adamw(other.parameters()))
        self.refused(path, cairn.AdamW(lr=1e-2), "are 3", names=NAMES[:3])
        self.refused(path, cairn.AdamW(lr=1e-2), "a list is taken", names="0.weight")

    @needs_numbers
    def test_names_that_contradict_the_files_are_refused(self):
        net, optimizer = trained(adamw)
        saved = optimizer.state_dict()
        saved["param_groups"][0]["param_names"] = NAMES
        path = self.save({"model": net.state_dict(), "optimizer": saved})
        swapped = [NAMES[2], NAMES[1], NAMES[0], NAMES[3]]
        self.refused(path, cairn.AdamW(lr=1e-2), r"parameter 0 is 0\.weight there and 2\.weight by names",
                     names=swapped)
        other = model()
        optim = adamw(list(other.parameters())[::-1])
        with self.assertRaisesRegex(cairn.Mismatch, r"parameter 0 is 0\.weight there and 2\.bias by the optimizer"):
            cairn.import_checkpoint(None, path, other, optim)
        with cairn.import_checkpoint(self.session, path, model(), cairn.AdamW(lr=1e-2), name=self.name) as m:
            self.assertEqual(m.imported.moments["exp_avg"], 4)  # names of its own are enough

    @needs_numbers
    def test_an_optimizer_of_named_parameters_is_taken(self):
        net = model()
        try:
            optimizer = torch.optim.AdamW(net.named_parameters(), lr=1e-2, weight_decay=0.1)
        except (TypeError, AttributeError):
            self.skipTest("an optimizer of this torch takes no names")
        run_torch(net, optimizer, 0, BEFORE)
        path = self.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()})
        ours = model()
        with cairn.import_checkpoint(self.session, path, ours, torch.optim.AdamW(ours.named_parameters(), lr=1e-2),
                                     name=self.name) as m:
            self.assertEqual(m.imported.step, BEFORE)

    # ---- containers ----

    @needs_numbers
    def test_containers_of_programs_are_known(self):
        net, optimizer = trained(adamw)
        weights, state = net.state_dict(), optimizer.state_dict()
        named = {"state": {name: state["state"][i] for i, name in enumerate(NAMES)},
                 "param_groups": [{**state["param_groups"][0], "params": NAMES}]}
        flat = {**{f"state.{name}.{what}": value for name, arrays in named["state"].items()
                   for what, value in arrays.items()},
                **{f"param_groups.{name}.{what}": value for name in NAMES
                   for what, value in state["param_groups"][0].items() if what != "params"}}
        before = {"model." + name: value for name, value in weights.items()}
        for shape, (tree, where) in {
                "lightning": ({"state_dict": before, "optimizer_states": [state], "global_step": BEFORE, "epoch": 1,
                               "lr_schedulers": [{"last_epoch": 3}]}, "lr_schedulers"),
                "list": ([weights, state], "nothing"),
                "trainer": ({"trainer": {"optimizer": state}, "weights": weights}, "nothing"),
                "tutorial": ({"app": {"model": weights, "optim": named}}, "nothing"),
                "fsdp": ({"model": weights, "optim": named}, "nothing"),
                "flat": ({"model": weights, "optim": flat}, "nothing"),
                "megatron": ({"model": weights, "optimizer": {"optimizer": state, "param_sync": 1}, "iteration": 9},
                             "iteration"),
                "ddp": ({"model_state_dict": {"module." + name: value for name, value in weights.items()},
                         "optimizer_state_dict": state}, "nothing"),
                "plain": ({**weights, "optimizer": state}, "nothing")}.items():
            with self.subTest(shape):
                m = self.goes_on(self.save(tree), adamw, f"{self.name}-{shape}")
                self.assertEqual(m.imported.moments, {"exp_avg": 4, "exp_avg_sq": 4})
                self.assertIn(where, m.imported.text.partition("left: ")[2])

    @needs_numbers
    def test_dcp_folders_of_any_nesting_are_known(self):
        net, optimizer = trained(adamw)
        state = optimizer.state_dict()
        weights = {f"model.{name}": value for name, value in net.state_dict().items()}

        def keys(prefix, name_of):
            return {f"{prefix}state.{name_of(i)}.{what}": torch.as_tensor(value) for i in range(4)
                    for what, value in state["state"][i].items()}

        groups, named = state["param_groups"], [{**state["param_groups"][0], "params": NAMES}]
        lrs = {f"optim.param_groups.{name}.{what}": value for name in NAMES for what, value in groups[0].items()
               if what != "params"}
        ams = {f"opt.state.{what}.{name}": torch.as_tensor(state["state"][i][what]) for i, name in enumerate(NAMES)
               for what in state["state"][i]}
        for i, (tensors, objects) in enumerate((
                ({**weights, **keys("optimizer.", str)}, {"optimizer.param_groups": groups}),
                ({**weights, **keys("optim.", NAMES.__getitem__)}, {"optim.param_groups": named}),
                ({**weights, **keys("optim.", NAMES.__getitem__)}, lrs),
                ({**{f"app.{k}": v for k, v in weights.items()}, **keys("app.optim.", NAMES.__getitem__)}, {}),
                ({**weights, **ams}, {}))):
            with self.subTest(i):
                write_dcp(self.folder / str(i), tensors, objects)
                self.goes_on(self.folder / str(i), adamw, f"{self.name}-{i}")

    @needs_numbers
    def test_folders_that_programs_write_are_known(self):
        net, optimizer = trained(adamw)
        for optimizers, more in (("optimizer.pt", {"trainer_state.json": json.dumps({"global_step": BEFORE})}),
                                 ("optimizer.bin", {"random_states_0.pkl": "x"})):
            with self.subTest(optimizers):
                folder = self.folder / optimizers.replace(".", "-")
                folder.mkdir()
                torch.save(net.state_dict(), folder / "pytorch_model.bin")
                torch.save(optimizer.state_dict(), folder / optimizers)
                for name, text in more.items():
                    (folder / name).write_text(text)
                self.goes_on(folder, adamw, f"{self.name}-{folder.name}")
        universal = self.folder / "universal"
        for i, name in enumerate(NAMES):
            (universal / "zero" / name).mkdir(parents=True)
            for what, value in {"fp32": net.get_parameter(name).detach(), **optimizer.state_dict()["state"][i]}.items():
                torch.save({"param": value} if what != "step" else value, universal / "zero" / name / f"{what}.pt")
        self.goes_on(universal, adamw, f"{self.name}-universal")
        torch.save(net.state_dict(), self.folder / "weights.pt")
        torch.save(optimizer.state_dict(), self.folder / "optimizer.pt")
        self.goes_on([self.folder / "weights.pt", self.folder / "optimizer.pt"], adamw, f"{self.name}-two")

    @needs_numbers
    def test_weights_without_moments_are_refused_unless_asked_for(self):
        net, optimizer = trained(adamw)
        write_dcp(self.folder / "dcp", {f"model.{name}": value for name, value in net.state_dict().items()}, {})
        for path in (self.folder / "dcp", self.save(net.state_dict()),
                     self.save({"model": net.state_dict(), "optimizer": {"m": [1, 2]}}, "odd.pt")):
            self.refused(path, cairn.AdamW(lr=1e-2), "without moments a run does not go on.*moments=False")
            with cairn.import_checkpoint(self.session, path, model(), cairn.AdamW(lr=1e-2), moments=False,
                                         name=f"{self.name}-{path.stem}") as m:
                self.assertEqual((m.imported.step, m.imported.moments), (0, {}))
                self.assertIn("no moments, step 0", m.imported.text)
        two = [optimizer.state_dict(), optimizer.state_dict()]
        path = self.save({"model": net.state_dict(), "optimizer_states": two})
        self.refused(path, cairn.AdamW(lr=1e-2), r"2 states.*moments='optimizer_states\.0'", names=NAMES)
        with cairn.import_checkpoint(self.session, path, model(), cairn.AdamW(lr=1e-2), names=NAMES,
                                     moments="optimizer_states.1", name=self.name + "-two") as m:
            self.assertEqual(m.imported.step, BEFORE)
        path = self.save({"first": net.state_dict(), "second": net.state_dict()})
        self.refused(path, cairn.AdamW(lr=1e-2), "several places: first, second; .*weights='first'", moments=False)
        with cairn.import_checkpoint(self.session, path, model(), cairn.AdamW(lr=1e-2), moments=False,
                                     weights="second", name=self.name + "-second") as m:
            self.assertIn("left: not looked at: first", m.imported.text)

    # ---- what is right and was refused ----

    def test_a_module_called_state_is_no_optimizer(self):
        net = torch.nn.ModuleDict({"state": torch.nn.Linear(2, 2)})
        write_dcp(self.folder / "dcp", {f"model.{name}": value for name, value in net.state_dict().items()}, {})
        with cairn.import_checkpoint(self.session, self.folder / "dcp", net, cairn.SGD(lr=1.0), name=self.name,
                                     first_step=2) as m:
            self.assertEqual((m.imported.parameters, m.imported.step), (2, 2))

    def test_tensors_that_the_job_does_not_need_may_be_of_any_dtype(self):
        net = torch.nn.Linear(2, 2)
        odd = {"rng.a": torch.zeros(3, dtype=torch.complex64), "rng.b": torch.zeros(3, dtype=torch.int16)}
        if hasattr(torch, "float8_e5m2"):
            odd["rng.c"] = torch.zeros(3).to(torch.float8_e5m2)
        if hasattr(torch, "uint16"):
            odd["rng.d"] = torch.zeros(3, dtype=torch.int32).to(torch.uint16)
        write_dcp(self.folder / "dcp", {**{f"model.{k}": v for k, v in net.state_dict().items()}, **odd}, {})
        with cairn.import_checkpoint(self.session, self.folder / "dcp", net, cairn.SGD(lr=1.0), name=self.name):
            pass
        write_dcp(self.folder / "bad", {"model.weight": torch.zeros(2, 2, dtype=torch.complex64),
                                        "model.bias": torch.zeros(2, dtype=torch.int8)}, {})
        with self.assertRaisesRegex(cairn.Mismatch, "no floating-point numbers: bias is int8, weight is complex64"):
            cairn.import_checkpoint(None, self.folder / "bad", torch.nn.Linear(2, 2), cairn.SGD(lr=1.0))

    @needs_numbers
    def test_second_names_of_tied_weights_are_taken_if_they_are_the_same(self):
        def tied():
            net = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3, bias=False), "b": torch.nn.Linear(3, 3, bias=False)})
            net["b"].weight = net["a"].weight
            return net

        net, value = tied(), torch.randn(3, 3)
        for i, tree in enumerate(({"a.weight": value, "b.weight": value.clone()}, {"b.weight": value})):
            ours = tied()
            with cairn.import_checkpoint(self.session, self.save(tree), ours, cairn.SGD(lr=1.0), moments=False,
                                         name=f"{self.name}-{i}"):
                self.assertTrue(torch.equal(ours["a"].weight.detach(), value))
        with self.assertRaisesRegex(cairn.Mismatch, "other values there: a.weight and b.weight"):
            cairn.import_checkpoint(None, self.save({"a.weight": value, "b.weight": value + 1}), net,
                                    cairn.SGD(lr=1.0), moments=False)

    @needs_numbers
    def test_patterns_allow_many_and_the_exception_has_all_names(self):
        net, optimizer = trained(adamw)
        extra = {f"{i}._extra_state": torch.zeros(4, dtype=torch.uint8) for i in range(30)}
        path = self.save({"model": {**net.state_dict(), **extra}, "optimizer": optimizer.state_dict()})
        with self.assertRaisesRegex(cairn.Mismatch, r"and 10 more.*in this exception's \.lists") as caught:
            cairn.import_checkpoint(None, path, model(), cairn.AdamW(lr=1e-2), names=NAMES)
        self.assertEqual(caught.exception.lists["it has more"], sorted(extra))
        with cairn.import_checkpoint(self.session, path, model(), cairn.AdamW(lr=1e-2), names=NAMES, name=self.name,
                                     allow_extra=["*._extra_state"]) as m:
            self.assertIn("left out: 0._extra_state", m.imported.text)

    def test_frozen_parameters_of_other_dtypes_stay_here_and_are_named_by_their_digest(self):
        class Quantized(torch.nn.Module):
            def __init__(self, at: int):
                super().__init__()
                values = (torch.arange(27, dtype=torch.int32) % 7 + at).to(torch.int8).view(3, 9)
                self.base = torch.nn.Parameter(values, requires_grad=False)
                torch.manual_seed(1)
                self.adapter = torch.nn.Linear(9, 3)

            def forward(self, x):
                return x @ self.base.float().t() * 0.01 + self.adapter(x)

        ours, theirs = Quantized(0), Quantized(0)
        optimizer = torch.optim.AdamW(theirs.adapter.parameters(), lr=1e-2)
        with self.session.attach(ours, cairn.AdamW(lr=1e-2), name=self.name) as m:
            steps(m, ours, 0, BEFORE)
        run_torch(theirs, optimizer, 0, BEFORE)
        self.assertLess(float((ours.adapter.weight.detach() - theirs.adapter.weight.detach()).abs().max()), 1e-6)
        with self.assertRaisesRegex(cairn.Mismatch, "base are frozen and stay here, and their values are others"):
            self.session.attach(Quantized(1), cairn.AdamW(lr=1e-2), name=self.name)
        with self.assertRaisesRegex(cairn.Mismatch, "their values are others"):
            self.session.attach(Quantized(1), name=self.name)  # to be read alone
        reader = Quantized(0)
        with self.session.attach(reader, name=self.name):
            self.assertTrue(torch.equal(reader.adapter.weight, ours.adapter.weight))
        with self.session.attach(Quantized(0), cairn.AdamW(lr=1e-2), name=self.name):
            pass
        write_dcp(self.folder / "dcp", {f"model.{n}": v for n, v in theirs.state_dict().items()}, {})
        again = Quantized(3)
        with cairn.import_checkpoint(self.session, self.folder / "dcp", again, cairn.AdamW(lr=1e-2), moments=False,
                                     name=self.name + "-imported") as m:
            self.assertTrue(torch.equal(again.base, theirs.base))
            self.assertEqual(m.imported.parameters, 3)

    @needs_numbers
    def test_a_learning_rate_of_the_schedule_is_no_other_one(self):
        def decayed(net):
            optimizer = adamw(net.parameters())
            return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def torch_steps(net, optimizer, scheduler, first, last):
            for k in range(first, last):
                run_torch(net, optimizer, k, k + 1)
                scheduler.step()

        theirs = model()
        optimizer, scheduler = decayed(theirs)
        torch_steps(theirs, optimizer, scheduler, 0, BEFORE)
        path = self.save({"model": theirs.state_dict(), "optimizer": optimizer.state_dict()})
        torch_steps(theirs, optimizer, scheduler, BEFORE, BEFORE + AFTER)
        net = model()
        ours, schedule = decayed(net)
        with self.assertLogs("cairn", "INFO") as log:
            m = cairn.import_checkpoint(self.session, path, net, cairn.from_torch(ours, schedule=schedule),
                                        name=self.name)
        self.assertNotIn("the checkpoint", str(log.output))
        steps(m, net, BEFORE, BEFORE + AFTER)
        self.assertEqual(ours.param_groups[0]["lr"], optimizer.param_groups[0]["lr"])
        m.close()
        for mine, wanted in zip(net.parameters(), theirs.parameters()):
            self.assertTrue(bool(((mine - wanted).abs() <= 1e-6 * (wanted.abs() + 1e-2 * AFTER)).all()))
        with self.assertLogs("cairn", "INFO") as log:
            cairn.import_checkpoint(self.session, path, model(), cairn.AdamW(lr=1e-2, weight_decay=0.1), names=NAMES,
                                    name="constant").close()
        self.assertIn("group default has lr 0.01, the checkpoint 0.00125: the job's counts", str(log.output))

    # ---- of Cairn itself ----

    def test_a_snapshot_whose_tensors_have_counts_of_their_own_keeps_them(self):
        net = model()
        with self.session.attach(net, cairn.AdamW(lr=1e-2), name=self.name) as m:
            steps(m, net, 0, 1)
            m.amend(freeze_tensors=["0.bias"])
            net[0].bias.requires_grad_(False)
            steps(m, net, 1, BEFORE)
            snapshot = m.snapshot()
        folder = self.cluster._folder / "snapshots" / self.name / snapshot
        with cairn.import_checkpoint(self.session, folder, model(), cairn.AdamW(lr=1e-2),
                                     name=self.name + "-imported") as m:
            self.assertEqual(m.version.step, BEFORE)
            self.assertIn("fewer updates of 0.bias", m.imported.text)

    @needs_numbers
    def test_a_snapshot_and_its_export_go_on_with_their_moments(self):
        for kind, optim in (("adamw", cairn.AdamW(lr=1e-2)), ("sgd", cairn.SGD(lr=1e-2, momentum=0.9))):
            net, expected = model(), {}
            with self.session.attach(net, optim, name=f"{kind}-first") as m:
                steps(m, net, 0, BEFORE)
                snapshot = m.snapshot()
                planes = ["exp_avg"] + ["exp_avg_sq"] * (kind == "adamw")
                moments = {plane: m.state_dict(plane) for plane in planes}
                steps(m, net, BEFORE, BEFORE + AFTER)
                expected = m.state_dict()
            folder = self.cluster._folder / "snapshots" / f"{kind}-first" / snapshot
            export = self.folder / kind
            subprocess.run([BIN / "cairn", "snapshot", "export", "--path", folder, "--format", "dcp", "--to", export],
                           check=True, capture_output=True)
            for i, path in enumerate((folder, export)):
                ours = model()
                given = {"first_step": BEFORE} if kind == "sgd" and i == 1 else {}
                with cairn.import_checkpoint(self.session, path, ours, optim, name=f"{kind}-{i}", **given) as m:
                    self.assertEqual(m.version.step, BEFORE)
                    for plane, values in moments.items():
                        for name, value in m.state_dict(plane).items():
                            self.assertTrue(torch.equal(value, values[name]), (name, plane))
                    steps(m, ours, BEFORE, BEFORE + AFTER)
                    for name, value in m.state_dict().items():
                        self.assertTrue(torch.equal(value, expected[name]), name)
            other = cairn.SGD(lr=1e-2, momentum=0.9) if kind == "adamw" else cairn.AdamW(lr=1e-2)
            self.refused(folder, other, "to which they mean nothing")

    def test_plain_torch_goes_on_from_the_consolidated_file(self):
        reads_numbers = int(torch.__version__.split(".")[0]) >= 2
        def groups(net):
            return [{"params": [net[2].weight, net[0].weight], "weight_decay": 0.1},
                    {"params": [net[0].bias, net[2].bias]}]

        def trained_of(net):
            return [p for p in net.parameters() if p.requires_grad]

        makes = {"adamw": lambda net: adamw(trained_of(net)), "sgd": lambda net: sgd(trained_of(net)),
                 "groups": lambda net: torch.optim.Adam(groups(net), lr=1e-2),
                 "plain": lambda net: torch.optim.SGD(trained_of(net), lr=1e-2)}
        for kind, make in makes.items():
            net, theirs = model(), model()
            net[0].bias.requires_grad_(kind == "groups")  # a frozen one has no number
            theirs[0].bias.requires_grad_(kind == "groups")
            with self.session.attach(net, make(net), name=f"{kind}-away") as m:
                steps(m, net, 0, BEFORE)
                snapshot = m.snapshot()
                steps(m, net, BEFORE, BEFORE + AFTER)
                folder = self.cluster._folder / "snapshots" / f"{kind}-away" / snapshot
                subprocess.run([BIN / "cairn", "snapshot", "export", "--path", folder, "--format", "torch", "--to",
                                self.folder / kind], check=True, capture_output=True)
            path = self.folder / kind / "checkpoint.pt"
            with zipfile.ZipFile(path) as archive:
                self.assertIsNone(archive.testzip())  # sums and all
            for how in ({"weights_only": True}, {"mmap": True, "weights_only": True}) if reads_numbers else ({},):
                saved = torch.load(path, **how)
                self.assertEqual(saved["step"], BEFORE)
            self.assertEqual(sorted(saved["model"]), sorted(NAMES))
            theirs.load_state_dict(saved["model"])
            optimizer = make(theirs)
            optimizer.load_state_dict(saved["optimizer"])
            run_torch(theirs, optimizer, BEFORE, BEFORE + AFTER)
            for (which, ours), p in zip(net.named_parameters(), theirs.named_parameters()):
                self.assertLess(float((ours.detach() - p[1].detach()).abs().max()), 2e-6, (kind, which))
            if not reads_numbers:
                continue
            again = model()
            again[0].bias.requires_grad_(kind == "groups")
            with cairn.import_checkpoint(self.session, path, again, make(again), name=f"{kind}-back") as m:
                self.assertEqual(m.imported.step, BEFORE)
                steps(m, again, BEFORE, BEFORE + AFTER)
                for (which, ours), p in zip(again.named_parameters(), net.parameters()):
                    self.assertTrue(torch.equal(ours.detach(), p.detach()), (kind, which))

    def test_the_readmes_lines_read_an_export_into_a_model_and_its_optimizer(self):
        try:
            import torch.distributed.checkpoint as dcp
            from torch.distributed.checkpoint.state_dict import get_state_dict  # noqa: F401
        except ImportError:
            self.skipTest("this torch has no get_state_dict")
        net, theirs = model(), model()
        with self.session.attach(net, cairn.AdamW(lr=1e-2, weight_decay=0.1), name=self.name) as m:
            steps(m, net, 0, BEFORE)
            folder = self.cluster._folder / "snapshots" / self.name / m.snapshot()
            state = {what: m.state_dict(what) for what in ("param", "exp_avg", "exp_avg_sq")}
            steps(m, net, BEFORE, BEFORE + AFTER)
        export = self.folder / "export"
        subprocess.run([BIN / "cairn", "snapshot", "export", "--path", folder, "--format", "dcp", "--to", export],
                       check=True, capture_output=True)
        lines = (SOURCE / "client/python/README.md").read_text().splitlines()
        first = next(i for i, line in enumerate(lines) if "import get_state_dict, set_state_dict" in line)
        end = next(i for i in range(first, len(lines)) if not lines[i].strip())
        optimizer = adamw(theirs.parameters())
        exec(textwrap.dedent("\n".join(lines[first:end])).replace("EXPORT", str(export)),
             {"dcp": dcp, "model": theirs, "optimizer": optimizer})
        for name, p in theirs.named_parameters():
            self.assertTrue(torch.equal(p.detach(), state["param"][name]), name)
            self.assertEqual(float(optimizer.state[p]["step"]), BEFORE)
            for what in ("exp_avg", "exp_avg_sq"):
                self.assertTrue(torch.equal(optimizer.state[p][what], state[what][name]), (name, what))
        run_torch(theirs, optimizer, BEFORE, BEFORE + AFTER)
        for (name, ours), p in zip(net.named_parameters(), theirs.parameters()):
            self.assertLess(float((ours.detach() - p.detach()).abs().max()), 2e-6, name)

    # ---- damaged ----

    def test_what_is_no_file_is_a_sentence(self):
        (self.folder / "empty.pt").touch()
        self.refused(self.folder / "empty.pt", cairn.SGD(lr=1.0), "has 0 bytes")
        os.mkfifo(self.folder / "fifo")
        self.refused(self.folder / "fifo", cairn.SGD(lr=1.0), "is no regular file")
        self.refused(self.folder / "none", cairn.SGD(lr=1.0), "there is no ")
        (self.folder / "folder").mkdir()
        self.refused(self.folder / "folder", cairn.SGD(lr=1.0), "it is no folder of .* in it are no files")
        (self.folder / "x.safetensors").write_bytes(b"\xff" * 64)
        self.refused(self.folder / "x.safetensors", cairn.SGD(lr=1.0), "is no safetensors file, or cut off")
        write_dcp(self.folder / "dcp", {f"model.{n}": v for n, v in model().state_dict().items()}, {})
        (self.folder / "dcp" / "__0_0.distcp").unlink()
        os.mkfifo(self.folder / "dcp" / "__0_0.distcp")
        with self.assertRaisesRegex(cairn.Invalid, "no regular file"):
            cairn.import_checkpoint(self.session, self.folder / "dcp", model(), cairn.SGD(lr=1.0), name=self.name)

    def test_chunks_that_overlap_or_leave_holes_are_refused(self):
        for boxes, words in ((([0, 0], [2, 4]), ([1, 0], [2, 4])), "overlap"), \
                            ((([0, 0], [2, 4]), ([3, 0], [2, 4])), "outside"), \
                            ((([0, 0], [2, 4]),), "8 elements, it has 16"), \
                            ((([0, 0], [4, 2]), ([0, 1], [4, 2])), "overlap"):
            with self.assertRaisesRegex(cairn.Invalid, words):
                _stored.cover("t", [4, 4], boxes)
        _stored.cover("t", [4, 4], [([0, 0], [2, 2]), ([0, 2], [4, 2]), ([2, 0], [2, 2]), ([4, 0], [0, 4])])
        _stored.cover("t", [], [([], [])])


if __name__ == "__main__":
    unittest.main()
