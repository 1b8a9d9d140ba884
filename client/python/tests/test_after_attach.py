"""What a trainer does to torch's optimizer, scheduler, scaler and averages after attach: torch's numbers, or a sentence
within a step; and who follows the sentence has torch's numbers."""

import copy
import inspect
import io
import re
import unittest
import warnings

from runner import main
from scenes import Table, scene  # noqa: F401 - Table is a test
from torched import ClusterCase, torch

from torch import nn
from torch.optim import lr_scheduler, optimizer as optimizers, swa_utils

import cairn
from cairn import _optimizers

ADAMW, SGD = torch.optim.AdamW, torch.optim.SGD


def net() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def batch(k):
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(k))


def loss_of(model, k):
    return (model(batch(k)) - 1).square().mean()


class Torch:
    """What torch alone makes of the same."""

    def __init__(self, kind=ADAMW, **options):
        self.model = net()
        self.optimizer = kind(self.model.parameters(), **{"lr": 0.01, **options})
        self.at = 0

    def steps(self, n, before=lambda: None):
        for _ in range(n):
            self.optimizer.zero_grad()
            loss_of(self.model, self.at).backward()
            before()
            self.optimizer.step()
            self.at += 1
        return self


class Case(ClusterCase):
    def attach(self, kind=ADAMW, schedule=None, scheduler=None, name=None, attach={}, **options):
        """A model and an optimizer of that kind, which is taken over."""
        model = net()
        optimizer = kind(model.parameters(), **{"lr": 0.01, **options})
        if scheduler is not None:
            schedule = scheduler(optimizer)
        if self.id() in _named:
            _named[self.id()] += 1
        number = _named.setdefault(self.id(), 0)
        m = super().attach(model, cairn.from_torch(optimizer, schedule) if schedule else optimizer,
                           name=name or f"{self.name}{number}", **attach)
        return m, optimizer

    def steps(self, m, n, after=lambda: None):
        for _ in range(n):
            loss_of(m.model, m.begin().step).backward()
            result = m.step()
            after()
        return result

    def same(self, m, torchs, lr=0.01):
        state = m.state_dict()
        for name, wanted in torchs.model.state_dict().items():
            bound = 1e-6 * (wanted.abs() + lr * torchs.at)
            self.assertTrue(bool(((state[name] - wanted).abs() <= bound).all()),
                            f"{name} is {(state[name] - wanted).abs().max():g} off")

    def told(self, call) -> list:
        texts = [str(one.message) for one in self.warned(call) if one.category is UserWarning]
        return [text for text in texts if "lr_scheduler" not in text and "The epoch parameter" not in text]  # torch's

    def said(self, call, words) -> str:
        """One warning, with these."""
        told = self.told(call)
        self.assertEqual(len(told), 1, told)
        self.assertRegex(told[0], words)
        return told[0]


_named = {}


