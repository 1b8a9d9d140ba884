"""What a user may change after attach, by the table of client/python/README.md: torch's numbers, or a sentence within
one step that says what to do instead, and which is followed here."""

import contextlib
import copy
import inspect
import io
import pickle
import re
import tempfile
import threading
import warnings

from runner import main
from scenes import scene
from torched import ClusterCase

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers
from torch.nn.utils import prune

import cairn

LR, HEADS = 0.01, ("0.weight", "0.bias")
X = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))


def made() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def wide() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 256), nn.Tanh(), nn.Linear(256, 256))


def frozen() -> nn.Module:
    model = made()
    model[0].requires_grad_(False)
    return model


class Pair:
    """A model that is attached, and the same one with torch's own optimizer."""

    def __init__(self, case: "Case", make=made, name: str = None, **options):
        self.case, self.options = case, options
        self.name = name or case.name
        self.ours, self.theirs = make(), make()
        self.optimizer = torch.optim.AdamW(self.theirs.parameters(), lr=LR)
        self.made = 0
        self.attach()

    def attach(self, **options) -> None:
        self.m = self.case.attach(self.ours, cairn.AdamW(lr=LR), **{"name": self.name, **self.options, **options})

    def own_step(self, **options):
        self.ours(X).square().mean().backward()
        return self.m.step(**options)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.own_step()
            self.theirs(X).square().mean().backward()
            self.torch_step()

    def torch_step(self) -> None:
        self.optimizer.step(), self.optimizer.zero_grad(set_to_none=True)
        self.made += 1

    def both(self, change) -> None:
        change(self.ours), change(self.theirs)

    def is_torchs(self) -> None:
        self.case.same(self.m.state_dict(), self.theirs.state_dict(), self.made)


class Case(ClusterCase):
    def same(self, ours, theirs, steps: int) -> None:
        self.assertEqual(set(ours), set(theirs))
        for name, value in theirs.items():
            off = ((ours[name] - value).abs() / (1e-6 * (value.abs() + LR * steps))).max().item()
            self.assertLessEqual(off, 1.0, name)

    def refused(self, words: str, call, kind=cairn.Invalid) -> str:
        return super().refused(words, call, kind)

    def called(self, sentence: str, call: str, **names):
        """Does what the sentence says, as it stands there."""
        found = re.search(re.escape(call) + r"\(.*?\)(?=[ ,;.])", sentence)
        self.assertIsNotNone(found, sentence)
        return eval(found[0], {"cairn": cairn, **names})


