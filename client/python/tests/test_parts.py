"""Tensor parallelism: a transformer of two layers whose heads and hidden units are cut over a team of two workers
equals the same model in one process, in every stage; several teams average their batches."""

import threading
import time

from runner import main
from torched import ClusterCase

import torch
from torch import nn
from torch.nn import functional

import cairn

WIDTH, HEAD, HIDDEN, VOCABULARY, CONTEXT, LR = 16, 8, 22, 31, 8, 1e-3
CUTS = (12, 10)  # of the hidden units: parts need not be of one size


class Team:
    """Two threads that compute one batch: what they add up, they add in the order of the parts."""

    def __init__(self, size: int):
        self.size, self._barrier, self._shown = size, threading.Barrier(size, timeout=60), [None] * size

    def sum(self, part: int, tensor: torch.Tensor) -> torch.Tensor:
        self._shown[part] = tensor
        self._barrier.wait()
        total = sum(self._shown[1:], self._shown[0])
        self._barrier.wait()
        return total

    def leave(self) -> None:
        self._barrier.abort()


class Sum(torch.autograd.Function):  # forward adds up, backward passes on
    @staticmethod
    def forward(ctx, x, team, part):
        return team.sum(part, x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None


class Copy(torch.autograd.Function):  # the other way round
    @staticmethod
    def forward(ctx, x, team, part):
        ctx.team, ctx.part = team, part
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.team.sum(ctx.part, gradient), None, None


class Layer(nn.Module):
    """The parts that are here: one in a team, all of them in one process."""

    def __init__(self, parts, team):
        super().__init__()
        self.parts, self.team = parts, team
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        for i in parts:
            for name, rows, columns in (("q", HEAD, WIDTH), ("k", HEAD, WIDTH), ("v", HEAD, WIDTH),
                                        ("out", WIDTH, HEAD), ("up", CUTS[i], WIDTH), ("down", WIDTH, CUTS[i])):
                setattr(self, f"{name}{i}", nn.Linear(columns, rows, bias=False))

    def attend(self, i, x):
        q, k, v = (getattr(self, f"{name}{i}")(x) for name in "qkv")
        mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)
        return getattr(self, f"out{i}")((q @ k.transpose(-1, -2) / HEAD ** 0.5 + mask).softmax(-1) @ v)

    def think(self, i, x):
        return getattr(self, f"down{i}")(functional.gelu(getattr(self, f"up{i}")(x)))

    def together(self, work, x):
        if self.team is None:
            first, second = (work(i, x) for i in self.parts)
            return first + second
        (mine,) = self.parts
        return Sum.apply(work(mine, Copy.apply(x, self.team, mine)), self.team, mine)

    def forward(self, x):
        x = x + self.together(self.attend, self.norm1(x))
        return x + self.together(self.think, self.norm2(x))


class Model(nn.Module):
    def __init__(self, parts=(0, 1), team=None):
        super().__init__()
        torch.manual_seed(1)
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(parts, team) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.token(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def whole_name(name: str) -> str:
    """layers.0.q1.weight is a part of layers.0.q.weight."""
    return name.replace("0.weight", ".weight").replace("1.weight", ".weight") if ".norm" not in name else name


class Renamed(Model):
    """A worker's model: its parts have the names of the whole tensors."""

    def __init__(self, part: int, team: Team):
        super().__init__((part,), team)
        everything = dict(Model().named_parameters())
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(everything[name])
        for layer in self.layers:
            for name in ("q", "k", "v", "out", "up", "down"):
                layer._modules[name] = layer._modules.pop(f"{name}{part}")
                object.__setattr__(layer, f"{name}{part}", layer._modules[name])

    def where(self, part: int) -> dict:
        found = {}
        for i in range(len(self.layers)):
            for name in ("q", "k", "v"):
                found[f"layers.{i}.{name}.weight"] = cairn.Part((2 * HEAD, WIDTH), (part * HEAD, 0))
            found[f"layers.{i}.out.weight"] = cairn.Part((WIDTH, 2 * HEAD), (0, part * HEAD))
            found[f"layers.{i}.up.weight"] = cairn.Part((HIDDEN, WIDTH), (part * CUTS[0], 0))
            found[f"layers.{i}.down.weight"] = cairn.Part((WIDTH, HIDDEN), (0, part * CUTS[0]))
        return found


def batch(step: int, team: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(step * 10 + team)
    return torch.randint(VOCABULARY, (2, CONTEXT + 1), generator=draw)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(tokens[:, :-1]).reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def reference(steps: int, teams: int) -> dict:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.1)
    for step in range(steps):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for team in range(teams):
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, batch(step, team)).backward()
            total = [sum_ + p.grad for sum_, p in zip(total, model.parameters())]
        for sum_, parameter in zip(total, model.parameters()):
            parameter.grad = sum_ * (1 / teams)
        optimizer.step()
    cut = {}
    for name, tensor in model.state_dict().items():
        cut.setdefault(whole_name(name), []).append(tensor)
    return {name: parts[0] if len(parts) == 1 else torch.cat(parts, 1 if ".out" in name or ".down" in name else 0)
            for name, parts in cut.items()}


