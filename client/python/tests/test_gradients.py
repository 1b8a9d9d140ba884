"""Gradients in shared memory: that pushes go through it, that the bits are those of any memory, and that it is not used
after its end."""

import contextlib
import itertools
import json
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

from runner import main
from torched import ClusterCase

import torch
import cairn
import gpt
from cairn._gradients import Hook
from cairn.job import RoundHandle
from cairn.timeline import Span


class Case(ClusterCase):
    shards = 2
    both_ways = True

    def attach(self, session, model=None, **options):
        return super().attach(gpt.gpt() if model is None else model, cairn.AdamW(lr=1e-3), session, **options)


def trained(m, steps: int = 2, micros: int = 1):
    for step in range(steps):
        m.begin()
        for micro in range(micros):
            gpt.loss_of(m.model, gpt.batch(step, 0, micro)).backward()
        m.step()
    return m


class Many(torch.nn.Module):
    """Small parameters, and a large one."""

    def __init__(self, count: int, large: int = 40000):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        sizes = [100] * count + [large] * (large > 0)
        self.all = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in sizes])

    def forward(self, factor: float) -> torch.Tensor:
        return factor * sum((one * one).sum() for one in self.all)


def watched(method: str):
    return mock.patch.object(RoundHandle, method, autospec=True, side_effect=getattr(RoundHandle, method))


class Small(Case):
    """Gradients that wait for each other."""

    def attach_many(self, count: int, large: int = 40000):
        model = Many(count, large)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return ClusterCase.attach(self, model, optimizer, self.connect())

    def test_they_go_as_one_and_the_numbers_are_those_of_torch(self):
        m, alone = self.attach_many(700), Many(700)
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
        for step in range(3):
            with watched("push_many") as many, watched("push_watched") as single:
                m.model(0.01 * (step + 1)).backward()
                # all have left when the backward pass is over
                self.assertEqual(sorted(len(call.args[1]) for call in many.call_args_list), [188, 512])
                self.assertEqual(single.call_count, 1)
                m.step()
            optimizer.zero_grad()
            alone(0.01 * (step + 1)).backward()
            optimizer.step()
        for ours, theirs in zip(m.model.parameters(), alone.parameters()):
            self.assertTrue(torch.allclose(ours, theirs, rtol=1e-6, atol=1e-7))
        self.assertEqual(m.memory().gradient_overflow_bytes, 0)

    def test_one_that_was_frozen_meanwhile_stops_no_other(self):
        m = self.attach_many(3, 0)
        m.model(0.1).backward()
        m.step()
        m.job.amend(freeze_tensors=["all.1"])
        before = [one.detach().clone() for one in m.model.parameters()]
        m.model(0.1).backward()
        m.step()
        moved = [not torch.equal(one, was) for one, was in zip(m.model.parameters(), before)]
        self.assertEqual(moved, [True, False, True])

    def test_a_gradient_costs_little(self):
        count = 2000
        m, plain, best = self.attach_many(count, 0), Many(count, 0), [1.0, 1.0]
        for _ in range(5):
            for i, model in enumerate((m.model, plain)):
                loss = model(0.01)
                begun = time.thread_time()
                loss.backward()
                best[i] = min(best[i], time.thread_time() - begun)
            m.step()
        each = (best[0] - best[1]) / count * 1e6
        print(f"note: a small gradient takes {each:.1f} us of CPU beside torch's {best[1] / count * 1e6:.1f} us")
        self.assertLess(each, 100)  # 20 where nothing else runs


