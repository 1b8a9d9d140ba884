"""Groups that do not learn: their learning rate is 0, by mistake or because a schedule is over. Said once."""

from __future__ import annotations

import warnings
from typing import Dict, Iterable, Sequence, Set

from .optim import lr_is_zero
from .records import Result
from .spec import Group

STEPS = 100  # applied, one after the other


class Stillness:
    """Told of every step; warns of a group when it has been at 0 for STEPS of them."""

    def __init__(self) -> None:
        self._steps: Dict[str, int] = {}  # at 0, by group
        self._told: Set[str] = set()

    def saw(self, result: Result, groups: Sequence[Group]) -> None:
        """`groups`: as this worker was given them, or has amended them; of one alone the result knows better."""
        if not result.applied:
            return
        still = {group.name for group in groups if self._is_still(group, result, len(groups) == 1)}
        self._steps = {name: self._steps.get(name, 0) + 1 for name in still}
        self._tell(group for group in groups if self._steps.get(group.name, 0) >= STEPS)

    @staticmethod
    def _is_still(group: Group, result: Result, is_alone: bool) -> bool:
        return result.lr == 0 if is_alone else lr_is_zero(group, result.step - 1)

    def _tell(self, groups: Iterable[Group]) -> None:
        for group in groups:
            if group.name not in self._told:
                self._told.add(group.name)
                total = group.schedule.total_steps
                why = ("its lr is 0" if group.lr == 0 else
                       "its schedule is at 0" + (f" (total_steps {total})" if total > 0 else ""))
                warnings.warn(f"group {group.name!r} has not changed for {STEPS} steps, since {why}: give another lr "
                              f"or schedule by m.amend({{{group.name!r}: dict(lr=…, schedule=…)}})", stacklevel=4)