class Training(Case):
    """What requires a gradient, and which parameters there are."""

    @scene("`requires_grad_(False)` of a layer in mid-run")
    def test_a_layer_that_is_frozen_in_mid_run(self):
        pair = Pair(self)
        pair.step(3)
        pair.both(lambda model: model[0].requires_grad_(False))
        sentence = self.refused("0.weight, 0.bias require no gradient.*Nothing of this step was applied",
                                pair.own_step)
        self.called(sentence, "m.amend", m=pair.m)
        pair.step(3)
        pair.m.amend(freeze_tensors=HEADS)  # by another worker, too
        pair.step()
        pair.is_torchs()
        pair.both(lambda model: model[0].requires_grad_(True))
        pair.m.amend(unfreeze_tensors=HEADS)
        pair.step(3)
        pair.is_torchs()

    @scene("`requires_grad_(True)` of a layer that was frozen at attach")
    def test_a_layer_that_is_thawed_in_mid_run(self):
        pair = Pair(self, frozen)
        pair.step(2)
        pair.both(lambda model: model[0].requires_grad_(True))
        sentence = self.refused("0.weight, 0.bias were frozen at attach", pair.own_step)
        self.called(sentence, "m.amend", m=pair.m)
        pair.m.close()
        pair.attach()
        pair.step(3)
        pair.is_torchs()

    @scene("`requires_grad_(False)` for the pass of another model, as in the loop of a GAN")
    def test_a_layer_that_is_frozen_for_the_pass_of_another_model(self):
        """The loop of a GAN: the generator's loss goes through the discriminator, whose step that is not."""
        def loop(d, g, d_step, g_step, adds):
            for i in range(4):
                noise = torch.randn(16, 8, generator=torch.Generator().manual_seed(i))
                fake = g(noise)
                with adds():
                    (1 - d(X)).square().mean().backward()
                d(fake.detach()).square().mean().backward()
                d_step()
                d.requires_grad_(False)
                (1 - d(fake)).square().mean().backward()
                g_step()
                d.requires_grad_(True)

        def nets():
            d = made()
            return d, nn.Sequential(nn.Linear(8, 8), nn.Tanh())

        d, g = nets()
        ours = [self.attach(net, cairn.Adam(lr=LR), name=f"gan{net[0].out_features}{i}")
                for i, net in enumerate((d, g))]
        loop(d, g, ours[0].step, ours[1].step, ours[0].no_sync)
        theirs = nets()
        optimizers = [torch.optim.Adam(net.parameters(), lr=LR) for net in theirs]

        def stepped(optimizer):
            return lambda: (optimizer.step(), optimizer.zero_grad(set_to_none=True))

        loop(*theirs, *map(stepped, optimizers), contextlib.nullcontext)
        for m, net in zip(ours, theirs):
            self.same(m.state_dict(), net.state_dict(), 4)
        (1 - d(g(X))).square().mean().backward()  # without that the generator's pass counts as one of the next step
        sentence = self.refused("backward pass 2 of the step", lambda: d(X).mean().backward())
        for words in ("m.no_sync(): around all backward passes of a step but the last", "attach(…, micro_batches=N)",
                      "model.requires_grad_(False) before it, and True again behind it"):
            self.assertIn(words, sentence)

    @scene("several backward passes in a step")
    def test_micro_batches_are_a_mean_and_no_sync_is_a_sum(self):
        for adds, count in ((True, 1), (False, 2)):
            pair = Pair(self, name=f"passes{count}", micro_batches=count)
            for _ in range(3):
                for half in (0, 1):
                    rows = X[half::2]
                    with pair.m.no_sync() if adds and half == 0 else contextlib.nullcontext():
                        pair.ours(rows).square().mean().backward()
                    (pair.theirs(rows).square().mean() / (1 if adds else 2)).backward()
                pair.m.step(), pair.torch_step()
            pair.is_torchs()
        pair = Pair(self, name="passes4")
        pair.ours(X).square().mean().backward()
        self.refused(r"attach\(…, micro_batches=N\) for N backward passes a step, of which this is number 2",
                     lambda: pair.ours(X).square().mean().backward())
        pair.m.close()
        pair.attach(name="passes5", micro_batches=4)  # as many as the loop has
        for row in range(4):
            pair.ours(X[row::4]).square().mean().backward()
            (pair.theirs(X[row::4]).square().mean() / 4).backward()
        pair.m.step(), pair.torch_step()
        pair.is_torchs()
        pair = Pair(self, name="passes3", micro_batches=2)
        losses = [pair.ours(X[half::2]).square().mean() for half in (0, 1)]
        losses[0].backward()
        self.refused("a second gradient of .*m.no_sync.*m.micro_end", losses[1].backward)
        for adds in (True, False):
            pair.m.resume()
            losses = [pair.ours(X[half::2]).square().mean() for half in (0, 1)]
            with pair.m.no_sync() if adds else contextlib.nullcontext():
                losses[0].backward()
            if not adds:
                pair.m.micro_end()
            losses[1].backward()
            pair.m.step()
            for half in (0, 1):
                (pair.theirs(X[half::2]).square().mean() / (1 if adds else 2)).backward()
            pair.torch_step()
        pair.is_torchs()

    @scene("a parameter or module that is added (LoRA)")
    def test_a_parameter_or_module_that_is_added(self):
        pair = Pair(self)
        pair.step(2)
        pair.both(lambda model: model.append(nn.Linear(1, 1, bias=False)))
        pair.theirs[3].load_state_dict(pair.ours[3].state_dict())
        value = pair.ours[3].weight.detach().clone()
        pair.optimizer.add_param_group({"params": list(pair.theirs[3].parameters())})
        sentence = self.refused("^3.weight of the model was not there at attach", pair.own_step)
        call = re.search(r"m.job.amend\(add=\[(cairn.Tensor\(.*?\))(?=, …)", sentence)[1]
        added = eval(call, {"cairn": cairn, "UNIT": "3", "GROUP": "default"})  # as the sentence leaves them to say
        pair.m.job.amend(add=[added])
        pair.m.close()
        pair.attach()
        pair.m.write({"3.weight": value})
        pair.step(2)
        pair.is_torchs()
        pair.both(lambda model: model.append(nn.Linear(1, 1)))
        pair.theirs[4].load_state_dict(pair.ours[4].state_dict())
        self.refused("4.weight, 4.bias of the model were not there at attach", pair.own_step)
        pair.m.close()
        pair.attach(name=f"{self.name}_anew")  # as a new torch optimizer
        pair.optimizer = torch.optim.AdamW(pair.theirs.parameters(), lr=LR)
        pair.step(2)
        pair.is_torchs()
        pair.both(lambda model: model.append(nn.Linear(1, 1).requires_grad_(False)))  # of this worker alone
        pair.theirs[5].load_state_dict(pair.ours[5].state_dict())
        pair.step()
        self.same({**pair.m.state_dict(), **{f"5.{name}": value for name, value in pair.ours[5].named_parameters()}},
                  pair.theirs.state_dict(), pair.made)

    @scene("a module that is taken out")
    def test_a_module_that_is_taken_out(self):
        pair = Pair(self)
        pair.step(2)
        kept = pair.theirs[2].state_dict(prefix="2.")
        pair.both(lambda model: model.__setitem__(2, nn.Identity()))
        sentence = self.refused("2.weight, 2.bias are not in the model any more", pair.own_step)
        self.called(sentence, "m.amend", m=pair.m)
        pair.step(2)
        self.same(pair.m.state_dict(), {**pair.theirs.state_dict(), **kept}, pair.made)

    @scene("a parameter or module that is replaced (an assignment, `fully_shard`), or two that change places")
    def test_a_parameter_or_module_that_is_replaced(self):
        pair = Pair(self)
        pair.step()
        for change in (lambda model: setattr(model[2], "bias", nn.Parameter(torch.ones(1))),
                       lambda model: model.__setitem__(2, nn.Linear(8, 1))):
            before = pair.ours[2], pair.ours[2].bias
            change(pair.ours)
            self.refused(r"2\.(weight|bias) of the model is another parameter.*m.write", pair.own_step)
            pair.ours[2] = before[0]
            pair.ours[2].bias = before[1]
            pair.step()
        square = Pair(self, lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(2))), name="exchanged")
        square.ours[0], square.ours[1] = square.ours[1], square.ours[0]
        self.refused("0.weight of the model is another parameter than the one that was attached", square.own_step)
        pair.m.write({"2.bias": torch.ones(1)})
        with torch.no_grad():
            pair.theirs[2].bias.fill_(1.0)
        pair.step()
        pair.is_torchs()

    @scene("pruning, by masks")
    def test_a_pruned_layer(self):
        pair = Pair(self)
        pair.step()
        pair.both(lambda model: prune.ln_structured(model[0], "weight", 0.5, n=2, dim=0))
        pair.step(3)
        theirs = {name.replace("_orig", ""): value for name, value in pair.theirs.state_dict().items()
                  if not name.endswith("_mask")}
        ours = {name: value for name, value in pair.m.state_dict().items() if not name.endswith("_mask")}
        self.same(ours, theirs, pair.made)

    @scene("activation checkpointing, `torch.compile` or `DataParallel` on the host, put around it after attach")
    def test_a_wrapper_that_is_put_around(self):
        def wrapped(model):
            model[0] = wrappers.checkpoint_wrapper(model[0], wrappers.CheckpointImpl.NO_REENTRANT)

        for stage in (2, 3):
            pair = Pair(self, lambda: nn.Sequential(made(), nn.Linear(1, 1)), stage=stage, name=f"around{stage}")
            pair.theirs.load_state_dict({name: value.clone() for name, value in pair.m.state_dict().items()})
            pair.step()
            wrapped(pair.ours)
            pair.step(2)
            outer = [nn.DataParallel(pair.ours)]
            if hasattr(torch, "compile") and stage == 2:
                outer.append(torch.compile(pair.ours, backend="eager"))
            for model in outer:
                model(X).square().mean().backward()
                pair.m.step()
                pair.theirs(X).square().mean().backward()
                pair.torch_step()
            pair.is_torchs()

    @scene("`.grad` that is read or changed by hand before the step (`p.grad.mul_`, noise, norms)")
    def test_gradients_that_are_changed_before_the_step(self):
        pair = Pair(self)
        for _ in range(3):
            with pair.m.no_sync():
                pair.ours(X).square().mean().backward()
            pair.theirs(X).square().mean().backward()
            for model in (pair.ours, pair.theirs):
                for parameter in model.parameters():
                    parameter.grad.mul_(0.1).clamp_(-1e-3, 1e-3)
            pair.m.step()
            pair.torch_step()
        pair.is_torchs()
        pair.own_step()
        self.assertTrue(all(parameter.grad is None for parameter in pair.ours.parameters()))

    @scene("`.grad` that is read behind a backward pass, where it is None")
    def test_gradients_that_are_read_behind_the_pass(self):
        def halve(model):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
        for stage in (0, 2, 3):
            pair = Pair(self, stage=stage, name=f"read{stage}")
            halve(pair.ours)  # no pass was made
            told = []
            for _ in range(2):
                pair.ours(X).square().mean().backward()
                with warnings.catch_warnings(record=True) as seen:
                    warnings.simplefilter("always")
                    halve(pair.ours)
                told += [str(one.message) for one in seen]
                pair.m.step()
            self.assertEqual(len(told), 1, told)
            self.assertRegex(told[0], r"\.grad of 0.weight is None behind a backward pass.*`with m.no_sync\(\):`.*"
                             r"register_hook.*clip_norm=…\).*m.step\(\).grad_norm")
            pair.theirs(X).square().mean().backward(), pair.torch_step()
            pair.theirs(X).square().mean().backward(), pair.torch_step()
            pair.is_torchs()
            for parameter in pair.ours.parameters():  # the advice
                parameter.register_hook(lambda gradient: gradient * 0.5)
            pair.own_step()
            pair.theirs(X).square().mean().backward(), halve(pair.theirs), pair.torch_step()
            pair.is_torchs()
            pair.m.close()
            self.assertNotIn("grad", vars(nn.Parameter))

    @scene("`p.grad = None` between a backward pass and the step")
    def test_gradients_that_are_cleared(self):
        def clear(model):
            model[0].weight.grad = None
        pair = Pair(self, missing_gradients="leave")
        clear(pair.ours)
        pair.ours(X).square().mean().backward()
        self.refused(r"\.grad = None takes back no gradient of 0.weight.*m.resume\(\).*`with m.no_sync\(\):`",
                     lambda: clear(pair.ours))
        with self.assertRaisesRegex(cairn.Invalid, "takes back no gradient"):
            del pair.ours[0].weight.grad
        pair.m.resume()
        pair.step()
        with pair.m.no_sync():
            pair.ours(X).square().mean().backward()
        pair.theirs(X).square().mean().backward()
        pair.both(clear)
        pair.m.step(), pair.torch_step()
        pair.is_torchs()

    @scene("`p.grad = …` between a backward pass and the step")
    def test_gradients_that_are_replaced(self):
        pair = Pair(self)
        pair.ours(X).square().mean().backward()
        pair.ours[0].weight.grad = torch.ones(8, 8)
        self.refused(r"a second gradient of 0.weight: \.grad was set behind a backward pass.*m.resume\(\).*`with m.no",
                     pair.m.step)
        pair.m.resume()
        pair.step()
        pair.is_torchs()

    @scene("gradients that are set by hand (`torch.autograd.grad`, `torch.func.grad`)")
    def test_gradients_that_are_set(self):
        for stage in (1, 2):
            pair = Pair(self, stage=stage, name=f"set{stage}")
            for _ in range(3):
                for model, step in ((pair.ours, pair.m.step), (pair.theirs, pair.torch_step)):
                    parameters = dict(model.named_parameters())
                    if hasattr(torch, "func"):
                        gradients = torch.func.grad(lambda values: torch.func.functional_call(
                            model, values, (X,)).square().mean())(parameters).values()
                    else:
                        gradients = torch.autograd.grad(model(X).square().mean(), list(parameters.values()))
                    for parameter, gradient in zip(parameters.values(), gradients):
                        parameter.grad = gradient.detach().clone()
                    step()
            pair.is_torchs()

    @scene("weight normalization and other parametrizations")
    def test_weight_norm_in_mid_run(self):
        pair = Pair(self)
        pair.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2 has another way, and says so
            nn.utils.weight_norm(pair.ours[0])
        self.refused("0.weight_g, 0.weight_v of the model were not there at attach", pair.own_step)
        kept = Pair(self, name="spectral")
        kept.step()
        for model in (kept.ours, kept.theirs):
            torch.manual_seed(5)  # of its vectors
            nn.utils.parametrizations.spectral_norm(model[0])
        kept.step(3)
        theirs = {name.replace("parametrizations.weight.original", "weight"): value
                  for name, value in kept.theirs.named_parameters()}
        self.same({name: value for name, value in kept.m.state_dict().items() if name in theirs}, theirs, kept.made)