class OneHost(Case):
    def test_pushes_and_fetches_go_through_shared_memory(self):
        for stage in (0, 1, 2, 3):
            with self.subTest(stage=stage):
                m = trained(self.attach(self.connect(), stage=stage, name=f"shared{stage}"))
                stats = m.job.stats()
                self.assertGreater(stats.shared_pushed_bytes, 0)
                self.assertEqual(stats.shared_pushed_bytes, stats.pushed_bytes)
                self.assertGreater(stats.shared_fetched_bytes, 0)
                memory, everything = m.memory(), sum(4 * p.numel() for p in m.model.parameters())
                if stage < 3:
                    self.assertGreaterEqual(memory.gradient_bytes, everything)
                else:
                    self.assertTrue(2 * memory.largest_unit_bytes <= memory.gradient_bytes < everything, memory)
                self.assertEqual(memory.gradient_overflow_bytes, 0)  # all are pushed

    def test_a_unit_is_mapped_where_shards_published_it_and_cannot_be_written_to(self):
        m = trained(self.attach(self.connect()), 1)
        with m.job.map(m.version, "blocks.0") as mapped:
            for view in mapped.views.values():
                with self.assertRaisesRegex(TypeError, "read-only"):
                    view[0] = 1
            weight = torch.frombuffer(bytearray(mapped.views["blocks.0.out.weight"]), dtype=torch.float32)
        self.assertTrue(torch.equal(weight, m.model.blocks[0].out.weight.detach().flatten()))
        self.assertEqual(m.job.stats().maps_lent, 1)

    def test_in_stage_3_a_change_in_place_is_of_this_workers_copy_and_ends_with_it(self):
        m = trained(self.attach(self.connect(), stage=3), 1)
        weight, before = m.model.blocks[0].out.weight, m.state_dict()["blocks.0.out.weight"]
        with m.gathered(weight), torch.no_grad():
            weight.zero_()
            self.assertEqual(weight.sum().item(), 0.0)
        with m.gathered(weight):
            self.assertTrue(torch.equal(weight.detach(), before))
        self.assertTrue(torch.equal(m.state_dict()["blocks.0.out.weight"], before))


