"""Groups by pattern, without a cluster and without torch."""

import copy
import unittest

import cairn
from cairn import optim
from runner import main

NAMES = ["a.weight", "a.bias", "b.weight", "b.bias"]


class Groups(unittest.TestCase):
    def test_patterns_change_what_they_name(self):
        groups, group_of = cairn.AdamW(lr=0.1, groups={"*.bias": dict(weight_decay=0.0)}).group(NAMES)
        self.assertEqual([(g.name, g.weight_decay, g.lr) for g in groups],
                         [("default", 0.01, 0.1), ("*.bias", 0.0, 0.1)])
        self.assertEqual([group_of[name] for name in NAMES], ["default", "*.bias", "default", "*.bias"])

    def test_the_first_pattern_that_matches_counts(self):
        _, group_of = cairn.SGD(groups={"a.*": dict(lr=1.0), "*.bias": dict(lr=2.0)}).group(NAMES)
        self.assertEqual(group_of["a.bias"], "a.*")

    def test_betas_become_beta1_and_beta2(self):
        groups, _ = cairn.Adam(groups={"*": dict(betas=(0.5, 0.6))}).group(NAMES)
        self.assertEqual([(g.name, g.optimizer, g.beta1, g.beta2) for g in groups], [("*", "adam", 0.5, 0.6)])

    def test_a_pattern_without_a_tensor_is_an_error(self):
        with self.assertRaisesRegex(cairn.Invalid, r"'\*.scale' matches no trained tensor; there are a.weight"):
            cairn.AdamW(groups={"*.scale": {}}).group(NAMES)
        with self.assertRaisesRegex(cairn.Invalid, "put it before them"):
            cairn.AdamW(groups={"*": dict(lr=1.0), "*.bias": {}}).group(NAMES)

    def test_an_unknown_hyper_parameter_is_an_error(self):
        with self.assertRaisesRegex(cairn.Invalid, "AdamW has no momentum; it has lr, betas"):
            cairn.AdamW(groups={"*": dict(momentum=0.9)}).group(NAMES)

    def test_another_optimizer_is_refused_with_a_sentence(self):
        class Muon:
            state, param_groups = {}, []
        with self.assertRaisesRegex(cairn.Unsupported, "Muon is not run by the servers, and nothing is put in its"):
            cairn.from_torch(Muon())

    def test_what_a_torch_optimizer_has_is_answered_with_what_there_is_instead(self):
        for name, instead in {"step": "m.step", "zero_grad": "leave it out", "state_dict": "m.snapshot",
                              "load_state_dict": "attach goes on", "param_groups": "m.amend"}.items():
            for optimizer in cairn.AdamW(), cairn.SGD():
                with self.assertRaisesRegex(AttributeError, rf"^cairn\.\w+ has no {name}, .*{instead}"):
                    getattr(optimizer, name)
        with self.assertRaisesRegex(AttributeError, "^cairn.Adam has no attribute 'lrs'$"):
            cairn.Adam().lrs
        self.assertEqual(copy.deepcopy(cairn.AdamW(lr=0.5)), cairn.AdamW(lr=0.5))

    def test_where_a_learning_rate_is_zero_is_known(self):
        Schedule = cairn.Schedule
        for lr, schedule, step, is_zero in (
                (0.0, Schedule(), 5, True), (0.1, Schedule(), 5, False), (0.1, cairn.constant(10), 0, False),
                (0.1, cairn.cosine(100), 99, False), (0.1, cairn.cosine(100), 100, True),
                (0.1, cairn.linear(100, lr_min=0.01), 200, False), (0.0, cairn.linear(100, lr_min=0.01), 5, False),
                (0.0, cairn.wsd(100, 10), 5, True), (0.1, cairn.table([(10, 1.0), (20, 0.0)]), 15, False),
                (0.1, cairn.table([(10, 1.0), (20, 0.0)]), 30, True), (0.0, cairn.table([(10, 1.0)]), 0, True)):
            with self.subTest(lr=lr, schedule=schedule, step=step):
                self.assertEqual(optim.lr_is_zero(cairn.Group(lr=lr, schedule=schedule), step), is_zero)


if __name__ == "__main__":
    main()
