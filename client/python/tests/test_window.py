"""Stage 3 by accounting and against autograd: units are here while they are used, and not longer."""

import copy
import dataclasses
import io
import warnings

from runner import main
from torched import ClusterCase

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import cairn

warnings.filterwarnings("ignore", message=".*use_reentrant|None of the inputs")


class Layers(nn.Module):
    """Linear layers of one width; `walk` says how they are used."""

    def __init__(self, count: int, walk=None):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(count))
        self.scale = nn.Parameter(torch.ones(16))  # of the root
        self.walk = walk

    def forward(self, x):
        if self.walk is not None:
            return self.walk(self, x * self.scale)
        for layer in self.layers:
            x = layer(x * self.scale).tanh()
        return x


UNIT = (16 * 16 + 16) * 4


def made(count: int = 6, walk=None) -> Layers:
    torch.manual_seed(3)
    return Layers(count, walk)


class Gathering(ClusterCase):
    """Units are copied; class Lent below has the same of units that shards of this host lend."""

    mapped = False

    shards = 2

    def attach(self, model, **options):
        return super().attach(model, cairn.SGD(lr=0.1), stage=3, mapped_parameters=self.mapped, **options)

    def same_as_alone(self, model, alone, steps: int = 3, around=None, **options):
        """Trains both; the bits of SGD without momentum are torch's within one rounding."""
        m = self.attach(model, **options)
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
        for step in range(steps):
            x = torch.randn(4, 16, generator=torch.Generator().manual_seed(step))
            if around is None:
                model(x).square().sum().backward()
            else:
                around(m, model, x)
            m.step()
            optimizer.zero_grad(set_to_none=True)
            alone(x).square().sum().backward()
            optimizer.step()
        state = m.state_dict()
        for name, parameter in alone.state_dict().items():
            torch.testing.assert_close(state[name], parameter, rtol=1e-5, atol=1e-6)
        return m

    def test_the_peak_is_the_window_times_the_largest_unit(self):
        for window in (1, 2, 3):
            with self.subTest(window=window):
                m = self.same_as_alone(made(), made(), window=window, name=f"peak{window}")
                memory = m.memory()
                self.assertEqual((memory.largest_unit_bytes, memory.window, memory.root_bytes), (UNIT, window, 16 * 4))
                self.assertEqual(memory.peak_bytes, 0 if self.mapped else window * UNIT)
                self.assertEqual(memory.gathered_bytes, 0)
                print(f"note: stage 3, 6 units of {UNIT} bytes, window {window}: peak {memory.peak_bytes} bytes")

    def test_what_is_let_go_has_no_memory_and_cannot_be_used(self):
        model = made()
        m = self.attach(model)
        weight = model.layers[2].weight
        self.assertEqual((weight.shape, weight.numel(), weight.dtype), ((16, 16), 256, torch.float32))
        self.assertIn("layers.2.weight of [16, 16], which is not here", repr(model.layers[2].weight))
        for use in (weight.sum, weight.item, weight.detach, weight.tolist, lambda: weight.data, lambda: weight[0],
                    lambda: weight + 1, lambda: weight.T, lambda: nn.init.zeros_(weight), lambda: torch.stack([weight]),
                    lambda: nn.functional.linear(torch.ones(1, 16), weight), lambda: copy.deepcopy(weight),
                    lambda: setattr(weight, "data", torch.zeros(16, 16))):
            with self.assertRaisesRegex(cairn.Invalid, r"layers.2.weight is not here: .* m.gathered\("):
                use()
        with torch._C.DisableTorchFunction():  # as code does that asks no class: not a plausible number
            self.assertTrue(weight.sum().isnan())
        with m.gathered("layers.2.*"):
            self.assertEqual((type(weight), weight.shape), (nn.Parameter, (16, 16)))
            torch.testing.assert_close(weight, made().layers[2].weight)
        with self.assertRaises(cairn.Invalid):
            weight.sum()
        self.assertEqual(m.memory().gathered_bytes, 0)

    def test_the_models_own_state_dict_is_refused_while_units_are_out(self):
        model = made()
        m = self.attach(model)
        for save in (model.state_dict, lambda: torch.save(model.state_dict(), io.BytesIO()),
                     lambda: copy.deepcopy(model), lambda: torch.save(model.state_dict(keep_vars=True), io.BytesIO())):
            with self.assertRaisesRegex(cairn.Invalid, r"layers.0.weight is not here: .* m.state_dict\(\)"):
                save()
        with self.assertRaisesRegex(cairn.Invalid, "load_state_dict into a model that is attached"):
            model.load_state_dict(m.state_dict())
        with m.gathered(model):
            self.assertEqual({name: t.shape for name, t in model.state_dict().items()},
                             {name: t.shape for name, t in m.state_dict().items()})
        model.zero_grad(), model.train(), torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # use no values
        model(torch.ones(1, 16)).sum().backward()
        self.assertTrue(m.step().applied)
        m.close()
        with self.assertRaisesRegex(cairn.Invalid, "layers.0.weight is not here"):
            self.attach(model)

    def test_modules_and_parameters_are_gathered_too(self):
        model = made()
        m = self.attach(model)
        with m.gathered(model.layers[1], model.layers[3].bias, "scale"):
            torch.testing.assert_close(model.layers[1].weight, made().layers[1].weight)
            self.assertEqual(m.memory().gathered_bytes, UNIT + 16 * 4)
        for what in ((nn.Linear(1, 1),), (nn.ReLU(),), (torch.ones(1),), (3,), (None,), ()):
            with self.subTest(what=what), self.assertRaisesRegex(cairn.Invalid, "gathered: "):
                with m.gathered(*what):
                    pass
        self.assertEqual(m.memory().gathered_bytes, 0)

    def test_a_parameter_read_outside_its_module(self):
        def walk(self, x):
            return self.layers[1](self.layers[0](x)) @ self.layers[0].weight

        def around(m, model, x):
            with m.gathered("layers.0.weight"):
                model(x).square().sum().backward()

        self.same_as_alone(made(2, walk), made(2, walk), around=around)

    def test_a_module_that_is_called_twice(self):
        def walk(self, x):
            for i in (0, 1, 0, 2, 1):
                x = self.layers[i](x).tanh()
            return x

        m = self.same_as_alone(made(3, walk), made(3, walk))
        self.assertLessEqual(m.memory().peak_bytes, 3 * UNIT)

    def test_a_module_in_two_places_and_tied_weights(self):
        def shared(model):
            model.layers[3] = model.layers[1]
            model.layers[2].weight = model.layers[0].weight
            return model

        m = self.same_as_alone(shared(made(5)), shared(made(5)))
        aliases = {t.name: t.alias_of for t in m.job.tensors() if t.alias_of is not None}
        self.assertEqual(aliases, {"layers.2.weight": "layers.0.weight", "layers.3.weight": "layers.1.weight",
                                   "layers.3.bias": "layers.1.bias"})

    def test_branches_that_are_both_open(self):
        def walk(self, x):
            return self.layers[0](x).tanh() * self.layers[1](x).tanh() + self.layers[2](x)

        self.same_as_alone(made(3, walk), made(3, walk))

    def test_units_that_a_step_does_not_use(self):
        def walk(self, x):
            return self.layers[5](self.layers[1](x))

        m = self.same_as_alone(made(6, walk), made(6, walk))
        self.assertLessEqual(m.memory().peak_bytes, 2 * UNIT)

    def test_frozen_units_keep_to_the_window(self):
        def frozen(model):
            for layer in model.layers[1:]:
                layer.requires_grad_(False)
            return model

        m = self.same_as_alone(frozen(made()), frozen(made()))
        self.assertLessEqual(m.memory().peak_bytes, 2 * UNIT)

    def test_checkpointed_units(self):
        for reentrant in (False, True):
            def walk(self, x, reentrant=reentrant):
                for layer in self.layers[:2]:
                    x = checkpoint(lambda y, layer=layer: layer(y).tanh(), x, use_reentrant=reentrant)
                return checkpoint(lambda y: self.layers[3](self.layers[2](y).tanh()), x, use_reentrant=reentrant)

            with self.subTest(reentrant=reentrant):
                m = self.same_as_alone(made(4, walk), made(4, walk), name=f"checkpoint{reentrant}")
                self.assertEqual(m.memory().gathered_bytes, 0)

    def test_in_place_changes_of_what_goes_in_and_out(self):
        def walk(self, x):
            for layer in self.layers:
                x = layer(x)
                x.mul_(0.5)
            return torch.relu_(x)

        self.same_as_alone(made(3, walk), made(3, walk))

    def test_a_second_backward_pass_of_a_graph(self):
        model, alone = made(3), made(3)
        m, x = self.attach(model), torch.ones(4, 16)
        loss = model(x).square().sum()
        with m.no_sync():
            loss.backward(retain_graph=True)
            loss.backward()
        m.step()
        (2 * alone(x).square().sum()).backward()
        for (name, parameter), now in zip(alone.named_parameters(), m.state_dict().values()):
            torch.testing.assert_close(now, parameter - 0.1 * parameter.grad, rtol=1e-5, atol=1e-6, msg=name)

    def test_a_forward_pass_that_raises_leaves_nothing(self):
        def walk(self, x):
            x = self.layers[0](x)
            if broken:
                raise KeyError("mine")
            return self.layers[1](x)

        broken = True
        model = made(2, walk)
        m = self.attach(model)
        with self.assertRaises(KeyError):
            model(torch.ones(1, 16))
        broken = False
        model(torch.ones(1, 16)).sum().backward()
        self.assertTrue(m.step().applied)
        self.assertEqual(m.memory().gathered_bytes, 0)

    def test_who_was_left_behind_does_the_step_again(self):
        m = self.attach(made(2))
        session = cairn.connect(self.cluster.endpoint)
        self.addCleanup(session.close)
        other = session.open_worker(m.name, dataclasses.replace(m._spec, rank=1))
        other.init_done()
        m.begin()
        round_ = other.round_begin()
        round_.abandon()
        for value in range(3):  # until the version of that round is gone
            other.write_begin()
            other.put("scale", torch.full((16,), float(value)))
            other.write_end()
        other.close()
        with self.assertRaisesRegex(cairn.EpochChanged, "the others went on"):
            m.model(torch.ones(1, 16))
        m.model(torch.ones(1, 16)).sum().backward()
        self.assertTrue(m.step().applied)

    def test_units_are_chosen_by_class_and_pattern(self):
        for i, (units, names) in enumerate([([nn.Linear], {"layers.0", "layers.1"}), (["layers"], {"layers"}),
                                            (["layers.1"], {"layers.1"}), (None, {"layers.0", "layers.1"})]):
            m = self.attach(made(2), units=units, name=f"units{i}")
            self.assertEqual({t.unit for t in m.job.tensors()}, names | {"root"})

    def test_a_transformer_of_torch(self):
        def encoder():
            torch.manual_seed(5)
            return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 3)

        model, alone = encoder(), encoder()
        m = self.attach(model)
        x = torch.randn(2, 2, 16, generator=torch.Generator().manual_seed(1))
        here = model(x)
        torch.testing.assert_close(here, alone(x))
        here.square().sum().backward()
        self.assertTrue(m.step().applied)
        memory = m.memory()
        self.assertLessEqual(memory.peak_bytes, 2 * memory.largest_unit_bytes)
        alone.load_state_dict(m.state_dict())
        with torch.no_grad():  # and its fast path, which reads the parameters of its own children
            torch.testing.assert_close(model.eval()(x), alone.eval()(x))


class Lent(Gathering):
    mapped = True


if __name__ == "__main__":
    main()
