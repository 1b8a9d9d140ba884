"""One process, one worker: what attach takes, what it refuses, and what a step does with it."""

import copy
import logging
import warnings

from runner import main
from torched import ClusterCase

import torch
from torch import nn
from torch.nn import functional

import cairn
import gpt


class Case(ClusterCase):
    shards = 2

    def attach(self, model, optim=None, **options):
        return super().attach(model, optim or cairn.SGD(lr=0.5), **options)


def line(weight: float = 2.0, bias: float = 1.0) -> nn.Linear:
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(weight), model.bias.fill_(bias)
    return model


def loss(model, *inputs: float) -> torch.Tensor:
    return model(torch.tensor([[x] for x in inputs])).mean()


class AnAttachment(Case):
    def test_a_model_is_attached_once(self):
        model = line()
        m = self.attach(model)
        with self.assertRaisesRegex(cairn.Invalid, "attached already"):
            self.attach(model, name="another")
        m.close()
        self.attach(model, name="another")

    def test_a_job_that_is_new_is_told(self):
        with self.assertLogs("cairn", "INFO") as logs:
            self.attach(line()).close()
        self.assertIn(f"INFO:cairn:job {self.name} is new", logs.output)
        with self.assertLogs("cairn", "INFO") as logs:
            self.connect()  # says its data path
            self.attach(line())
        self.assertNotIn("is new", str(logs.output))

    def test_an_option_that_is_none_is_told_from_the_nearest(self):
        with self.assertRaisesRegex(TypeError, r"^attach\(\) has no option clipnorm; clip_norm was meant\?$"):
            self.attach(line(), clipnorm=1.0)
        with self.assertRaisesRegex(TypeError, r"^attach\(\) has no option xyz; help\(cairn.Session.attach\) lists"):
            self.session.attach(line(), xyz=1)

    def test_no_clipping_is_none_or_0(self):
        self.assertEqual(self.attach(line(), clip_norm=None).clip_norm, 0.0)
        with self.assertRaisesRegex(cairn.Invalid, "^clip_norm is 'max'; it must be a number, and 0 is none$"):
            self.attach(line(), clip_norm="max", name="another")

    def test_running_statistics_are_warned_of(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        with self.assertWarnsRegex(UserWarning, r"running statistics.*: 1;"):
            self.attach(model, buffers_every=0)


class AStep(Case):
    def test_it_is_that_of_the_optimizer(self):
        model = line()
        m = self.attach(model, clip_norm=100.0)
        loss(model, 3.0).backward()
        self.assertIsNone(model.weight.grad)  # it is the servers' now
        result = m.step(clip_norm=100.0)
        self.assertEqual((result.step, result.applied, result.lr, result.loss_scale), (1, True, 0.5, 1.0))
        self.assertAlmostEqual(result.grad_norm, 10 ** 0.5, places=5)
        self.assertEqual((model.weight.item(), model.bias.item()), (0.5, 0.5))
        self.assertEqual(m.version.step, 1)

    def test_a_parameter_without_a_gradient_counts_as_zero(self):
        model = nn.ModuleDict({"used": line(), "unused": line(7.0)})
        model.forward = lambda x: model["used"](x)
        m = self.attach(model)
        loss(model, 1.0).backward()
        m.step()
        self.assertEqual((model["used"].weight.item(), model["unused"].weight.item()), (1.5, 7.0))

    def test_parameters_that_are_not_dense_stay_as_they_lie(self):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 6)).to(memory_format=torch.channels_last)
        model[2].weight = nn.Parameter(torch.randn(16, 6).t())
        alone = copy.deepcopy(model)
        strides = [p.stride() for p in model.parameters()]
        self.assertFalse(model[0].weight.is_contiguous() or model[2].weight.is_contiguous())
        m = self.attach(model)
        x = torch.randn(2, 3, 4, 4)
        model(x).square().mean().backward()
        m.step()
        alone(x).square().mean().backward()
        torch.optim.SGD(alone.parameters(), lr=0.5).step()
        self.assertEqual([p.stride() for p in model.parameters()], strides)
        for mine, wanted in zip(model.parameters(), alone.parameters()):
            self.assertTrue(torch.allclose(mine, wanted, rtol=1e-5, atol=1e-6))
        stats = m.job.stats()
        self.assertEqual(stats.packed_bytes, 0)
        self.assertGreater(stats.packed_bytes_peak, 0)

    def test_frozen_parameters_stay_and_are_stored(self):
        model = line()
        model.weight.requires_grad_(False)
        m = self.attach(model)
        loss(model, 1.0).backward()
        m.step()
        self.assertEqual({name: t.item() for name, t in m.state_dict().items()}, {"weight": 2.0, "bias": 0.5})
        self.assertEqual([t.kind for t in m.job.tensors()], ["trained", "frozen"])

    def test_several_backward_passes_are_averaged_in_every_stage(self):
        for stage in (0, 1, 2, 3):
            for micros in (2, 4):  # announced; two are made
                with self.subTest(stage=stage, micros=micros):
                    model = nn.Sequential(line())
                    m = self.attach(model, stage=stage, micro_batches=micros, name=f"passes{stage}{micros}")
                    loss(model, 1.0).backward()
                    loss(model, 3.0).backward()
                    m.step()
                    self.assertEqual(m.state_dict()["0.weight"].item(), 2 - 0.5 * (1 + 3) / 2)

    def test_no_sync_adds_up_here_and_counts_once(self):
        for stage in (1, 2, 3):
            with self.subTest(stage=stage):
                model = nn.Sequential(line(), line())
                m = self.attach(model, stage=stage, name=f"no_sync{stage}")
                with m.no_sync():
                    loss(model[0] if stage < 3 else model, 1.0).backward()
                loss(model, 3.0).backward()
                m.step()
                inner = 1.0 if stage < 3 else 2.0 * 1.0
                self.assertEqual(m.state_dict()["0.weight"].item(), 2 - 0.5 * (inner + 2.0 * 3.0))

    def test_what_was_never_synchronized_goes_with_the_step(self):
        model = line()
        m = self.attach(model)
        with m.no_sync():
            loss(model, 1.0).backward()
            loss(model, 2.0).backward()
        m.step()
        self.assertEqual(model.weight.item(), 2 - 0.5 * 3)

    def test_a_step_given_up_half_done_is_done_again_by_the_same_member(self):
        model = line()
        m = self.attach(model)
        job, first = m.job, m.begin().round
        loss(model, 7.0).backward()  # pushed
        self.assertEqual(m.resume(), 0)
        self.assertGreater(m.begin().round, first)
        loss(model, 3.0).backward()
        self.assertEqual((m.step().step, model.weight.item()), (1, 0.5))
        self.assertIs(m.job, job)

    def test_what_the_trainer_gives_of_its_own_comes_back_with_the_version(self):
        model = line()
        m = self.attach(model, client_state_max=100)
        self.assertEqual(m.client_state(), b"")
        loss(model, 3.0).backward()
        m.step(client_state=b"row 1\0")
        m.close()
        m = self.attach(line(), client_state_max=100)  # a trainer that comes again
        self.assertEqual((m.begin().step, m.client_state()), (1, b"row 1\0"))
        with cairn.connect(self.cluster.endpoint) as other:
            self.assertEqual(other.open_reader(m.name, 20).client_state(20), (b"row 1\0", m.version))
        m.step()
        self.assertEqual(m.client_state(), b"")

    def test_a_loss_scale_is_divided_out_and_not_forgotten(self):
        model = line()
        m = self.attach(model, loss_scale=1024.0)
        loss(model, 3.0).backward()
        with self.assertRaisesRegex(cairn.Invalid, r"m.scale\(loss\).backward\(\)"):
            m.step()
        m.resume()
        m.scale(loss(model, 3.0)).backward()
        self.assertEqual((m.step().loss_scale, model.weight.item()), (1024.0, 0.5))

    def test_a_gradient_that_is_not_finite_is_skipped(self):
        model = line()
        m = self.attach(model)
        self.assertEqual(m.begin().index, 0)
        loss(model, float("inf")).backward()
        with self.assertLogs("cairn", "WARNING") as said:
            result = m.step()
        self.assertEqual((result.applied, result.finite, result.step), (False, False, 0))
        self.assertEqual(len(said.output), 1)
        self.assertRegex(said.output[0], r"of step 0 was skipped.* the gradient of weight \(1\) is not finite; 1 "
                                         "skipped so far, the next batch is number 1")
        self.assertEqual((result.nonfinite, result.nonfinite_tensors), (1, "weight (1)"))
        self.assertEqual((result.skips, result.index, m.begin().skips, m.begin().index), (1, 1, 1, 1))
        loss(model, 3.0).backward()
        self.assertTrue(m.step().applied)
        self.assertEqual((m.begin().step, m.begin().index), (1, 2))
        self.assertEqual(model.weight.item(), 0.5)

    def test_one_bad_batch_costs_one_round(self):
        model = line()
        m = self.attach(model)
        with self.assertLogs("cairn", "WARNING"):
            while m.version.step < 8:
                here = m.begin()
                loss(model, float("nan") if here.index % 16 == 3 else 1.0).backward()
                result = m.step()
        self.assertEqual((result.step, result.skips, result.index), (8, 1, 9))

    def test_too_many_skips_in_a_row_end_it_until_the_job_is_amended(self):
        model = line()
        m = self.attach(model, skips_max=3)
        with self.assertLogs("cairn", "WARNING") as said:
            for _ in range(3):
                loss(model, float("nan")).backward()
                self.assertFalse(m.step().applied)
        self.assertEqual(len(said.output), 1)  # not one a round
        with self.assertRaisesRegex(cairn.Halted, "3 rounds in a row were skipped") as caught:
            loss(model, 3.0)
        self.assertNotIsInstance(caught.exception, cairn.NonFinite)  # which a loop may pass over
        m.amend({"default": dict(lr=0.25)})
        loss(model, 3.0).backward()
        self.assertTrue(m.step().applied)

    def test_an_update_that_leaves_what_is_not_finite_is_said_and_under_fail_is_the_last(self):
        for policy in ("skip", "fail"):
            model = line()
            m = self.attach(model, cairn.AdamW(lr=0.25), name=f"results-{policy}", on_nonfinite=policy)
            with self.assertLogs("cairn", "WARNING") as said:
                loss(model, 1e25).backward()  # its square is infinite
                result = m.step()
            self.assertEqual((result.applied, result.finite, result.nonfinite), (True, True, 1))
            self.assertEqual(result.nonfinite_tensors, "weight (1)")
            self.assertRegex(said.output[0], r"of 1 elements .* not finite after the update to step 1: weight \(1\)")
            if policy == "skip":
                loss(model, 3.0).backward()
                self.assertEqual(m.step().nonfinite, 1)
                continue
            with self.assertRaisesRegex(cairn.Halted, r"a non-finite result of the update: weight \(1\)"):
                loss(model, 3.0)

    def test_evaluation_begins_no_round(self):
        for stage in (2, 3):
            model = nn.Sequential(line())
            m = self.attach(model, stage=stage, name=f"evaluation{stage}")
            with torch.no_grad():
                self.assertEqual(loss(model, 3.0).item(), 7.0)
            model.eval()
            self.assertEqual(loss(model, 3.0).item(), 7.0)
            self.assertEqual(m.version.step, 0)
            self.assertIsNone(m._round)

    def test_a_second_process_goes_on_where_the_first_one_was(self):
        m = self.attach(line())
        loss(m.model, 3.0).backward()
        m.step()
        m.close()
        model = line(weight=-1.0)
        again = self.attach(model)
        self.assertEqual((again.version.step, model.weight.item()), (1, 0.5))

    def test_who_brings_other_values_is_warned_with_the_jobs_step(self):
        for stage in (2, 3):
            m = self.attach(line(weight=2.0), name=f"values{stage}", stage=stage)
            loss(m.model, 3.0).backward()
            m.step()
            m.close()
            for weight, options, told in ((2.0, {}, 0), (-1.0, {}, 1), (-1.0, dict(must_exist=True), 0)):
                with self.subTest(stage=stage, weight=weight, options=options):
                    with self.assertLogs("cairn", "WARNING") as said:
                        logging.getLogger("cairn").warning("one at least")
                        self.attach(line(weight=weight), name=f"values{stage}", stage=stage, **options).close()
                    text = "it is at step 1, and began with another initial state than this worker brings"
                    self.assertEqual(str(said.output).count(text), told, said.output)

    def test_a_step_that_somebody_left_is_done_again(self):
        for stage in (1, 2, 3):
            with self.subTest(stage=stage):
                models = [nn.Sequential(line()), nn.Sequential(line())]
                m = self.attach(models[0], stage=stage, name=f"left{stage}")
                with cairn.connect(self.cluster.endpoint) as session:
                    other = session.attach(models[1], cairn.SGD(lr=0.5), stage=stage, rank=1, workers_min=1,
                                           timeout=20, name=f"left{stage}")
                    if m.begin().world == 1:  # it was opened before the other one came
                        m.step()
                    loss(models[0], 2.0).backward()
                    self.assertEqual(m.begin().world, 2)
                    other.begin()
                with self.assertRaisesRegex(cairn.EpochChanged, "round"):
                    m.step()
                self.assertEqual(m.begin().world, 1)
                before = m.state_dict()["0.weight"].item()
                loss(models[0], 3.0).backward()
                m.step()
                self.assertEqual(m.state_dict()["0.weight"].item(), before - 0.5 * 3)

    def test_a_job_is_amended_from_the_next_step_on(self):
        model = line()
        m = self.attach(model, cairn.SGD(lr=0.5, groups={"bias": dict(lr=0.25)}))
        loss(model, 3.0).backward()
        m.amend({"default": dict(lr=0.125)}, freeze=["bias"], clip_norm=100.0)  # this round goes by the old terms
        m.step()
        self.assertEqual((model.weight.item(), model.bias.item()), (0.5, 0.75))
        loss(model, 4.0).backward()
        m.step(clip_norm=100.0)
        self.assertEqual((model.weight.item(), model.bias.item()), (0.0, 0.75))
        m.amend(unfreeze=["bias"], clip_norm=0.0)
        loss(model, 0.0).backward()
        m.step()
        self.assertEqual((model.weight.item(), model.bias.item()), (0.0, 0.5))
        m.amend(freeze_tensors=["weight"])
        loss(model, 1.0).backward()
        m.step()
        self.assertEqual((model.weight.item(), model.bias.item()), (0.0, 0.25))
        m.amend(unfreeze_tensors=["weight"])
        loss(model, 0.0).backward()
        m.step()
        with self.assertRaisesRegex(cairn.NotFound, "no group tail; there are bias, default|default, bias"):
            m.amend({"tail": dict(lr=1.0)})
        with self.assertRaisesRegex(cairn.Invalid, "no slope; it has lr"):
            m.amend({"bias": dict(slope=1.0)})

    def test_weights_and_moments_are_written_between_steps(self):
        for stage in (2, 3):
            with self.subTest(stage=stage):
                model = nn.Sequential(line())
                m = self.attach(model, cairn.SGD(lr=0.5, momentum=0.5), stage=stage, name=f"written{stage}")
                loss(model, 3.0).backward()
                with self.assertRaisesRegex(cairn.Invalid, "a step is open"):
                    m.write({"0.bias": torch.zeros(1)})
                m.step()
                version = m.write({"0.bias": torch.tensor([7.0])})
                self.assertEqual((version, m.version.step), (m.version, 1))
                m.write({"0.weight": torch.zeros(1, 1)}, plane="exp_avg")
                self.assertEqual(m.state_dict()["0.bias"].item(), 7.0)
                before = m.state_dict()["0.weight"].item()
                loss(model, 2.0).backward()
                m.step()
                self.assertEqual(m.state_dict()["0.weight"].item(), before - 0.5 * 2.0)
                with self.assertRaisesRegex(cairn.Invalid, "no .first. name of a tensor of that shape"):
                    m.write({"0.bias": torch.zeros(2)})

    def test_a_snapshot_is_made_by_the_first_worker(self):
        m = self.attach(line())
        loss(m.model, 3.0).backward()
        m.step()
        shown = self.cluster.ctl("snapshot", "show", m.name, m.snapshot())
        self.assertEqual((shown["step"], shown["content_root"]), (1, self.cluster.digest(m.name)))
        m._rank = 1
        self.assertIsNone(m.snapshot())

    def test_buffers_begin_as_those_of_rank_0_and_are_this_workers_then(self):
        def made(mean: float) -> nn.Module:
            model = nn.Sequential(line(), nn.BatchNorm1d(1))
            model[1].running_mean.fill_(mean)
            return model

        m = self.attach(made(5.0))
        loss(m.model, 1.0, 2.0).backward()
        m.step()
        state = m.state_dict()
        self.assertEqual(state.keys(), m.model.state_dict().keys())
        self.assertEqual(state["1.num_batches_tracked"].item(), 1)
        mean = state["1.running_mean"].item()
        self.assertNotEqual(mean, 5.0)
        with cairn.connect(self.cluster.endpoint) as session:
            other = made(-1.0)
            session.attach(other, cairn.SGD(lr=0.5), rank=1, workers_min=1, name=m.name)
            self.assertEqual(other[1].running_mean.item(), mean)

    def test_the_learning_rate_goes_as_scheduled(self):
        wanted = {cairn.constant(warmup_steps=2): [0.0, 0.25, 0.5, 0.5, 0.5],
                  cairn.linear(4): [0.5, 0.375, 0.25, 0.125, 0.0],
                  cairn.cosine(4, lr_min=0.1): [0.5, 0.44142135623730955, 0.3, 0.15857864376269046, 0.1],
                  cairn.wsd(4, decay_steps=2): [0.5, 0.5, 0.5, 0.25, 0.0],
                  cairn.table([(1, 1.0), (3, 0.0)]): [0.5, 0.5, 0.25, 0.0, 0.0]}
        for i, (schedule, rates) in enumerate(wanted.items()):
            with self.subTest(schedule=schedule):
                m = self.attach(line(), cairn.SGD(lr=0.5, schedule=schedule), name=f"schedule{i}")
                got = []
                for _ in rates:
                    loss(m.model, 1.0).backward()
                    got.append(m.step().lr)
                for one, other in zip(got, rates):
                    self.assertAlmostEqual(one, other, places=12)

    def test_a_job_says_what_it_was_given(self):
        m = self.attach(line(), stage=1, micro_batches=3, clip_norm=2.0, on_nonfinite="fail", loss_scale=4.0,
                        loss_scale_policy="fixed", reduce_groups="host")
        info = m.job.describe()
        self.assertEqual((info.stage, info.micro_batches, info.clip_norm, info.on_nonfinite, info.loss_scale,
                          info.reduce_groups), (1, 3, 2.0, "fail", 4.0, "host"))
        m.scale(loss(m.model, float("nan"))).backward()
        with self.assertRaises(cairn.NonFinite):
            m.step()


