"""Every scheduler that torch has, found by reflection: the driver gives torch's learning rates to the last bit, alone,
in ChainedScheduler and in SequentialLR, stepped, attached anew in the middle and set back; or it refuses by name.
Without a cluster: test_driven.py shows that the servers go by what the driver gives.
"""

import inspect
import unittest
import warnings

from runner import main
from torched import torch

from torch.optim import lr_scheduler, swa_utils

import cairn

STEPS, ANEW = 16, (5, 11)
BASE = getattr(lr_scheduler, "LRScheduler", lr_scheduler._LRScheduler)
GIVEN = {  # what a class is to be made with; of others, what its signature asks for
    "LambdaLR": dict(lr_lambda=lambda step: 1 / (1 + step)),
    "MultiplicativeLR": dict(lr_lambda=lambda step: 0.9 + step / 100),
    "StepLR": dict(step_size=3), "MultiStepLR": dict(milestones=[2, 5, 5, 9]), "LinearLR": dict(total_iters=7),
    "ExponentialLR": dict(gamma=0.9), "PolynomialLR": dict(total_iters=9, power=2.0),
    "CosineAnnealingLR": dict(T_max=6), "CosineAnnealingWarmRestarts": dict(T_0=3, T_mult=2),
    "CyclicLR": dict(base_lr=0.01, max_lr=0.1, step_size_up=3, mode="exp_range", gamma=0.9, cycle_momentum=False),
    "OneCycleLR": dict(max_lr=[0.1, 0.2], total_steps=STEPS + 2, cycle_momentum=False),
    "SWALR": dict(swa_lr=0.05, anneal_epochs=6),
}
ASKED = {"gamma": 0.9, "step_size": 3, "milestones": [2, 5], "total_iters": 7, "total_steps": 40, "max_lr": 0.1,
         "base_lr": 0.01, "T_max": 6, "T_0": 3}
HOLD_OTHERS = ("ChainedScheduler", "SequentialLR")


def known():
    """The classes that a trainer makes, by name."""
    found = {}
    for module in (lr_scheduler, swa_utils):
        for name, one in vars(module).items():
            if inspect.isclass(one) and not name.startswith("_") and one.__module__.startswith("torch.optim.") and (
                    issubclass(one, BASE) and one is not BASE or name == "ReduceLROnPlateau"):
                found[name] = one
    return found


def optimizer(lr=0.3):
    lr = lr.clone() if isinstance(lr, torch.Tensor) else lr  # which schedulers write to
    made = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    groups = [dict(params=[made[0]]), dict(params=[made[1]], lr=lr / 3)]
    return torch.optim.SGD(groups, lr=lr, momentum=0.9)


def made(name, of):
    one = known()[name]
    if name in GIVEN:
        return one(of, **GIVEN[name])
    needed = [key for key, asked in inspect.signature(one).parameters.items()
              if asked.default is asked.empty and key not in ("self", "optimizer")]
    lacking = [key for key in needed if key not in ASKED]
    if lacking:
        raise AssertionError(f"torch has a scheduler {name} with {lacking}: add it to GIVEN")
    return one(of, **{key: ASKED[key] for key in needed})


def chained(name, of):
    return lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(of, factor=0.5, total_iters=4), made(name, of)])


def first(name, of):
    return lr_scheduler.SequentialLR(of, [made(name, of), lr_scheduler.ExponentialLR(of, 0.9)], milestones=[6])


def second(name, of):
    return lr_scheduler.SequentialLR(of, [lr_scheduler.ExponentialLR(of, 0.9), made(name, of)], milestones=[4])


def sequence_of_sequences(name, of):
    return lr_scheduler.SequentialLR(of, [first(name, of), lr_scheduler.StepLR(of, 3)], milestones=[9])


def chain_of_chains(name, of):
    return lr_scheduler.ChainedScheduler([chained(name, of), lr_scheduler.LinearLR(of, total_iters=8)])


def sequence_of_chains(name, of):
    return lr_scheduler.SequentialLR(of, [chained(name, of), lr_scheduler.ExponentialLR(of, 0.9)], milestones=[6])


def ends_in_a_chain(name, of):  # torch itself raises at the milestone
    return lr_scheduler.SequentialLR(of, [lr_scheduler.ExponentialLR(of, 0.9), chained(name, of)], milestones=[4])


def rates(of):
    return [float(options["lr"]) for options in of.param_groups]


def torchs_own(make, name, **options):
    """Its rates step by step, and the step at which torch has none; None: torch does not make such a one."""
    of = optimizer(**options)
    try:
        scheduler = make(name, of)
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
    seen = [rates(of)]
    for _ in range(STEPS):
        of.step()
        try:
            scheduler.step()
        except Exception:
            break
        seen.append(rates(of))
    return seen


def driver(make, name, **options):
    of = optimizer(**options)
    return cairn.from_torch(of, schedule=make(name, of)).driver, of