class Optimizers(Case):
    @scene("`optimizer.step()`")
    def test_a_step(self):
        m, optimizer = self.attach()
        self.said(lambda: self.steps(m, 3, optimizer.step), r"torch.optim.AdamW.step\(\) does nothing to a model that "
                  r"is attached.*leave it out")
        self.same(m, Torch().steps(3))

    @scene("`optimizer.step(closure)`")
    def test_a_closure(self):
        m, optimizer = self.attach()

        def step():
            optimizer.step(lambda: loss_of(m.model, m.begin().step).backward())
            m.step()

        self.said(lambda: [step() for _ in range(3)], "does nothing to a model")
        self.same(m, Torch().steps(3))
        many = torch.optim.LBFGS(m.model.parameters())
        if hasattr(optimizers, "register_optimizer_step_pre_hook"):
            with self.assertRaisesRegex(cairn.Unsupported, r"LBFGS.step\(\) is given a closure"):
                many.step(lambda: loss_of(m.model, 0).backward())

    @scene("`optimizer.zero_grad()`, `model.zero_grad()`")
    def test_zero_grad(self):
        m, optimizer = self.attach()
        self.assertEqual(self.told(lambda: self.steps(m, 2, lambda: (optimizer.zero_grad(), m.model.zero_grad()))), [])
        for zero_grad in (optimizer.zero_grad, m.model.zero_grad, m.model[0].zero_grad):
            (1e3 * loss_of(m.model, 99)).backward()  # which is to be thrown away
            with self.assertRaisesRegex(cairn.Invalid, r"zero_grad\(\) takes back no gradient of 0.weight and others.*"
                                        r"call m.resume\(\)"):
                zero_grad()
            m.resume()
        self.steps(m, 2)
        self.same(m, Torch().steps(4))
        for p in m.model.parameters():
            p.requires_grad_(False)  # a pass of another model goes through this one
        x = torch.ones(1, 4, requires_grad=True)
        m.model(x).sum().backward()
        for p in m.model.parameters():
            p.requires_grad_(True)
        optimizer.zero_grad()

        def left_over():
            loss_of(m.model, m.begin().step).backward()
            optimizer.step(), optimizer.zero_grad()
            m.step()
        self.said(left_over, "does nothing")
        self.same(m, Torch().steps(5))

    @scene("`param_groups[i]['lr'] = …`")
    def test_the_lr(self):
        for how in ("amend", "driven"):
            m, optimizer = self.attach(schedule=cairn.driven() if how == "driven" else None)
            torchs = Torch().steps(3)
            self.steps(m, 3)
            torchs.optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] = 0.05
            if how == "amend":
                told = self.said(lambda: self.steps(m, 1), r"lr of param group 0 of the torch AdamW went from 0.01 to "
                                 r"0.05, and nobody looks at it.*schedule=cairn.driven\(\)")
                m.resume()
                torchs.optimizer.param_groups[0]["lr"] = 0.01
                torchs.steps(1).optimizer.param_groups[0]["lr"] = 0.05
                exec(re.search(r"m\.amend\(\{.*?\}\)", told)[0])
            self.steps(m, 3)
            self.same(m, torchs.steps(3), lr=0.05)

    @scene("`param_groups[i]['weight_decay']`, `betas`, `eps`, `momentum`, `nesterov`")
    def test_other_options(self):
        for kind, given, changes in (
                (ADAMW, {}, dict(betas=(0.5, 0.9), eps=1e-3, weight_decay=0.5)),
                (SGD, dict(momentum=0.9), dict(momentum=0.5, nesterov=True, weight_decay=0.25))):
            m, optimizer = self.attach(kind, **given)
            torchs = Torch(kind, **given).steps(2)
            self.steps(m, 2)
            optimizer.param_groups[0].update(changes)
            told = self.told(lambda: self.steps(m, 1))
            self.assertEqual(len(told), len(changes), told)
            torchs.steps(1).optimizer.param_groups[0].update(changes)
            for one in told:
                exec(re.search(r"m\.amend\(\{.*?\}\)", one)[0])
            self.steps(m, 3)
            self.same(m, torchs.steps(3))

    @scene("`param_groups[i]['maximize'] = True`, `amsgrad`, `dampening`, `differentiable`")
    def test_what_the_servers_do_not_run(self):
        m, optimizer = self.attach(SGD)
        for option, value in (("maximize", True), ("dampening", 0.5), ("differentiable", True)):
            before = optimizer.param_groups[0].get(option)
            optimizer.param_groups[0][option] = value
            with self.assertRaisesRegex(cairn.Unsupported, f"torch.optim.SGD with {option}={value}: the servers do not "
                                        f"run that; they run it with {option} off"):
                m.step()
            optimizer.param_groups[0][option] = before
        self.steps(m, 2)
        self.same(m, Torch(SGD).steps(2))

    @scene("`foreach`, `fused`, `capturable`")
    def test_how_torch_computes(self):
        m, optimizer = self.attach(foreach=True)
        optimizer.param_groups[0].update(foreach=False, fused=True, capturable=True)
        self.assertEqual(self.told(lambda: self.steps(m, 3)), [])
        self.same(m, Torch().steps(3))

    @scene("an `lr` that is a tensor")
    def test_a_tensor(self):
        m, optimizer = self.attach(SGD, schedule=cairn.driven(), lr=torch.tensor(0.05))
        self.steps(m, 2)
        optimizer.param_groups[0]["lr"].fill_(0.125)
        self.assertEqual(self.steps(m, 1).lr, 0.125)
        m, optimizer = self.attach(SGD, lr=torch.tensor(0.25))
        self.assertEqual(self.steps(m, 1).lr, 0.25)
        optimizer.param_groups[0]["lr"].fill_(0.125)
        self.said(lambda: self.steps(m, 1), "lr of param group 0 of the torch SGD went from 0.25 to 0.125")
        two = SGD(net().parameters(), lr=0.1)
        two.param_groups[0]["lr"] = torch.tensor([0.1, 0.2])
        with self.assertRaisesRegex(cairn.Invalid, "lr of the torch SGD is Tensor .*: the servers take one number"):
            cairn.from_torch(two)

    @scene("`optimizer.add_param_group(…)`")
    def test_parameters_that_are_added(self):
        def of_trained(model):
            return ADAMW([p for p in model.parameters() if p.requires_grad], lr=0.01)

        def attach():
            return ClusterCase.attach(self, model, optimizer)

        model, torchs = net(), Torch()
        for one in (model, torchs.model):
            one[0].weight.requires_grad_(False)
        optimizer, torchs.optimizer = of_trained(model), of_trained(torchs.model)
        m = attach()
        self.steps(m, 2)
        torchs.steps(2)
        for one in ([model[0].weight], [nn.Parameter(torch.zeros(3))]):
            optimizer.add_param_group(dict(params=one))
            with self.assertRaisesRegex(cairn.Invalid, r"the torch AdamW has other parameters than it had at attach "
                                        r"\(add_param_group\?\).*m.amend\(unfreeze_tensors={name: group}\)"):
                m.step()
            optimizer.param_groups.pop()
        self.steps(m, 1)
        self.same(m, torchs.steps(1))
        m.amend(unfreeze_tensors={"0.weight": "default"})
        m.close()
        for one in (model, torchs.model):
            one[0].weight.requires_grad_(True)
        torchs.optimizer.add_param_group(dict(params=[torchs.model[0].weight]))
        optimizer = ADAMW(model.parameters(), lr=0.01)
        m = attach()
        self.steps(m, 3)
        self.same(m, torchs.steps(3))

    @scene("`optimizer.load_state_dict(…)`")
    def test_a_state_that_is_loaded(self):
        torchs = Torch().steps(3)
        m, optimizer = self.attach()
        saved = torchs.optimizer.state_dict()
        saved["param_groups"][0]["weight_decay"] = 0.5
        optimizer.load_state_dict(saved)
        told = self.told(lambda: self.steps(m, 1))
        self.assertEqual(len(told), 2, told)
        self.assertRegex(told[0], "weight_decay of param group 0 of the torch AdamW went from 0.01 to 0.5")
        self.assertRegex(told[1], "has moments .*nobody looks at them: those of the servers count.*import_checkpoint")
        driven, optimizer = self.attach(scheduler=lambda of: lr_scheduler.ExponentialLR(of, 0.5))
        self.steps(driven, 1)
        saved["param_groups"][0].update(lr=1.0, initial_lr=0.01)
        optimizer.load_state_dict(saved)  # its param groups are other dicts from now on
        self.told(lambda: self.assertEqual(self.steps(driven, 1).lr, 0.005))

    @scene("`optimizer.state_dict()`")
    def test_a_state_that_is_saved(self):
        m, optimizer = self.attach()
        self.steps(m, 1)
        self.said(lambda: [optimizer.state_dict() for _ in range(2)], r"AdamW.state_dict\(\) of a model that is "
                  r"attached has no moments.*m.snapshot\(\) saves them, m.state_dict\('exp_avg'\) reads them")
        torchs = Torch().steps(1)
        for p, (name, moment) in zip(torchs.model.parameters(), m.state_dict("exp_avg").items()):
            self.assertTrue(torch.allclose(moment, torchs.optimizer.state[p]["exp_avg"], atol=1e-7), name)

    @scene("`optimizer.register_step_pre_hook(…)`, `register_step_post_hook(…)`")
    @unittest.skipUnless(hasattr(torch.optim.Optimizer, "register_step_post_hook"), "torch 1.13 has no such hooks")
    def test_hooks(self):
        for name in ("register_step_pre_hook", "register_step_post_hook"):
            m, optimizer = self.attach()
            getattr(optimizer, name)(lambda *_: None)
            self.said(lambda: self.steps(m, 2), r"a hook of the torch AdamW's step\(\) is never called.*m.step\(\)")

    @scene("param groups with options of their own")
    def test_groups(self):
        def groups(model):
            return [dict(params=[model[0].weight], lr=0.05, weight_decay=0.5, lr_scale=2),
                    dict(params=[model[0].bias, *model[2].parameters()], betas=(0.5, 0.9), name="others")]

        torchs, model = Torch(), net()
        torchs.optimizer = ADAMW(groups(torchs.model), lr=0.01)
        m = ClusterCase.attach(self, model, ADAMW(groups(model), lr=0.01))
        self.steps(m, 4)
        self.same(m, torchs.steps(4), lr=0.05)

    @scene("an optimizer that was copied or unpickled, or is of another model")
    def test_a_copy(self):
        model = net()
        optimizer = ADAMW(model.parameters(), lr=0.01)
        memory = io.BytesIO()
        torch.save(optimizer, memory)
        memory.seek(0)
        options = {"weights_only": False} if "weights_only" in inspect.signature(torch.load).parameters else {}
        for other in (copy.deepcopy(optimizer), torch.load(memory, **options), ADAMW(net().parameters())):
            with self.assertRaisesRegex(cairn.Invalid, r"the AdamW has no trained parameter of this model.*Make it "
                                        r"anew, torch.optim.AdamW\(model.parameters\(\), …\)"):
                self.session.attach(model, other, rank=0, workers_min=1, name=self.name, timeout=20)
        beyond = ADAMW([*model.parameters(), *net().parameters()])
        with self.assertRaisesRegex(cairn.Invalid, "the AdamW has 4 trained parameters that are not of this model"):
            self.session.attach(model, beyond, rank=0, workers_min=1, name=self.name, timeout=20)
        with self.assertRaisesRegex(cairn.Unsupported, "the AdamW has made steps already.*import_checkpoint"):
            cairn.from_torch(Torch().steps(1).optimizer)


