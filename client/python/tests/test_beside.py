"""What a trainer was used to do itself, beside an attached model: refused or warned of, never done in silence."""

import contextlib
import copy
import pickle
import unittest
import warnings

from runner import main
from torched import ClusterCase

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils import clip_grad_norm_ as renamed
from torch.optim import optimizer as optimizers

import cairn

SEES_STEPS = hasattr(optimizers, "register_optimizer_step_pre_hook")


def made() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


class Case(ClusterCase):
    def attach(self, model, optim, **options):
        return super().attach(model, optim, self.connect(), **options)

    def step(self, m) -> None:
        m.model(torch.ones(2, 2) + torch.arange(2.0)).sum().backward()
        m.step()


class Loading(Case):
    def test_weights_that_would_be_gone_are_refused(self):
        state = made().state_dict()
        for stage in (2, 3):
            model = made()
            m = self.attach(model, cairn.SGD(), stage=stage, name=f"loading{stage}")
            for module, part in ((model, state), (model[0], made()[0].state_dict()), (model, {})):
                with self.assertRaisesRegex(cairn.Invalid, r"would soon be gone. Load before attach;.*m.write\("):
                    module.load_state_dict(part, strict=False)
            self.step(m)
            if stage == 2:
                copy.deepcopy(model).load_state_dict(state)
                pickle.loads(pickle.dumps(model[0])).load_state_dict(made()[0].state_dict())
            m.write({"0.bias": state["0.bias"]})
            m.close()
            if stage == 2:
                model.load_state_dict(state)

    def test_a_model_that_is_read_too(self):
        self.attach(made(), cairn.SGD(), name="source")
        model = made()
        m = self.attach(model, None, name="source")
        with self.assertRaisesRegex(cairn.Invalid, r"load_state_dict.*m.refresh\(\) takes newer values"):
            model.load_state_dict(made().state_dict())
        m.close()
        model.load_state_dict(made().state_dict())


class Parameters(Case):
    def test_one_that_is_not_the_attached_one_is_refused(self):
        model = made()
        m = self.attach(model, cairn.SGD())
        self.step(m)
        attached = model[0].weight
        model[0].weight = nn.Parameter(torch.ones(3, 2))
        with self.assertRaisesRegex(cairn.Invalid, r"^0.weight of the model is another parameter.*m.write\("):
            self.step(m)
        model[0].weight = attached
        self.step(m)


class Optimizers(Case):
    def told(self, call) -> list:
        return [str(one.message) for one in self.warned(call, "torch")]

    @unittest.skipUnless(SEES_STEPS, "torch 1.13 tells nobody of an optimizer's step")
    def test_a_step_beside_ours_is_warned_of_once(self):
        model, other = made(), nn.Linear(1, 1)
        taken = torch.optim.SGD(model.parameters(), lr=0.1)
        m = self.attach(model, taken)
        another, foreign = torch.optim.AdamW(model[0].parameters()), torch.optim.SGD(other.parameters(), lr=0.1)

        def train():
            for _ in range(3):
                self.step(m)
                for optimizer in (foreign, taken, another):
                    optimizer.step(), optimizer.zero_grad()

        told = self.told(train)
        self.assertEqual(len(told), 1, told)
        self.assertIn("torch.optim.SGD.step() does nothing to a model that is attached", told[0])
        with m.no_sync():
            model(torch.ones(2, 2) + torch.arange(2.0)).sum().backward()
        with self.assertRaisesRegex(cairn.Invalid, "would change 0.weight and others here, and not on the servers"):
            taken.step()
        m.close()
        self.assertEqual(self.told(another.step), [])

    def test_an_lr_that_nobody_looks_at_is_warned_of_once(self):
        model = made()
        taken = torch.optim.SGD(model.parameters(), lr=0.5)
        m = self.attach(model, taken)
        self.assertEqual(self.told(lambda: self.step(m)), [])
        torch.optim.lr_scheduler.LambdaLR(taken, lambda step: 0.5)  # behind attach, which refuses it
        told = self.told(lambda: [self.step(m) for _ in range(3)])
        self.assertEqual(len(told), 1, told)
        self.assertRegex(told[0], r"lr of param group 0 of the torch SGD went from 0.5 to 0.25, and nobody looks.*"
                         r"m.amend\(.*schedule=cairn.driven")


