"""Parameters of stage 3 where shards published them: that nothing is copied, that the bits are the same, that nothing
writes there, and that nothing reads there once the version, the job or the session is over."""

import contextlib
import copy
import io
import pickle
import threading

from runner import main
from torched import ClusterCase

import torch
from torch import nn
from torch.nn import functional

import cairn
import gpt


class Case(ClusterCase):
    shards = 2
    both_ways = True

    def attach(self, model, session=None, **options):
        return super().attach(model, cairn.SGD(lr=0.1), session or self.connect(), **{"stage": 3, **options})


class Block(nn.Module):
    """A unit that calls `during` with itself between its forward's begin and end."""

    def __init__(self, during=None):
        super().__init__()
        self.weight, self.during = nn.Parameter(torch.eye(64)), during

    def forward(self, x):
        x = x @ self.weight
        if self.during is not None:
            self.during(self)
        return x


def blocks(*during) -> nn.Module:
    return nn.Sequential(*[Block(one) for one in during])


def pass_of(model) -> torch.Tensor:
    return model(torch.ones(2, 64)).square().mean()


class Sharing(Case):
    def test_units_are_lent_and_nothing_is_copied(self):
        m = self.attach(blocks(None, None, None))
        for step in range(3):
            before = m.job.stats()
            pass_of(m.model).backward()
            self.assertEqual(m.memory().lent_bytes, 3 * 64 * 64 * 4)
            m.step()
            stats = m.job.stats()
            self.assertEqual(stats.maps_lent - before.maps_lent, 3)
            self.assertEqual(stats.fetched_bytes - before.fetched_bytes, 3 * 64 * 64 * 4)  # once, not twice
            self.assertEqual((stats.mapped_bytes_peak, m.memory().peak_bytes, m.memory().lent_bytes), (0, 0, 0))

    def test_the_bits_are_those_of_copies(self):
        for micros in (1, 3):
            roots = set()
            for mapped in (True, False):
                m = self.attach(gpt.gpt(), name=f"bits{micros}{mapped}", micro_batches=micros,
                                mapped_parameters=mapped)
                for step in range(3):
                    for micro in range(micros):
                        gpt.loss_of(m.model, gpt.batch(step, 0, micro)).backward()
                    m.step()
                roots.add(self.cluster.digest(m.name))
            self.assertEqual(len(roots), 1)

    def test_what_is_not_of_this_host_is_copied_and_asked_for_more_and_more_rarely(self):
        session = self.connect(fabric="sealed")
        m = self.attach(gpt.gpt(layers=3), session)
        tried = []
        for step in range(8):
            gpt.loss_of(m.model, gpt.batch(step, 0)).backward()
            m.step()
            tried.append(m.job.stats().maps)
        self.assertEqual((tried, m.job.stats().maps_lent), ([1, 2, 2, 2, 3, 3, 3, 3], 0))
        self.assertLessEqual(m.memory().peak_bytes, 3 * m.memory().largest_unit_bytes)
        self.assertEqual((m.memory().gathered_bytes, m.memory().lent_bytes), (0, 0))

    def test_outside_a_round_nothing_is_lent(self):
        m = self.attach(gpt.gpt())
        with torch.no_grad():
            alone = gpt.loss_of(gpt.gpt(), gpt.batch(0, 0))
            self.assertEqual(gpt.loss_of(m.model.eval(), gpt.batch(0, 0)), alone)
        self.assertEqual(m.job.stats().maps, 0)

    def test_nor_after_a_round_that_changed_nothing(self):
        m = self.attach(blocks(None, None))
        (pass_of(m.model) * float("inf")).backward()
        self.assertFalse(m.step().applied)
        maps, fetched = m.job.stats().maps, m.job.stats().fetched_bytes
        with torch.no_grad():
            pass_of(m.model.eval())
        self.assertEqual((m.job.stats().maps, m.job.stats().fetched_bytes - fetched), (maps, 2 * 64 * 64 * 4))

    def test_a_forward_pass_outside_a_round_and_its_backward_inside(self):
        m = self.attach(gpt.gpt())
        loss = gpt.loss_of(m.model.eval(), gpt.batch(0, 0))
        m.begin()
        loss.backward()
        self.assertTrue(m.step().applied)
        other = self.attach(gpt.gpt(), name="other", mapped_parameters=False)
        gpt.loss_of(other.model, gpt.batch(0, 0)).backward()
        other.step()
        self.assertEqual(self.cluster.digest(m.name), self.cluster.digest(other.name))