class Schedulers(Case):
    @scene("`scheduler.step()` of a scheduler that drives the servers")
    def test_a_step_of_its_own(self):
        make = lambda of: lr_scheduler.MultiStepLR(of, [2, 4], gamma=0.1)  # noqa: E731
        for wrap in (make, lambda of: lr_scheduler.ChainedScheduler([make(of), lr_scheduler.ExponentialLR(of, 0.9)]),
                     lambda of: lr_scheduler.SequentialLR(of, [lr_scheduler.ConstantLR(of, 0.5), make(of)], [3])):
            torchs, schedules = Torch(SGD, lr=0.1), None
            schedules = wrap(torchs.optimizer)
            made = []
            m, _ = self.attach(SGD, lr=0.1, scheduler=lambda of: made.append(wrap(of)) or made[0])
            told = self.told(lambda: self.steps(m, 6, made[0].step))
            self.assertEqual(len(told), 1, told)
            self.assertIn("what else is done to it is undone", told[0])
            for _ in range(6):
                torchs.steps(1), schedules.step()
            self.same(m, torchs, lr=0.1)

    @scene("`scheduler.load_state_dict(…)`, `scheduler.gamma = …`")
    def test_another_schedule(self):
        made = []
        m, _ = self.attach(SGD, lr=0.5, name="changed",
                           scheduler=lambda of: made.append(lr_scheduler.ExponentialLR(of, 0.5)) or made[0])
        self.steps(m, 2)
        made[0].gamma = 0.1
        self.said(lambda: self.assertEqual(self.steps(m, 2).lr, 0.0625), "is undone.*for another schedule attach anew")
        m.close()
        m, _ = self.attach(SGD, lr=0.5, scheduler=lambda of: lr_scheduler.ExponentialLR(of, 0.1), name="changed")
        of = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
        wanted = lr_scheduler.ExponentialLR(of, 0.1)
        for _ in range(4):
            of.step(), wanted.step()
        self.assertEqual(self.steps(m, 1).lr, of.param_groups[0]["lr"])

    @scene("a scheduler that the trainer moves itself (`ReduceLROnPlateau`, by epochs)")
    def test_followed(self):
        def plateau(of):
            return lr_scheduler.ReduceLROnPlateau(of, patience=1, factor=0.5)

        with self.assertRaisesRegex(cairn.Unsupported, r"goes by a metric.*schedule=cairn.driven\(\)"):
            self.attach(scheduler=plateau)
        m, optimizer = self.attach(schedule=cairn.driven(), lr=0.2)
        torchs = Torch(lr=0.2)
        ours, theirs = plateau(optimizer), plateau(torchs.optimizer)
        seen = []
        for k in range(9):
            seen.append(self.steps(m, 1).lr)
            self.assertEqual(seen[-1], torchs.optimizer.param_groups[0]["lr"])
            torchs.steps(1)
            ours.step(1.0), theirs.step(1.0)
        self.same(m, torchs, lr=0.2)
        self.assertGreater(len(set(seen)), 2)