class Parts(ClusterCase):
    shards = 3

    def train(self, name: str, steps: int, teams: int, stage: int) -> dict:
        together = [Team(2) for _ in range(teams)]
        models = [Renamed(rank % 2, together[rank // 2]) for rank in range(2 * teams)]
        states, failures = {}, []

        def worker(rank: int) -> None:
            try:
                with cairn.connect(self.cluster.endpoint) as session:
                    m = session.attach(models[rank], cairn.AdamW(lr=LR, weight_decay=0.1), name=name, rank=rank,
                                       workers_min=2 * teams, stage=stage, timeout=60, counts=rank % 2 == 0,
                                       parts=models[rank].where(rank % 2))
                    for step in range(steps):
                        loss_of(models[rank], batch(step, rank // 2)).backward()
                        m.step()
                    states[rank] = m.state_dict()
            except BaseException as failure:  # noqa: BLE001 - shown below
                together[rank // 2].leave()
                failures.append(failure)

        threads = [threading.Thread(target=worker, args=(rank,), daemon=True) for rank in range(2 * teams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        self.assertEqual(failures, [])
        self.assertEqual(len(states), 2 * teams)
        return states[0]

    def test_a_team_of_two_gives_what_one_process_gives(self):
        wanted, roots = reference(100, 1), set()
        for stage in (0, 1, 2, 3):
            with self.subTest(stage=stage):
                state = self.train(f"team{stage}", 100, 1, stage)
                share = max(float(((state[name] - p).abs() / (1e-6 * (p.abs() + LR * 100))).max())
                            for name, p in wanted.items())
                print(f"note: stage {stage}, tensor parallelism 2, 100 steps: {share:.3f} of the bound")
                self.assertEqual(state.keys(), wanted.keys())
                self.assertLessEqual(share, 1.0)
                roots.add(self.cluster.digest(f"team{stage}"))
        self.assertEqual(len(roots), 1)

    def test_two_teams_average_their_batches(self):
        wanted, state = reference(20, 2), self.train("teams", 20, 2, 3)
        for name, p in wanted.items():
            self.assertTrue(((state[name] - p).abs() <= 1e-6 * (p.abs() + LR * 20)).all(), name)

    def read_frozen(self, name: str, first: int, with_parts: bool) -> list:
        """Two ranks of a model that nobody trains; `first` begins, and the other comes when that one has had time."""
        models = [Renamed(rank, Team(2)) if with_parts else nn.Linear(4, 2) for rank in range(2)]
        failures = []

        def attach(rank: int) -> None:
            try:
                with cairn.connect(self.cluster.endpoint) as session:
                    where = models[rank].where(rank) if with_parts else {}
                    with session.attach(models[rank].requires_grad_(False), name=name, rank=rank, workers_min=2,
                                        timeout=20, parts=where) as m:
                        self.assertEqual(m.version.step, 0)
            except BaseException as failure:  # noqa: BLE001 - shown below
                failures.append((rank, failure))

        threads = [threading.Thread(target=attach, args=(rank,), daemon=True) for rank in (first, 1 - first)]
        threads[0].start()
        time.sleep(0.5)
        threads[1].start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(failures, [])
        return models

    def test_what_nobody_trains_is_made_by_all_who_hold_parts_whoever_comes_first(self):
        whole = dict(Model().named_parameters())
        for first in (0, 1):
            with self.subTest(first=first):
                for rank, model in enumerate(self.read_frozen(f"frozen{first}", first, True)):
                    for name, parameter in model.named_parameters():
                        ours = name.replace(".weight", f"{rank}.weight") if name in model.where(rank) else name
                        self.assertTrue(torch.equal(parameter, whole[ours]), name)

    def test_what_nobody_trains_is_made_by_rank_0_whoever_comes_first(self):
        for first in (0, 1):
            with self.subTest(first=first):
                zero, one = self.read_frozen(f"alike{first}", first, False)
                self.assertTrue(torch.equal(zero.weight, one.weight))

    def test_parts_that_leave_a_hole_are_refused(self):
        with cairn.connect(self.cluster.endpoint) as session:
            model = nn.Linear(4, 2, bias=False)
            with self.assertRaisesRegex(cairn.Mismatch, "weight"):
                session.attach(model, cairn.SGD(), name="hole", rank=0, workers_min=1,
                               parts={"weight": cairn.Part((4, 4), (0, 0))})
            with self.assertRaisesRegex(cairn.Invalid, "'tail' is not the"):
                session.attach(model, cairn.SGD(), name="tail", rank=0, workers_min=1,
                               parts={"tail": cairn.Part((4, 4), (0, 0))})


if __name__ == "__main__":
    main()