def clamp(model):
    for parameter in model.parameters():
        parameter.data.clamp_(-0.1, 0.1)


def clamp_seen(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.1, 0.1)


def copied(model):
    with torch.no_grad():
        model[0].bias.copy_(torch.ones(8))


def assigned(model):
    model[2].weight.data = torch.zeros(1, 8)


def flattened(model):
    nn.utils.vector_to_parameters(torch.linspace(-1, 1, 81), model.parameters())


def begun_anew(model):
    torch.manual_seed(9)
    nn.init.xavier_uniform_(model[0].weight)


def one_element(model):
    model[0].weight.data[3, 3] += 2.0 ** -20


def in_another_order(model):
    model[0].weight.data.copy_(model[0].weight.data.flip(0))


def emptied(model):
    model.to_empty(device="cpu")
    clamp_seen(model.apply(lambda one: one.weight.data.fill_(2) if isinstance(one, nn.Linear) else None))
    model[0].bias.data.zero_(), model[2].bias.data.zero_()


WRITES = [clamp, clamp_seen, copied, assigned, flattened, begun_anew, one_element, in_another_order, emptied]


class Values(Case):
    @scene("values that are written in place, `p.data` too")
    def test_values_that_are_written_in_place(self):
        for stage in (1, 2):
            for write in WRITES:
                with self.subTest(stage=stage, write=write.__name__):
                    pair = Pair(self, stage=stage, name=f"{write.__name__}{stage}")
                    pair.step(2)
                    pair.both(write)
                    sentence = self.refused(r"other values than the servers gave.*m.write\(\{'[02]\.",
                                            pair.own_step)
                    self.assertIn("Nothing of this step was applied", sentence)
                    pair.m.write(dict(pair.ours.named_parameters()))
                    pair.step(2)
                    pair.is_torchs()
        with torch.no_grad():
            pair.ours[0].bias.zero_()
        self.refused("0.bias has other values", pair.own_step)
        pair.m.resume()  # takes the servers' back
        pair.step()
        pair.is_torchs()

    def test_values_that_only_change_places(self):
        pair = Pair(self, wide)
        pair.step()
        weight = pair.ours[2].weight
        for write in (lambda one: one[[1, 0, *range(2, 256)]], lambda one: one.roll(2, 1), lambda one: one.t(),
                      lambda one: one.neg(), lambda one: one.flip(1), lambda one: one.roll(128, 0)):
            weight.data.copy_(write(weight.data).clone())
            self.refused("2.weight has other values", pair.own_step)
            pair.m.resume()
        pair.step()
        pair.is_torchs()

    @scene("the same in stage 3")
    def test_values_that_are_written_in_stage_3(self):
        pair = Pair(self, lambda: nn.Sequential(made()), stage=3)
        for write in (clamp, clamp_seen, assigned, flattened):
            self.refused(r"is not here.*m.write", lambda: write(pair.ours[0]))
        pair.step()
        with self.assertWarnsRegex(UserWarning, r"0.0.bias: what is written within m.gathered.*m.write"):
            with pair.m.gathered("0.0.bias"), torch.no_grad():
                pair.ours[0][0].bias.zero_()
        pair.m.write({"0.0.bias": torch.zeros(8)})
        with torch.no_grad():
            pair.theirs[0][0].bias.zero_()
        pair.step()
        pair.is_torchs()

    @scene("a forward pass that writes to parameters")
    def test_a_forward_pass_that_writes(self):
        class Positive(nn.Linear):
            def forward(self, x):
                self.weight.data.clamp_(0)
                return super().forward(x)

        def positive():
            torch.manual_seed(2)
            return nn.Sequential(nn.Sequential(Positive(8, 4), nn.Linear(4, 1)))

        for stage, mapped in ((2, None), (3, False), (3, None)):
            pair = Pair(self, positive, stage=stage, name=f"positive{stage}{mapped}", mapped_parameters=mapped)
            sentence = self.refused(r"(0.0.weight has other values|clamp_ would write).*m.write\(\{", pair.own_step)
            pair.m.resume()
            for _ in range(3):  # as it says: before the pass, which then has nothing to write
                pair.m.write({"0.0.weight": pair.m.state_dict()["0.0.weight"].clamp_(0)})
                if "lent" in sentence:  # who writes there is told even where nothing changes
                    return
                pair.step()
            pair.is_torchs()

    @scene("the same after each step (WGAN)")
    def test_values_that_are_clamped_after_each_step(self):
        """WGAN's, as the sentence says it: the masters are written."""
        pair = Pair(self)
        for _ in range(4):
            pair.step()
            pair.m.write({name: value.clamp_(-0.1, 0.1) for name, value in pair.m.state_dict().items()})
            clamp(pair.theirs)
        pair.is_torchs()

    @scene("the same by each of several workers")
    def test_values_that_two_workers_write(self):
        models, seen, meet = [made(), made()], {}, threading.Barrier(2, timeout=30)

        def work(rank: int) -> None:
            with cairn.connect(self.cluster.endpoint) as session:
                m = session.attach(models[rank], cairn.AdamW(lr=LR), name=self.name, rank=rank, workers=2, timeout=20)
                while m.version.step < 4:
                    with contextlib.suppress(cairn.EpochChanged):
                        models[rank](X[rank::2]).square().mean().backward()
                        m.step()
                        meet.wait()
                        if rank == 0:
                            m.write({name: value.clamp_(-0.1, 0.1) for name, value in m.state_dict().items()})
                        else:
                            clamp(models[rank])
                        meet.wait()
                seen[rank] = m.state_dict()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        theirs = made()
        optimizer = torch.optim.AdamW(theirs.parameters(), lr=LR)
        for _ in range(4):
            for rank in (0, 1):
                (theirs(X[rank::2]).square().mean() / 2).backward()
            optimizer.step(), optimizer.zero_grad(), clamp(theirs)
        for rank in (0, 1):
            self.same(seen[rank], theirs.state_dict(), 4)

    def test_a_pass_at_an_older_version_is_done_again(self):
        """One that began no round, in eval mode or of a part of the model, while another worker wrote."""
        pair = Pair(self)
        for begin in (lambda: pair.ours.eval()(X), lambda: pair.ours[2](pair.ours[1](pair.ours[0](X)))):
            pair.step()
            loss = begin().square().mean()
            with self.connect() as session:
                other = session.attach(made(), cairn.AdamW(lr=LR), name=self.name, rank=1, workers_min=1, timeout=20)
                other.write({"0.weight": torch.full((8, 8), 0.25)})
                other.close()
            loss.backward()
            self.refused("forward pass was at an earlier version", pair.m.step, cairn.EpochChanged)
            with torch.no_grad():
                pair.theirs[0].weight.fill_(0.25)
            pair.ours.train()
            pair.step()
        pair.is_torchs()

    def test_frozen_parameters_of_stage_3_are_fetched_by_each_pass_as_any(self):
        for options, passes in ((dict(mapped_parameters=False), 2), (dict(), 1)):  # lent: counted once a step
            pair = Pair(self, frozen, stage=3, name=f"passes{passes}", **options)
            pair.step()
            before = pair.m.job.stats()
            pair.step(2)
            after = pair.m.job.stats()
            self.assertEqual(after.fetched_bytes - before.fetched_bytes, 2 * passes * 4 * (72 + 9))
            self.assertEqual(after.maps_lent - before.maps_lent, 0 if options else 2 * 2)
            pair.is_torchs()
            pair.m.close()

    def test_frozen_parameters_are_fetched_once(self):
        for stage in (0, 1, 2):
            pair = Pair(self, frozen, stage=stage, name=f"once{stage}")
            pair.step()
            before = pair.m.job.stats().fetched_bytes
            pair.step(2)
            self.assertEqual(pair.m.job.stats().fetched_bytes - before, 2 * 4 * 9)  # of 2.weight and 2.bias
            pair.m.write({"0.bias": torch.ones(8)})
            with torch.no_grad():
                pair.theirs[0].bias.fill_(1.0)
            pair.step(2)
            with torch.no_grad():
                pair.ours[0].bias.zero_()
            self.refused("0.bias has other values", pair.own_step)
            pair.m.resume()
            self.assertTrue(torch.equal(pair.ours[0].bias.detach(), torch.ones(8)))
            pair.step()
            pair.is_torchs()

    @scene("values that are put back before the next step; another storage, layout or device")
    def test_values_that_are_put_back_or_moved(self):
        """An average that is evaluated, and taken out again; another storage, another layout."""
        pair = Pair(self, lambda: nn.Sequential(nn.Conv2d(8, 8, 2), nn.Flatten(), nn.Linear(8, 1)))
        rows = X[:, :, None, None].expand(16, 8, 2, 2)

        def step():
            for model in (pair.ours, pair.theirs):
                model(rows).square().mean().backward()
            pair.m.step(), pair.torch_step()

        pair.theirs.load_state_dict(pair.ours.state_dict())
        step()
        kept = [parameter.detach().clone() for parameter in pair.ours.parameters()]
        with torch.no_grad():
            for parameter in pair.ours.parameters():
                parameter.zero_()
            pair.ours(rows)
            for parameter, value in zip(pair.ours.parameters(), kept):
                parameter.copy_(value)
        step()
        for move in (lambda: pair.ours.share_memory(), lambda: pair.ours.to(memory_format=torch.channels_last),
                     lambda: [setattr(one, "data", one.data.clone()) for one in pair.ours.parameters()],
                     lambda: pair.ours.to("cpu").float()):
            move()
            step(), step()
        pair.is_torchs()
        with torch.no_grad():
            pair.ours[0].weight.mul_(2)
        self.refused("0.weight has other values", step)

    @scene("a value that is written here, and another one by `m.write`")
    def test_a_write_that_a_newer_version_undoes(self):
        pair = Pair(self)
        pair.step()
        with torch.no_grad():
            pair.ours[0].bias.zero_()
        self.refused(r"0.bias.* m.write", lambda: pair.m.write({"2.bias": torch.zeros(1)}))
        pair.m.write({"0.bias": torch.zeros(8), "2.bias": torch.zeros(1)})
        with torch.no_grad():
            pair.theirs[0].bias.zero_(), pair.theirs[2].bias.zero_()
        pair.step()
        pair.is_torchs()

    @scene("`.double()`, `.half()`, `.to(dtype)`")
    def test_another_dtype(self):
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            pair = Pair(self, name=f"dtype{str(dtype)[6:]}")
            pair.step()
            pair.ours.to(dtype)
            self.refused(r"0.weight is torch.(float64|float16|bfloat16) now and was torch.float32 at attach",
                         lambda: pair.ours(X.to(dtype)))
            self.refused("0.weight is torch", pair.m.step)
            pair.ours.float()
            pair.m.resume()
            pair.step()
            pair.is_torchs()
            pair.m.close()
            pair.ours.to(dtype)
            if dtype == torch.float64:
                self.refused("float64", pair.attach, cairn.Unsupported)
            else:
                pair.attach(wire_dtype=torch.float32)
                self.assertEqual(pair.m.version.step, 2)
                self.assertEqual(pair.ours[0].weight.dtype, dtype)

    @scene("an embedding with `max_norm`")
    def test_max_norm(self):
        def embedding(max_norm):
            torch.manual_seed(1)
            return nn.Sequential(nn.Embedding(4, 2, max_norm=max_norm), nn.Linear(2, 1))

        rows = torch.tensor([0, 2])
        self.refused(r"0.weight has max_norm.*m.write", lambda: self.session.attach(embedding(0.5), cairn.SGD(),
                                                                                  name="max_norm"), cairn.Unsupported)
        ours, theirs = embedding(None), embedding(0.5)
        m = self.attach(ours, cairn.SGD(lr=LR), name="max_norm")
        optimizer = torch.optim.SGD(theirs.parameters(), lr=LR)
        for _ in range(3):
            weight = m.state_dict()["0.weight"]
            m.write({"0.weight": torch.embedding_renorm_(weight, rows, 0.5, 2.0)})
            for model in (ours, theirs):
                model(rows).sum().backward()
            m.step(), optimizer.step(), optimizer.zero_grad()
        self.same(m.state_dict(), theirs.state_dict(), 3)


