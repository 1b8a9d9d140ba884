"""Groups that do not learn: their learning rate is 0, by mistake or because a schedule is over. Said once."""

from __future__ import annotations

import warnings
from typing import Dict, Iterable, Mapping, Sequence, Set

from . import _c
from .optim import lr_is_zero
from .records import Result
from .spec import Group

STEPS = 100  # applied, one after the other


class Stillness:
    """Told of every step; warns of a group when it has been at 0 for STEPS of them."""

    def __init__(self) -> None:
        self._steps: Dict[str, int] = {}  # at 0, by group
        self._told: Set[str] = set()

    def saw(self, result: Result, groups: Sequence[Group], rates: Mapping[str, float]) -> None:
        """`groups`: as this worker was given them, or has amended them, `rates`: what it gave for driven ones; of one
        alone the result knows better."""
        if not result.applied:
            return
        still = {group.name for group in groups if self._is_still(group, result, rates, len(groups) == 1)}
        self._steps = {name: self._steps.get(name, 0) + 1 for name in still}
        self._tell(group for group in groups if self._steps.get(group.name, 0) >= STEPS)

    @staticmethod
    def _is_still(group: Group, result: Result, rates: Mapping[str, float], is_alone: bool) -> bool:
        if is_alone:
            return result.lr == 0
        is_driven = group.schedule.kind == _c.SCHEDULE_DRIVEN
        return rates.get(group.name) == 0 if is_driven else lr_is_zero(group, result.step - 1)

    def _tell(self, groups: Iterable[Group]) -> None:
        for group in groups:
            if group.name not in self._told:
                self._told.add(group.name)
                if group.schedule.kind == _c.SCHEDULE_DRIVEN:
                    warnings.warn(f"group {group.name!r} has not changed for {STEPS} steps, since the lr that was "
                                  "given for it is 0: look at its scheduler", stacklevel=4)
                    continue
                total = group.schedule.total_steps
                why = ("its lr is 0" if group.lr == 0 else
                       "its schedule is at 0" + (f" (total_steps {total})" if total > 0 else ""))
                warnings.warn(f"group {group.name!r} has not changed for {STEPS} steps, since {why}: give another lr "
                              f"or schedule by m.amend({{{group.name!r}: dict(lr=…, schedule=…)}})", stacklevel=4)