class Bits(Case):
    def test_they_are_those_of_any_memory(self):
        for stage, micros in itertools.product((1, 2, 3), (1, 2, 5)):
            with self.subTest(stage=stage, micros=micros):
                roots = set()
                for mapped in (None, False):
                    m = self.attach(self.connect(), stage=stage, micro_batches=micros, mapped_gradients=mapped,
                                    name=f"bits{stage}{micros}{mapped}")
                    trained(m, 3, micros)
                    roots.add(self.cluster.digest(m.name))
                self.assertEqual(len(roots), 1)

    def test_half_and_bfloat16_gradients_too(self):
        for dtype in (torch.float16, torch.bfloat16):
            roots = set()
            for mapped in (True, False):
                torch.manual_seed(2)
                model = torch.nn.Linear(7, 5).to(dtype)
                m = self.attach(self.connect(), model, mapped_gradients=mapped, name=f"{dtype}{mapped}"[6:])
                model.weight.backward(torch.randn(5, 7).to(dtype))
                m.step()
                roots.add(self.cluster.digest(m.name))
            self.assertEqual(len(roots), 1, dtype)

    def test_a_place_on_loan_is_not_written_to(self):
        class Under:
            def done(self):
                return False

        m = self.attach(self.connect(), stage=3)
        slot, gradients = m._slots[0], m._gradients
        places = [gradients.place(slot, torch.full(slot.parameter.shape, float(i)))
                  for i in range(1 + gradients.nbytes // (4 * slot.parameter.numel()))]
        for place in places:
            gradients.pushing(place, Under())
        self.assertEqual([place.tensor.unique().tolist() for place in places], [[i] for i in range(len(places))])
        self.assertEqual([place.region is None for place in places], [False] * (len(places) - 1) + [True])
        self.assertEqual(m.memory().gradient_overflow_bytes, places[-1].nbytes)
        for i in (1, 0):  # out of order, beside each other: one range again
            places[i].push = None
            gradients.reclaim()
        self.assertEqual(gradients._regions[torch.device("cpu")].ranges.take(2 * places[0].nbytes), 0)
        for place in places:
            place.push = None
        self.assertEqual(m.memory().gradient_overflow_bytes, 0)

    def test_hooks_of_others_come_before(self):
        """Registered before the attachment, behind it, and between two steps."""
        model, seen, nodes = torch.nn.Linear(3, 2), [], []

        def watch(name):
            def look(*_):
                seen.append((name, model.weight.grad is not None))

            if hasattr(model.weight, "register_post_accumulate_grad_hook"):
                return model.weight.register_post_accumulate_grad_hook(look)
            nodes.append(model.weight.expand_as(model.weight).grad_fn.next_functions[0][0])
            return nodes[-1].register_hook(look)

        watch("before")
        model.weight.register_hook(lambda gradient: seen.append(("gradient", True)) or 2 * gradient)
        m = self.attach(self.connect(), model, name="hooks")
        watch("behind")
        for step in range(2):
            model(torch.ones(1, 3)).sum().backward()
            self.assertIsNone(model.weight.grad)
            self.assertEqual(round(m.step().grad_norm ** 2), 2 * 3 * 4 + 2)  # the doubled one was pushed
            names = ["gradient", "before", "behind"] + ["later"] * step
            self.assertEqual(seen, [(name, True) for name in names])
            seen.clear()
            watch("later")
        model.eval()  # no forward pass begins the round, by which the client's hook would come to be the last one
        watch("at last")
        model(torch.ones(1, 3)).sum().backward()
        self.assertIsNone(model.weight.grad)
        self.assertEqual(round(m.step().grad_norm ** 2), 2 * 3 * 4 + 2)
        self.assertEqual([name for name, is_there in seen if is_there][-2:], ["later", "at last"])

    def test_a_hook_that_is_registered_amid_a_step_changes_the_gradient(self):
        model = torch.nn.Linear(3, 2)
        m = self.attach(self.connect(), model, name="amid")

        def double(*_):
            model.weight.grad.mul_(2)

        loss = model(torch.ones(1, 3)).sum()
        if hasattr(model.weight, "register_post_accumulate_grad_hook"):
            model.weight.register_post_accumulate_grad_hook(double)
        else:
            node = model.weight.expand_as(model.weight).grad_fn.next_functions[0][0]
            node.register_hook(double)
        loss.backward()
        self.assertEqual(round(m.step().grad_norm ** 2), 2 * 3 * 4 + 2)


class Ends(Case):
    def test_a_hook_that_was_removed_stays_so(self):
        """A job may be closed by another thread while a forward pass has its hooks called behind those of others."""
        calls = []
        parameter = torch.nn.Parameter(torch.ones(2))
        hook = Hook(parameter, lambda: calls.append(1))
        hook.be_last()
        parameter.sum().backward()
        hook.remove()
        hook.be_last()
        parameter.sum().backward()
        self.assertEqual(calls, [1])

    def test_in_every_order(self):
        """Of the attachment, the session and a backward pass: the pass raises or is dropped, and nothing is touched."""
        for i, order in enumerate(itertools.permutations("asb")):
            for pushed in (False, True):
                with self.subTest(order="".join(order), pushed=pushed):
                    session = self.connect()
                    m = self.attach(session, name=f"order{i}{pushed}")
                    if pushed:
                        gpt.loss_of(m.model, gpt.batch(0, 0)).backward()
                    loss = None if pushed else gpt.loss_of(m.model, gpt.batch(0, 0))
                    for act in order:
                        if act == "a":
                            m.close()
                        elif act == "s":
                            session.close()
                        elif loss is not None:
                            with contextlib.suppress(cairn.CairnError):
                                loss.backward()
                        else:
                            with contextlib.suppress(cairn.CairnError):
                                m.step()
                    gradients = [p.grad for p in m.model.parameters() if p.grad is not None]
                    self.assertTrue(all(g.sum().isfinite() for g in gradients))
                    self.assertEqual(m._gradients.nbytes, 0)

    def test_while_a_backward_pass_runs(self):
        for i in range(5):
            session = self.connect()
            m = self.attach(session, name=f"runs{i}")
            loss, began = gpt.loss_of(m.model, gpt.batch(0, 0)), threading.Event()
            m.model.norm.weight.register_hook(lambda gradient: began.set())
            closer = threading.Thread(target=lambda: (began.wait(10), session.close()))
            closer.start()
            with contextlib.suppress(cairn.CairnError):
                loss.backward()
                m.step()
            closer.join(20)
            self.assertFalse(closer.is_alive())

    def test_by_a_signal_handler_amid_a_copy(self):
        session = self.connect()
        m = self.attach(session)
        gradients, slot = m._gradients, m._slots[0]
        place = gradients.place(slot, torch.zeros_like(slot.parameter))
        self.assertIsNotNone(place.region)
        with session._writes() as is_open:
            m.close(), session.close()
            self.assertTrue(is_open and not session.closed)
            place.tensor.fill_(1.0)
        self.assertTrue(session.closed)
        self.assertIsNone(gradients.place(slot, torch.ones_like(slot.parameter)).region)

    def test_attaching_again_and_again_keeps_no_memory(self):
        session = self.connect()
        for _ in range(4):
            m = trained(self.attach(session, gpt.gpt(), name="again"), 1)
            m.close()
            self.assertEqual(m.memory().gradient_bytes, 0)
            self.assertEqual(len(m.job._open), 0)
        session.close()
        m.close()


class Choice(Case):
    def test_what_cannot_be_is_refused(self):
        for words, options in (("mapped_gradients is 1", dict(mapped_gradients=1)),
                               ("are added up", dict(mapped_gradients=True, stage=1, micro_batches=2))):
            with self.assertRaisesRegex(cairn.Invalid, words):
                self.attach(self.connect(), **options)
        self.assertEqual(self.attach(self.connect(), mapped_gradients=False).memory().gradient_bytes, 0)

    def test_where_nothing_is_shared_it_is_given_back_after_a_step(self):
        for mapped, kept in ((None, False), (True, True)):
            session = cairn.Session(self.cluster.endpoint, fabric="sealed")
            self.addCleanup(session.close)
            m = trained(self.attach(session, mapped_gradients=mapped, name=f"given{kept}"), 2)
            self.assertEqual(m.job.stats().shared_pushed_bytes, 0)
            self.assertEqual(m.memory().gradient_bytes > 0, kept)


class Recording(Case):
    def test_a_timeline_has_every_push_and_its_share_of_the_backward(self):
        session = self.connect()
        m = self.attach(session, micro_batches=2)
        with cairn.Timeline(m) as timeline:
            with self.assertRaisesRegex(cairn.Invalid, "one timeline"), cairn.Timeline(m):
                pass
            for micro in range(2):
                loss = gpt.loss_of(m.model, gpt.batch(0, 0, micro))
                with timeline.span("backward"):
                    loss.backward()
            m.step()
        names = [slot.name for slot in m._slots]
        self.assertEqual(sorted(push.name for push in timeline.pushes), sorted(2 * names))
        self.assertTrue(0 < timeline.overlap() <= 1)
        with tempfile.TemporaryDirectory() as folder:
            timeline.write(str(Path(folder) / "trace.json"), process=3)
            events = json.loads((Path(folder) / "trace.json").read_text())["traceEvents"]
        self.assertEqual({event["pid"] for event in events}, {3})
        self.assertEqual(sum(event["name"].startswith("push ") for event in events), 2 * len(names))
        trained(m, 1)  # and goes on without it

    def test_it_shows_each_unit_of_stage_3_fetched_while_the_one_before_is_used(self):
        for fabric in ("auto", "sealed"):
            session = cairn.Session(self.cluster.endpoint, fabric=fabric)
            self.addCleanup(session.close)
            m = self.attach(session, gpt.gpt(layers=4), stage=3, name=f"ahead-{fabric}")
            with cairn.Timeline(m) as timeline:
                trained(m, 1)
            there = [f"blocks.{i}" for i in range(4)]
            uses = [use for use in timeline.uses if use.name in there]
            self.assertEqual([use[:2] for use in uses],
                             [("forward", name) for name in there] + [("backward", name) for name in there[::-1]])
            fetches = [one for one in timeline.fetches if one.name in there]
            self.assertEqual([one.name for one in fetches], there + there[::-1])
            self.assertTrue(all(one.begin <= one.end for one in fetches), fetches)  # those that are lent already, too
            for before, fetch in zip(uses, fetches[1:]):  # the first of backward is nobody's next
                if fetch is not fetches[4]:
                    self.assertTrue(before.begin <= fetch.begin <= before.end, (before, fetch))
            self.assertGreaterEqual(timeline.ahead(), 0.6)
            names = [event["name"] for event in timeline.events()]
            self.assertIn("fetch blocks.1", names)
            self.assertIn("use blocks.1, backward", names)

    def test_the_share_is_of_the_time_in_which_any_push_is_under_way(self):
        timeline = cairn.Timeline(self.attach(self.connect()))
        self.assertEqual(timeline.overlap(), 0.0)
        timeline.spans = [Span("backward", 0, 10), Span("forward", 10, 30)]
        timeline.pushes = [Span("a", 4, 8), Span("b", 6, 14), Span("c", 18, 20)]
        self.assertEqual(timeline.overlap(), 0.5)


if __name__ == "__main__":
    main()
