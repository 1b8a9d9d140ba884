"""Parameters without a gradient, which torch leaves alone and the servers take for a gradient of zeros, unless the job
has missing_gradients="leave". Said once."""

from __future__ import annotations

from typing import Dict, Iterable, Sequence, Set

from . import _log
from ._model import Slot
from .records import Result
from .spec import Group

NAMED = 5


def _is_moved_by_zeros(group: Group) -> bool:
    """SGD alone, without momentum and decay, does the same either way."""
    return group.optimizer != "sgd" or group.momentum != 0 or group.weight_decay != 0


class Untouched:
    """Told of every step of a model."""

    def __init__(self, job: str, slots: Iterable[Slot], group_of: Dict[str, str], groups: Sequence[Group],
                 is_said: bool):
        """`is_said`: the trainer has chosen what happens to them."""
        moved = {group.name for group in groups if _is_moved_by_zeros(group)}
        self._job = job
        self._watched = [] if is_said else [slot for slot in slots
                                            if slot.trained and group_of.get(slot.name, "default") in moved]

    def saw(self, result: Result, passes: int, given: Set[Slot]) -> None:
        """A step is over, of so many backward passes of this worker, which had gradients of these. Without any the
        other workers may have had all of them; where the norm is 0 they had none."""
        if not result.applied or (passes == 0 and result.grad_norm != 0):
            return
        names = [slot.name for slot in self._watched if slot not in given and slot.parameter.requires_grad]
        if names:
            self._watched = []
            _log.without_gradient(self._job, result.step, names, NAMED)