class Scaling(Case):
    @scene("`torch.amp.GradScaler`: `scale`, `unscale_`, `step`, `update`")
    def test_a_scaler_that_is_left_in_the_loop(self):
        scaler = self.scaler()
        m, optimizer = self.attach()
        for _ in range(2):
            with self.assertRaisesRegex(cairn.Invalid, r"multiplied by a torch GradScaler \(65536\).*attach\(…, "
                                        r"loss_scale=65536.0\) and call m.scale\(loss\).backward\(\)"):
                scaler.scale(loss_of(m.model, 0)).backward()
            m.resume()
        with self.assertRaisesRegex(cairn.Invalid, "multiplied by a torch GradScaler"), m.no_sync():
            scaler.scale(loss_of(m.model, 0)).backward()
        m.resume()
        for call in (scaler.unscale_, scaler.step):
            with self.assertRaisesRegex(cairn.Invalid, r"Scaler.(unscale_|step)\(\) finds no gradients.*Leave scale"):
                call(optimizer)
        self.steps(m, 2)  # a pass that is not scaled is none of its business
        self.same(m, Torch().steps(2))
        other = net()
        scaler.scale(loss_of(other, 0)).backward()
        self.assertGreater(other[0].weight.grad.abs().max(), 1.0)
        m.close()
        scaler.scale(loss_of(m.model, 0)).backward()  # is torch's again

    def scaler(self):
        if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
            self.skipTest("torch before 2.3 scales on cards alone")
        return torch.amp.GradScaler("cpu")

    @scene("`loss * scaler.get_scale()`")
    def test_a_loss_that_is_multiplied_by_hand(self):
        scaler, of_other = self.scaler(), self.scaler()
        m, _ = self.attach()
        other = net()
        optimizer = SGD(other.parameters(), lr=0.01)
        of_other.scale(loss_of(other, 0)).backward()
        of_other.step(optimizer), of_other.update()
        self.assertEqual(self.told(lambda: [of_other.get_scale(), of_other.state_dict(), scaler.state_dict()]), [])
        for _ in range(2):
            loss = loss_of(m.model, 0)
            told = self.told(lambda: (loss * scaler.get_scale()).backward())
            if _ == 0:
                self.assertRegex(told[0], r"get_scale\(\) of a torch GradScaler that is enabled is 65536.*m.scale\(")
            self.assertEqual(len(told), 1 - _)
            m.resume()
        self.steps(m, 2)
        self.same(m, Torch().steps(2))
        m.close()
        self.assertNotIn("told", scaler.get_scale.__code__.co_name)

    @scene("`torch.amp.GradScaler(enabled=False)`")
    def test_one_that_is_off(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scaler = _optimizers.GradScaler(enabled=False)
        m, _ = self.attach()
        for _ in range(2):
            scaler.scale(loss_of(m.model, m.begin().step)).backward()
            m.step(), scaler.update()
        self.same(m, Torch().steps(2))

    def test_the_advice_has_torchs_numbers(self):
        m, _ = self.attach(attach=dict(loss_scale=65536.0, clip_norm=0.5))
        torchs = Torch()
        for _ in range(3):
            m.scale(loss_of(m.model, m.begin().step)).backward()
            m.step()
            torchs.steps(1, lambda: nn.utils.clip_grad_norm_(torchs.model.parameters(), 0.5))
        self.same(m, torchs)

    @scene("`clip_grad_norm_(model.parameters(), …)`")
    def test_clipping_by_the_norm(self):
        m, _ = self.attach(SGD, attach=dict(clip_norm=0.25))

        def train():
            for _ in range(3):
                loss_of(m.model, m.begin().step).backward()
                nn.utils.clip_grad_norm_(m.model.parameters(), 0.25)
                m.step()
        self.said(train, r"clip_grad_norm_ clips nothing.*attach\(…, clip_norm=…\)")
        torchs = Torch(SGD)
        self.same(m, torchs.steps(3, lambda: nn.utils.clip_grad_norm_(torchs.model.parameters(), 0.25)))

    @scene("`clip_grad_value_(model.parameters(), …)`")
    def test_clipping_by_value(self):
        m, _ = self.attach(SGD)
        value = 0.02
        told = self.said(lambda: nn.utils.clip_grad_value_([m.model[0].weight], value),
                         "clip_grad_value_ clips nothing.*not by values. A hook")
        model = m.model
        advice = re.search(r"for p in model.parameters\(\): (p\.register_hook\(.*?\)\))", told)
        exec(f"for p in model.parameters(): {advice[1]}", dict(model=model, value=value))
        self.steps(m, 3)
        torchs = Torch(SGD)
        self.same(m, torchs.steps(3, lambda: nn.utils.clip_grad_value_(torchs.model.parameters(), value)))


class Averages(Case):
    @scene("`AveragedModel(model)`, `update_parameters`, `update_bn`")
    def test_averages(self):
        for stage in (2, 3):
            m, _ = self.attach(attach=dict(stage=stage))
            torchs = Torch()
            with m.gathered("*"):
                ours, theirs = swa_utils.AveragedModel(m.model), swa_utils.AveragedModel(torchs.model)
            for _ in range(3):
                self.steps(m, 1), torchs.steps(1)
                with m.gathered("*"):
                    ours.update_parameters(m.model)
                theirs.update_parameters(torchs.model)
            swa_utils.update_bn([batch(0)], ours)
            for name, wanted in theirs.module.state_dict().items():
                self.assertTrue(torch.allclose(ours.module.state_dict()[name], wanted, atol=1e-6), name)
            self.same(m, torchs)


if __name__ == "__main__":
    main()