class Clipping(Case):
    """Torch's finds no gradients: they are on their way."""

    def clips(self, model):
        """Every way to torch's functions."""
        return [lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
                lambda: torch.nn.utils.clip_grad.clip_grad_norm_(list(model.parameters()), max_norm=1.0),
                lambda: clip_grad_norm_(parameters=(one for one in model.parameters()), max_norm=1.0),
                lambda: renamed(model[0].weight, 1.0),
                lambda: nn.utils.clip_grad_value_(iter(list(model.parameters())), 1.0)]

    def told(self, call) -> list:
        def clip():
            with contextlib.suppress(RuntimeError):  # torch 2.15 has clip_grad_value_ fail where there are none
                call()
        return [(str(one.message), one.filename) for one in self.warned(clip, "torch.nn.utils")]

    def test_is_warned_of_once_a_model(self):
        for stage in (2, 3):
            for number in range(5):
                model = made()
                clip = self.clips(model)[number]
                m = self.attach(model, cairn.SGD(), stage=stage, clip_norm=2.0, name=f"clipping{stage}{number}")
                self.step(m)
                told = self.told(clip) + self.told(clip)
                self.assertEqual(len(told), 1, told)
                self.assertRegex(told[0][0], r"torch.nn.utils.clip_grad_(norm|value)_ clips nothing of a model that is "
                                 r"attached.*attach\(…, clip_norm=…\), here 2.0.*(m.step\(\).grad_norm|not by values)")
                self.assertEqual(told[0][1], __file__)
                m.close()

    def test_of_others_it_is_as_it_was(self):
        before = [nn.utils.clip_grad_norm_, nn.utils.clip_grad.clip_grad_value_, clip_grad_norm_, renamed]
        model, other = made(), nn.Linear(2, 1)
        m, another = self.attach(model, cairn.SGD()), self.attach(made(), cairn.SGD(), name="another")

        def clip():
            other.zero_grad()
            other(torch.ones(1, 2)).sum().backward()
            norm = round(float(clip_grad_norm_((one for one in other.parameters()), 1.0)), 4)
            nn.utils.clip_grad_value_(iter(list(other.parameters())), 0.25)
            return norm, other.weight.grad.abs().max().item()

        self.assertEqual(self.told(lambda: self.assertEqual(clip(), (1.7321, 0.25))), [])
        with m.no_sync():  # these are here
            model(torch.ones(2, 2) + torch.arange(2.0)).sum().backward()
            self.assertEqual(self.told(lambda: self.assertGreater(clip_grad_norm_(model.parameters(), 1.0), 0)), [])
        m.close()
        self.assertEqual(self.told(lambda: clip_grad_norm_(model.parameters(), 1.0)), [])
        another.close()
        after = [nn.utils.clip_grad_norm_, nn.utils.clip_grad.clip_grad_value_, clip_grad_norm_, renamed]
        self.assertEqual(after, before)
        self.assertEqual(clip(), (1.7321, 0.25))


class Gradients(Case):
    def test_hooks_see_them_and_clipping_finds_none(self):
        """As clip_norm's text says: .grad is None behind the hooks, so torch's clipping has nothing to clip."""
        model, seen = made(), []
        model[0].weight.register_hook(lambda gradient: seen.append(gradient.abs().sum().item()))
        m = self.attach(model, cairn.SGD(), clip_norm=1.0)
        model[0].weight.register_hook(lambda gradient: seen.append(gradient.abs().sum().item()))
        model(torch.ones(2, 2) + torch.arange(4.0).view(2, 2) ** 2).square().sum().backward()
        self.assertEqual(len(seen), 2)
        self.assertEqual(seen[0], seen[1])
        self.assertGreater(seen[0], 0)
        self.assertIsNone(model[0].weight.grad)
        self.assertEqual(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)), 0.0)
        self.assertGreater(m.step().grad_norm, 0)


if __name__ == "__main__":
    main()