class Weights(Case):
    @scene("a weight of a part that is no whole number from 0 to 2^53")
    def test_a_weight_is_a_whole_number(self):
        pair = Pair(self)
        for weight in (2.5, -3, "3", True, 2 ** 53 + 1, 2 ** 64, float("nan"), torch.tensor(2.0), torch.ones(3)):
            with self.subTest(weight=weight):
                self.refused(r"weight is .*; it is a whole number from 0 to 2\^53.*int\(weight\)",
                             lambda: pair.own_step(weight=weight))
                pair.m.resume()
        self.assertFalse(pair.own_step(weight=0).applied)
        for weight in (int(torch.tensor(16.0)), torch.tensor(16)):  # of a sum over so many
            pair.ours(X).square().sum().backward()
            pair.m.step(weight=weight)
            pair.theirs(X).square().mean().backward()
            pair.torch_step()
        pair.is_torchs()
        self.assertTrue(pair.own_step(weight=2 ** 53).applied)
        round_ = pair.m.job.round_begin(20)
        self.refused("weight is -1", lambda: round_.commit(-1))
        self.assertFalse(round_.commit(0, timeout=20).applied)


class Copies(Case):
    @scene("the model that is copied, pickled or saved whole")
    def test_a_copy_of_an_attached_model_is_a_plain_one(self):
        for stage in (1, 2, 3):
            pair = Pair(self, lambda: nn.Sequential(made()), stage=stage, name=f"copy{stage}")
            pair.step()
            with pair.m.gathered("*"):
                whole = io.BytesIO()
                torch.save(pair.ours, whole)
                whole.seek(0)
                how = {} if torch.__version__.startswith("1.") else {"weights_only": False}
                copies = [copy.deepcopy(pair.ours), pickle.loads(pickle.dumps(pair.ours)), torch.load(whole, **how),
                          torch.optim.swa_utils.AveragedModel(pair.ours).module]
            round_ = pair.m._round
            for one in copies:
                one(X).square().mean().backward()
                self.assertIsNotNone(one[0][0].weight.grad)
                one.load_state_dict(one.state_dict())
            self.assertIs(pair.m._round, round_)
            pair.step(2)
            pair.is_torchs()

    def test_an_average_of_the_weights(self):
        pair = Pair(self)
        averages = [torch.optim.swa_utils.AveragedModel(model) for model in (pair.ours, pair.theirs)]
        for _ in range(3):
            pair.step()
            averages[0].update_parameters(pair.ours), averages[1].update_parameters(pair.theirs)
        self.same(averages[0].state_dict(), averages[1].state_dict(), 3)

    @scene("`m`, its job or the session that are copied or pickled")
    def test_the_attachment_itself_is_not_copied(self):
        pair = Pair(self)
        for what in (pair.m, pair.m.job, self.session):
            for way in (copy.copy, copy.deepcopy, pickle.dumps):
                self.refused("neither copied nor pickled", lambda: way(what))
        self.assertEqual(repr(pair.m), f"<AttachedModel of job {self.name}: Sequential, stage 2, version 0>")
        self.assertEqual(repr(pair.m.job), f"<cairn.Job {self.name}>")
        pair.m.close()
        self.assertIn("closed", repr(pair.m) + repr(pair.m.job))

    @scene("a sparse gradient")
    def test_a_sparse_gradient(self):
        for stage in (1, 2, 3):
            model = nn.Sequential(nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 1)))
            self.attach(model, cairn.SGD(lr=LR), name=f"sparse{stage}", stage=stage)
            self.refused(r"0.0.weight is sparse; .*sparse=False", lambda: model(torch.arange(3)).sum().backward(),
                         cairn.Unsupported)

    @scene("a parameter that is complex or not initialized")
    def test_parameters_that_no_server_keeps(self):
        class Complex(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(2, dtype=torch.complex64))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of lazy modules
            for words, model in (("w is torch.complex64.*torch.view_as_complex", Complex()),
                                 ("weight.* not initialized.*forward pass", nn.LazyLinear(3))):
                self.refused(words, lambda: self.session.attach(model, cairn.SGD(), name="kept"), cairn.Unsupported)
        model(X)
        self.session.attach(model, cairn.SGD(), name="kept").close()

        class Real(nn.Module):  # as it says
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.view_as_real(torch.ones(2, dtype=torch.complex64)).clone())

            def forward(self):
                return (torch.view_as_complex(self.w) * torch.tensor([1 + 2j, 2 - 1j])).sum().abs()

        ours, theirs = Real(), Complex()
        m = self.attach(ours, cairn.AdamW(lr=LR), name="real")
        optimizer = torch.optim.AdamW(theirs.parameters(), lr=LR)
        for _ in range(3):
            ours().backward(), m.step()
            (theirs.w * torch.tensor([1 + 2j, 2 - 1j])).sum().abs().backward()
            optimizer.step(), optimizer.zero_grad()
        self.same(m.state_dict(), {"w": torch.view_as_real(theirs.w.detach())}, 3)

    def test_help_and_what_a_file_with_code_is_told(self):
        names = [name for name in vars(cairn) if not name.startswith("_") and name not in ("annotations", "torch")]
        for name in names:
            if not inspect.ismodule(getattr(cairn, name)):
                self.assertRegex(cairn.__doc__, rf"(?m)^    {name} +\S")
        with tempfile.NamedTemporaryFile(suffix=".pt") as file:
            torch.save({"model": made().state_dict(), "optimizer": Case}, file.name)
            sentence = self.refused("is not taken: ", lambda: cairn.import_checkpoint(
                self.session, file.name, made(), cairn.AdamW(), name="code"))
        self.assertNotRegex(sentence, r"\x1b|\n|weights_only|trust")