class Precision(Case):
    def test_a_bf16_model_has_fp32_masters(self):
        for stage in (1, 2, 3):
            with self.subTest(stage=stage):
                model = nn.Sequential(line(1.0)).bfloat16()
                m = self.attach(model, cairn.SGD(lr=2.0 ** -10), stage=stage, name=f"bf16{stage}")
                for _ in range(4):
                    model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
                    m.step()
                self.assertEqual(m.state_dict()["0.weight"].item(), 1 - 4 * 2.0 ** -10)  # lost in bf16 steps
                with m.gathered("0.*"):
                    self.assertEqual(model[0].weight.dtype, torch.bfloat16)
                    self.assertEqual(model[0].weight.item(), torch.tensor(1 - 4 * 2.0 ** -10).bfloat16().item())

    def test_the_wire_may_be_bf16_for_an_fp32_model(self):
        for stage in (2, 3):
            model = nn.Sequential(line(1.0))
            m = self.attach(model, cairn.SGD(lr=2.0 ** -10), stage=stage, wire_dtype=torch.bfloat16,
                            name=f"wire{stage}")
            loss(model, 1.0).backward()
            m.step()
            with m.gathered("*"):
                self.assertEqual(model[0].weight.item(), torch.tensor(1 - 2.0 ** -10).bfloat16().item())
            self.assertEqual(m.state_dict()["0.weight"].item(), 1 - 2.0 ** -10)
            for read in (nn.Sequential(line()), nn.Sequential(line()).bfloat16()):
                with cairn.reader(m.name, self.cluster.endpoint) as reader:
                    self.assertEqual(reader.load_into(read), m.version)
                self.assertEqual(read[0].weight.item(), torch.tensor(1 - 2.0 ** -10).bfloat16().item())

    def test_a_f16_model_is_trained_with_a_loss_scale(self):
        model = line(1.0).half()
        m = self.attach(model, cairn.SGD(lr=0.25), loss_scale=8.0)
        gradient = torch.tensor([[1.0]], dtype=torch.float16)
        scale = m.begin().loss_scale
        m.scale(torch.zeros(()))
        model.weight.backward(gradient * scale)
        m.step()
        self.assertEqual(model.weight.item(), 0.75)