class Every(unittest.TestCase):
    def setUp(self):
        catch = warnings.catch_warnings()
        catch.__enter__()
        self.addCleanup(catch.__exit__, None, None, None)
        warnings.simplefilter("ignore", UserWarning)

    def follow(self, make, name, **options):
        wanted = torchs_own(make, name, **options)
        if wanted is None:
            return "torch makes none"
        is_whole = len(wanted) == STEPS + 1

        def at(one, step):
            if step >= len(wanted):
                with self.assertRaisesRegex(cairn.Unsupported, r"torch's \w+ has no rate for step"):
                    one.at(step)
            else:
                self.assertEqual(list(one.at(step).values()), wanted[step], f"at {step}")

        stepped, of = driver(make, name, **options)
        for step in range(len(wanted)):
            at(stepped, step), at(stepped, step)
            self.assertEqual(rates(of), wanted[step])
        if not is_whole:
            at(stepped, len(wanted))
        for step in ANEW:
            anew, _ = driver(make, name, **options)  # of a process that attaches in the middle
            at(anew, step), at(anew, step + 1)
            if step < len(wanted):
                at(stepped, step), at(stepped, step + 1)  # restored
        return "whole" if is_whole else f"{len(wanted)} steps, as torch"

    def test_gives_torchs_rates_or_is_refused_by_name(self):
        seen = {}
        self.assertGreaterEqual(len(known()), 15)
        for name in known():
            for make in (made, chained, first, second, sequence_of_sequences, chain_of_chains, sequence_of_chains,
                         ends_in_a_chain):
                if name in HOLD_OTHERS:
                    continue  # made by the others
                with self.subTest(name, make=make.__name__):
                    if name == "ReduceLROnPlateau":
                        if make is not made and torchs_own(make, name) is None:
                            continue  # torch 1.13 makes it, and fails
                        with self.assertRaisesRegex(cairn.Unsupported, "ReduceLROnPlateau goes by a metric"):
                            driver(make, name)
                        continue
                    seen[name, make.__name__] = self.follow(make, name)
        whole = [one for one, how in seen.items() if how == "whole"]
        print(f"note: {len(seen)} schedulers of {len(known())} classes: {len(whole)} as torch for {STEPS} steps, "
              + "; ".join(f"{'.'.join(one)}: {how}" for one, how in seen.items() if how.endswith("as torch")))
        for name in known():
            if name not in HOLD_OTHERS + ("ReduceLROnPlateau",):
                self.assertIn((name, "made"), whole)

    def test_a_learning_rate_that_is_a_tensor(self):
        for name in ("MultiStepLR", "CosineAnnealingLR", "LinearLR"):
            for make in (made, first):
                with self.subTest(name, make=make.__name__):
                    self.follow(make, name, lr=torch.tensor(0.3))

    def test_objects_that_a_scheduler_calls_are_its_state(self):
        class Counting:
            def __init__(self):
                self.calls = [0]

            def __call__(self, step):
                self.calls[0] += 1
                return 1 / self.calls[0]

        GIVEN["Counted"] = {}
        self.addCleanup(GIVEN.pop, "Counted")
        self.follow(lambda _, of: lr_scheduler.LambdaLR(of, Counting()), "Counted")

    def test_one_that_keeps_state_elsewhere_is_refused_by_name(self):
        calls = []

        def outside(step):
            calls.append(step)
            return 1 / len(calls)

        class Drawn(BASE):
            def get_lr(self):
                return [float(torch.rand(())) for _ in self.base_lrs]

        for make, kind in ((lambda _, of: lr_scheduler.LambdaLR(of, outside), "LambdaLR"),
                           (lambda _, of: Drawn(of), "Drawn")):
            with self.assertRaisesRegex(cairn.Unsupported, f"the {kind} gives other rates when it is set back"):
                driver(make, kind)

    def test_one_that_changes_more_than_lr_is_refused_and_the_advice_holds(self):
        for name, of in (("OneCycleLR", torch.optim.AdamW), ("CyclicLR", torch.optim.SGD)):
            options = dict(lr=0.1, **({"momentum": 0.9} if of is torch.optim.SGD else {}))
            one = of([torch.nn.Parameter(torch.zeros(1))], **options)
            given = {**GIVEN[name], "cycle_momentum": True, "max_lr": 0.1}
            what = "betas" if of is torch.optim.AdamW else "momentum"
            with self.assertRaisesRegex(cairn.Unsupported, f"the {name} changes {what} too.*give OneCycleLR and "
                                        "CyclicLR cycle_momentum=False"):
                cairn.from_torch(one, schedule=known()[name](one, **given))

    def test_what_is_no_scheduler_is_refused(self):
        of = optimizer()
        for schedule in (0.1, lambda step: 1.0, of, "cosine"):
            with self.assertRaisesRegex(cairn.Invalid, f"schedule is a {type(schedule).__name__}: give cairn.cosine"):
                cairn.from_torch(of, schedule=schedule)
        with self.assertRaisesRegex(cairn.Invalid, "StepLR is a scheduler: give cairn.from_torch"):
            cairn.from_torch(lr_scheduler.StepLR(of, 1))
        with self.assertRaisesRegex(cairn.Invalid, "AdamW is a class: give an instance"):
            cairn.from_torch(torch.optim.AdamW)


if __name__ == "__main__":
    main()