class Sharing(Case):
    @scene("another model with the same parameters (actor and critic)")
    def test_models_that_share_parameters(self):
        def nets():
            torch.manual_seed(5)
            trunk = nn.Linear(8, 8)
            return nn.Sequential(trunk, nn.Linear(8, 2)), nn.Sequential(trunk, nn.Linear(8, 1))

        (actor, critic), theirs = nets(), nets()
        m = self.session.attach(actor, cairn.AdamW(lr=LR), name="actor")
        sentence = self.refused("0.weight of this model is 0.weight of the one that is attached as job actor and 1 m",
                                lambda: self.session.attach(critic, cairn.AdamW(lr=LR), name="critic"))
        self.refused("0.weight of this model", lambda: self.connect().attach(critic, cairn.AdamW(), name="critic"))
        self.assertIn("nn.ModuleDict({'a': one, 'b': the other})", sentence)
        m.close()
        both = nn.ModuleDict({"a": actor, "b": critic})
        m = self.attach(both, cairn.AdamW(lr=LR), name="both")
        parameters = list(dict.fromkeys([*theirs[0].parameters(), *theirs[1].parameters()]))
        optimizer = torch.optim.AdamW(parameters, lr=LR)
        for _ in range(5):
            for one, other in ((actor, critic), theirs):
                (one(X).square().mean() + (other(X) - 1).square().mean()).backward()
            m.step(), optimizer.step(), optimizer.zero_grad()
        self.same(m.state_dict(), nn.ModuleDict({"a": theirs[0], "b": theirs[1]}).state_dict(), 5)

    def test_frozen_parameters_may_be_shared(self):
        trunk = nn.Linear(8, 8).requires_grad_(False)
        for i in range(2):
            self.attach(nn.Sequential(trunk, nn.Linear(8, 1)), cairn.SGD(), name=f"head{i}")


if __name__ == "__main__":
    main()