class Refusals(Case):
    def refused(self, kind, words, call):
        return super().refused(words, call, kind)

    def test_memory_that_shares_elements_is_not_written_to(self):
        m = self.attach(line())
        with self.assertRaisesRegex(cairn.Invalid, "contiguous"):
            m.job.fetch(m.version, "weight", torch.ones(1).expand(4), box=cairn.Box((0, 0), (1, 1)))
        with self.assertRaisesRegex(cairn.Invalid, "one element, expanded"):
            m.job.fetch(m.version, "weight", torch.ones(1).expand(2, 2))

    def test_what_attach_cannot_do_is_said(self):
        class Muon(torch.optim.Optimizer):
            def __init__(self, parameters):
                super().__init__(parameters, dict(lr=0.02))

        def adam(**options):
            return lambda: self.attach(model, torch.optim.Adam(model.parameters(), **options))

        model = line()
        stepped = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 1)).sum().backward()
        stepped.step()
        some = torch.optim.SGD([model.weight], lr=0.1)
        for kind, words, call in [
            (cairn.Unsupported, "Muon is not run by the servers, and nothing is put in its place",
             lambda: self.attach(model, Muon(model.parameters()))),
            (cairn.Unsupported, "Adagrad is not run",
             lambda: self.attach(model, torch.optim.Adagrad(model.parameters()))),
            (cairn.Unsupported, "amsgrad=True", adam(amsgrad=True)),
            (cairn.Unsupported, "maximize=True", adam(maximize=True)),
            (cairn.Unsupported, "dampening", lambda: self.attach(model, torch.optim.SGD(
                model.parameters(), lr=0.1, momentum=0.9, dampening=0.1))),
            (cairn.Unsupported, "made steps already", lambda: self.attach(model, stepped)),
            (cairn.Invalid, "does not have bias", lambda: self.attach(model, some)),
            (cairn.Unsupported, "stage 4", lambda: self.attach(model, stage=4)),
            (cairn.Invalid, "micro_batches is 0", lambda: self.attach(model, micro_batches=0)),
            (cairn.Unsupported, "float64", lambda: self.attach(line().double())),
            (cairn.Invalid, "meta device", lambda: self.attach(nn.Linear(1, 1, device="meta"))),
            (cairn.Invalid, "no parameters", lambda: self.attach(nn.ReLU())),
            (cairn.Invalid, "nothing to train", lambda: self.attach(line().requires_grad_(False))),
            (cairn.Invalid, "'tail.*' matches no module", lambda: self.attach(nn.Sequential(line()), units=["tail.*"])),
            (cairn.Invalid, "'LSTM' matches no module", lambda: self.attach(nn.Sequential(line()), units=[nn.LSTM])),
            (cairn.Invalid, "matches no trained tensor", lambda: self.attach(model, cairn.SGD(groups={"norm.*": {}}))),
        ]:
            with self.subTest(words=words):
                self.refused(kind, words, call)

    def test_every_option_has_an_effect_or_is_refused(self):
        for stage in (0, 1, 2, 3):
            for window in (-1, 0, 1.5, "2", True, 2 ** 40):
                with self.subTest(stage=stage, window=window):
                    self.refused(cairn.Invalid, "window is .*; it must be a whole number of at least 1",
                                 lambda: self.attach(nn.Sequential(line()), stage=stage, window=window))
        for stage in (0, 1, 2):
            self.refused(cairn.Invalid, f"window is of stage 3, in stage {stage}",
                         lambda: self.attach(nn.Sequential(line()), stage=stage, window=2))
        self.refused(cairn.Invalid, "no units", lambda: self.attach(line(), stage=3, window=2))
        for words, options in [
            ("stage '3'", dict(stage="3")), ("stage 2.0", dict(stage=2.0)), ("stage True", dict(stage=True)),
            ("stage -1", dict(stage=-1)), ("name is ''", dict(name="")), ("name is 3", dict(name=3)),
            ("give a list", dict(units="layers.*")), ("give a list", dict(units=nn.Linear)),
            ("float16 for weight|wire_dtype", dict(wire_dtype=torch.float16)), ("wire_dtype 8", dict(wire_dtype=8)),
            ("micro_batches is -1", dict(micro_batches=-1)), ("micro_batches is 1.5", dict(micro_batches=1.5)),
            ("micro_batches is 4294967297", dict(micro_batches=2 ** 32 + 1)), ("clip_norm is '1'", dict(clip_norm="1")),
            ("clip_norm", dict(clip_norm=-1.0)), ("loss_scale is None", dict(loss_scale=None)),
            ("loss_scale", dict(loss_scale=0.0)), ("loss_scale_policy is 'no'", dict(loss_scale_policy="no")),
            ("on_nonfinite is 'no'", dict(on_nonfinite="no")),
            ("reduce_groups is 'no'", dict(reduce_groups="no")), ("init_prefix", dict(init_prefix="model.")),
            ("rank is -1", dict(rank=-1)), ("workers_min is -1", dict(workers_min=-1)),
            ("timeout of -1", dict(timeout=-1)), ("timeout of '9'", dict(timeout="9")), ("parts must", dict(parts=[3])),
            ("parts must", dict(parts={"weight": (4, 4)})), ("counts is 0", dict(counts=0)),
            ("must_exist is 'yes'", dict(must_exist="yes")),
        ]:
            with self.subTest(options=options):
                self.refused((cairn.Invalid, cairn.Unsupported), words, lambda: self.session.attach(
                    line(), cairn.SGD(), **{**dict(name="refused", rank=0, workers_min=1, timeout=20), **options}))
        self.refused(cairn.Invalid, "takes a torch.nn.Module", lambda: self.attach(3))
        self.refused(cairn.NotFound, "refused", lambda: self.session.open_reader("refused"))

    def test_a_job_that_differs_is_listed(self):
        self.attach(line(), clip_norm=1.0).close()
        self.refused(cairn.Mismatch, "clip", lambda: self.attach(line(), clip_norm=2.0))
        self.refused(cairn.Mismatch, "weight", lambda: self.attach(nn.Linear(2, 1), clip_norm=1.0))

    def test_a_step_is_not_misused(self):
        model = line()
        m = self.attach(model, clip_norm=1.0)
        self.refused(cairn.Invalid, "clip_norm 2.0 here, 1.0 in the job", lambda: m.step(clip_norm=2.0))
        self.refused(cairn.Invalid, "client_state_max", lambda: m.step(client_state=b"1"))
        once = loss(model, 1.0)
        once.backward(retain_graph=True)
        self.refused(cairn.Invalid, r"m.micro_end\(\)", once.backward)
        m.resume()
        loss(model, 1.0).backward()
        self.refused(cairn.Invalid, "micro_batches=N.*number 2", lambda: loss(model, 1.0).backward())
        m.resume()
        loss(model, 3.0).backward()
        m.step()
        self.refused(cairn.Invalid, "matches no parameter", lambda: m.gathered("tail").__enter__())

    def test_who_is_awaited_is_named_in_time(self):
        m = self.attach(line(), workers_min=2)
        m.timeout = 0.3  # of what waits for the other worker, not of attaching
        self.refused(cairn.Timeout, "1 of 2 attached", m.begin)
        self.refused(TimeoutError, "", lambda: loss(m.model, 1.0))

    def test_a_sparse_gradient_is_refused(self):
        model = nn.Embedding(3, 2, sparse=True)
        self.attach(model)
        self.refused(cairn.Unsupported, "sparse=False", lambda: model(torch.tensor([1])).sum().backward())

    def test_a_closed_session_is_said(self):
        with cairn.connect(self.cluster.endpoint) as session:
            m = session.attach(line(), cairn.SGD(), name="closing", rank=0, workers_min=1)
        self.refused(cairn.BadHandle, "closed", lambda: loss(m.model, 1.0))


