"""A torch scheduler whose learning rates go with the commits. It stands at the job's step: m.step() moves it on when
the round was applied, and so does whatever brings the job to another step (a restore, an attach in the middle).
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, Dict, List, Sequence, Tuple

from .errors import Invalid, Unsupported

_KEPT = ("betas", "momentum", "weight_decay")  # of a param group: what the servers would not hear of


def is_scheduler(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("step", "state_dict", "load_state_dict"))


def judge(scheduler: Any, optimizer: Any) -> None:
    """Whether it can be one that drives this optimizer."""
    kind = type(scheduler).__name__
    if kind == "ReduceLROnPlateau":
        raise Unsupported("ReduceLROnPlateau goes by a metric, and m.step() has none: attach with cairn.AdamW(…, "
                          "schedule=cairn.driven()) (or Adam, SGD), and give its lr by m.job.group_lr(group, lr) "
                          "before m.step()")
    if scheduler.optimizer is not optimizer:
        raise Invalid(f"the {kind} is of another optimizer than the one that it is given with")
    first = next((one for one in getattr(scheduler, "_schedulers", []) if kind == "ChainedScheduler"), scheduler)
    if first.last_epoch != 0:
        raise Invalid(f"the {kind} is at step {first.last_epoch} already: give it as it was made. It is set to the "
                      "job's step, and m.step() moves it on")


def _copied(state: Any) -> Any:
    if isinstance(state, dict):
        return type(state)((key, _copied(value)) for key, value in state.items())
    if isinstance(state, (list, tuple)):
        return type(state)([_copied(value) for value in state])
    return state if callable(state) else copy.deepcopy(state)


class Driver:
    """Made by FromTorch, of a scheduler that judge() let pass."""

    def __init__(self, scheduler: Any, groups: Sequence[Tuple[str, int]]):
        self._scheduler, self._groups = scheduler, groups  # by name, and the place in the optimizer
        self._options: List[Dict[str, Any]] = scheduler.optimizer.param_groups
        self._kept = self._others()
        self._step, self._warned = 0, False
        self._start = self._mark = self._now()

    def at(self, step: int) -> Dict[str, float]:
        """The learning rates of the round of that step, by group; the scheduler stands there then. What others did to
        it meanwhile is undone."""
        if self._now() != self._mark and not self._warned:
            self._warned = True
            warnings.warn("scheduler.step() beside m.step(), or an lr that was set: m.step() moves the "
                          f"{self._kind} on with each round that is applied, and what else is done to it is undone; "
                          "leave it out",
                          stacklevel=4)
        if step < self._step:
            self._step, self._mark = 0, self._start
        self._restore(self._mark)
        with warnings.catch_warnings():  # torch's, of an order that the servers keep
            warnings.simplefilter("ignore", UserWarning)
            while self._step < step:
                self._scheduler.step()
                self._step += 1
        self._mark = self._now()
        if self._others() != self._kept:
            raise Unsupported(f"the {self._kind} changes {', '.join(_KEPT)} too, and the servers hear of lr alone: "
                              "give it cycle_momentum=False")
        return {name: float(self._options[place]["lr"]) for name, place in self._groups}

    @property
    def _kind(self) -> str:
        return type(self._scheduler).__name__

    def _others(self) -> Any:
        return [[options.get(name) for name in _KEPT] for options in self._options]

    def _now(self) -> Tuple[Any, List[float]]:
        return _copied(self._scheduler.state_dict()), [float(options["lr"]) for options in self._options]

    def _restore(self, mark: Tuple[Any, List[float]]) -> None:
        state, lrs = mark
        self._scheduler.load_state_dict(_copied(state))
        for options, lr in zip(self._options, lrs):
            options["lr"] = lr