class Writing(Case):
    def test_it_is_refused_in_words(self):
        def of_data(change):
            return lambda w: change(w.data), lambda w: change(w.detach())

        def times_two(w):
            w *= 2

        writes = [times_two, lambda w: w.copy_(torch.zeros(64, 64)), lambda w: w.__setitem__(0, 1.0),
                  lambda w: torch.mul(w, 2, out=w), lambda w: nn.init.zeros_(w),
                  lambda w: torch._foreach_mul_([w], 2.0), lambda w: w.t().zero_(),
                  lambda w: w[0].fill_(1), lambda w: w.chunk(2)[1].view(-1).add_(1),
                  lambda w: w.numpy().__setitem__(0, 1), lambda w: w.unbind()[0].data.zero_(),
                  lambda w: functional.relu(w, inplace=True), lambda w: functional.dropout(w.t(), 0.5, True, True),
                  lambda w: functional.embedding(torch.arange(8), w, max_norm=0.1),
                  lambda w: w.storage().fill_(0), lambda w: torch.from_dlpack(w.data).zero_(),
                  *of_data(lambda w: w.zero_()), *of_data(lambda w: w.view(-1)[3:].mul_(2)), *of_data(times_two)]
        refused = []

        def during(block):
            with torch.no_grad():
                for write in writes:
                    try:
                        write(block.weight)
                    except (cairn.Invalid, ValueError) as error:  # numpy's own words
                        refused.append(str(error))
            block.weight.requires_grad_(True), block.weight.sum(), block.weight.detach().clone().zero_()

        m = self.attach(blocks(during, None))
        pass_of(m.model).backward()
        self.assertEqual(len(refused), len(writes))
        self.assertTrue(all("lent, read only" in one or "read-only" in one for one in refused), refused)
        self.assertTrue(m.step().applied)

    def test_copies_of_it_are_plain(self):
        plain = []

        def during(block):
            block.during, file = None, io.BytesIO()
            torch.save(block.state_dict(), file)
            file.seek(0)
            plain.extend([copy.deepcopy(block).weight, copy.deepcopy(block.weight.data[1:]).new_zeros(1),
                          pickle.loads(pickle.dumps(block.weight)), torch.load(file)["weight"]])

        m = self.attach(blocks(during, None))
        pass_of(m.model).backward()
        m.step()
        self.assertEqual([type(one) for one in plain], [nn.Parameter, torch.Tensor, nn.Parameter, torch.Tensor])
        for one in plain:
            one.data.zero_()
            self.assertEqual(one.sum().item(), 0.0)

    def test_in_gathered_it_is_this_workers_copy(self):
        m = self.attach(blocks(None, None))
        weight, loss = m.model[0].weight, pass_of(m.model)
        with m.gathered(weight), torch.no_grad():
            self.assertEqual(type(weight), nn.Parameter)
            weight.zero_()
            self.assertEqual(weight.sum().item(), 0.0)
        self.assertEqual(pass_of(m.model), loss)

    def test_an_embedding_that_writes_to_its_weight_is_copied(self):
        model = nn.Sequential(nn.Embedding(8, 4, max_norm=0.1).requires_grad_(False), nn.Linear(4, 4))
        m = self.attach(model, mapped_parameters=True)
        model(torch.arange(8)).sum().backward()
        self.assertTrue(m.step().applied)
        self.assertEqual(m.job.stats().maps_lent, 1)

    def test_what_cannot_be_is_refused(self):
        for words, options in (("mapped_parameters is 1", dict(mapped_parameters=1)),
                               ("of stage 3", dict(mapped_parameters=True, stage=2)),
                               ("no unit can be lent", dict(mapped_parameters=True, wire_dtype=torch.bfloat16))):
            with self.assertRaisesRegex(cairn.Invalid, words):
                self.attach(gpt.gpt(), **options)