class TorchOptimizers(Case):
    def test_a_torch_scheduler_is_refused_and_a_schedule_takes_its_place(self):
        model = line()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.0)  # for ever, were it taken over
        with self.assertRaisesRegex(cairn.Unsupported, r"torch scheduler drives this AdamW.*stay at 0\..*give attach "
                                    r"cairn.AdamW\(lr=0.001, schedule=cairn.cosine\(total_steps=…, warmup_steps=…\)\)"
                                    r".*table\(\[\(step, factor\).*from_torch\(optimizer, schedule=…\)"):
            self.attach(model, optimizer)
        m = self.attach(model, cairn.from_torch(optimizer, schedule=cairn.constant(warmup_steps=4)))
        for step in range(6):
            loss(model, 1.0).backward()
            self.assertAlmostEqual(m.step().lr, optimizer.param_groups[0]["lr"], places=12)
            optimizer.step(), scheduler.step()

    def test_a_learning_rate_of_0_is_refused(self):
        model = line()
        with self.assertRaisesRegex(cairn.Invalid, "lr of every param group of the SGD is 0.*or freeze"):
            self.attach(model, torch.optim.SGD(model.parameters(), lr=0.0))
        groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.0}]  # one may be raised later
        self.attach(model, torch.optim.SGD(groups, lr=0.1))

    def test_a_group_that_does_not_learn_is_warned_of_once(self):
        model = nn.Sequential(line(), line())
        m = self.attach(model, cairn.SGD(lr=0.5, groups={"0.*": dict(lr=0.0)}))

        def steps():
            for _ in range(220):
                (0 * loss(model, 1.0)).backward()
                m.step()

        told, = self.warned(steps, "has not changed")
        self.assertIn("group '0.*' has not changed for 100 steps, since its lr is 0", str(told.message))
        self.assertIn("m.amend({'0.*': dict(lr=…", str(told.message))
        m.amend({"0.*": dict(lr=0.5)})  # as it says
        m.close()
        model = line()
        m = self.attach(model, cairn.SGD(lr=0.5, schedule=cairn.linear(5)), name="over")
        with self.assertWarnsRegex(UserWarning, r"its schedule is at 0 \(total_steps 5\)"):
            for _ in range(110):
                (0 * loss(model, 1.0)).backward()
                m.step()

    def test_a_torch_optimizer_is_taken_over_with_its_groups(self):
        for kind, options in ((torch.optim.AdamW, dict(lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)),
                              (torch.optim.Adam, dict(lr=0.02, weight_decay=0.1)),
                              (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01))):
            with self.subTest(kind=kind.__name__):
                model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
                groups = [{"params": [p for n, p in model.named_parameters() if "weight" in n]},
                          {"params": [p for n, p in model.named_parameters() if "bias" in n], "weight_decay": 0.0}]
                theirs = copy.deepcopy(model)
                ours = kind(groups, **options)
                copies = [{**g, "params": [dict(theirs.named_parameters())[n] for n, p in model.named_parameters()
                                           if any(p is q for q in g["params"])]} for g in groups]
                reference = kind(copies, **options)
                m = self.attach(model, ours, name=kind.__name__)
                for step in range(20):
                    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
                    for one in (model, theirs):
                        functional.mse_loss(one(x), x[:, :3]).backward()
                    m.step()
                    reference.step()
                    reference.zero_grad(set_to_none=True)
                lr = options["lr"]
                for mine, other in zip(model.parameters(), theirs.parameters()):
                    self.assertTrue(((mine - other).abs() <= 1e-6 * (other.abs() + lr * 20)).all())


if __name__ == "__main__":
    main()