class Ends(Case):
    def test_what_was_taken_from_a_version_is_refused_after_it(self):
        taken = []
        m = self.attach(blocks(lambda block: taken.extend([block.weight.data, block.weight.detach()[0]])))
        pass_of(m.model).backward()
        self.assertEqual(taken[1].sum(), 1.0)
        m.step()
        for one in taken:
            for use in (one.sum, one.clone, lambda: one + 1, lambda: one.view(-1)):
                with self.assertRaisesRegex(cairn.Invalid, "of a version that has ended"):
                    use()

    def test_a_backward_pass_of_an_earlier_version_is_refused(self):
        m = self.attach(blocks(None, None))
        late = pass_of(m.model)
        pass_of(m.model).backward()
        m.step()
        with self.assertRaisesRegex(cairn.EpochChanged, "forward pass of 1 was at an earlier version"):
            late.backward()

    def test_a_round_that_was_void_is_done_again(self):
        m = self.attach(blocks(None, None))
        loss = pass_of(m.model)
        other = self.connect().open_worker(m.name, m._spec.__class__(**{**vars(m._spec), "rank": 1}))
        other.init_done()
        m.job.amend(clip_norm=1.0)
        other.close()
        for _ in range(5):
            with contextlib.suppress(cairn.EpochChanged):
                loss.backward()
                self.assertTrue(m.step().applied)
                break
            loss = pass_of(m.model)
        self.assertEqual(m.version.step, 1)

    def test_closing_within_a_pass_waits_for_its_end(self):
        """As a signal handler does; and the memory is there until the pass is over."""
        for what in ("m", "session"):
            for at in ("forward", "backward"):
                with self.subTest(what=what, at=at):
                    session = self.connect()

                    def close(*_):
                        (m if what == "m" else session).close()

                    model = blocks(close if at == "forward" else None, None, None)
                    m = self.attach(model, session, name=f"{what}-{at}")
                    loss = model(torch.ones(2, 64, requires_grad=True))
                    if at == "backward":
                        loss.register_hook(close)
                    with contextlib.suppress(cairn.CairnError):
                        loss.square().sum().backward()
                    self.assertTrue(until(lambda: session.closed if what == "session" else m.job.closed))
                    with self.assertRaises(cairn.CairnError):
                        pass_of(model)

    def test_closing_in_another_thread(self):
        for i in range(5):
            session = self.connect()
            m, inside = self.attach(blocks(lambda _: inside.set(), None, None), session, name=f"thread{i}"), None
            inside = threading.Event()
            closer = threading.Thread(target=lambda: (inside.wait(10), session.close()))
            closer.start()
            with contextlib.suppress(cairn.CairnError):
                for _ in range(1000):
                    pass_of(m.model).backward()
                    m.step()
            closer.join(20)
            self.assertTrue(until(lambda: session.closed))

    def test_a_graph_that_outlives_the_session_is_refused(self):
        for order in ("m", "s", "ms", "sm"):
            session = self.connect()
            m = self.attach(blocks(None, None), session, name=f"order{order}")
            loss = pass_of(m.model)
            for one in order:
                (m if one == "m" else session).close()
            with self.assertRaises(cairn.CairnError):
                loss.backward()
            with self.assertRaisesRegex(cairn.Invalid, "is not here"):
                m.model[0].weight.sum()


def until(there, seconds: float = 10.0) -> bool:
    waited = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if there():
            return True
        waited.wait(0.02)
    return there()


if __name__ == "__main__":
    main()
