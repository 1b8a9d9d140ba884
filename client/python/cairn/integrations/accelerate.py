"""Accelerate: a loop of one's own, with Accelerator for data, devices and accumulation."""

from __future__ import annotations

from typing import Any, Tuple

import torch

from ..torch import AttachedModel
from ._optimizer import ServerOptimizer, take_accelerator


def attach(accelerator: Any, session: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer,
           **options: Any) -> Tuple[AttachedModel, ServerOptimizer]:
    """The attached model and the optimizer of the loop, to be prepared with the data loader and the scheduler; the
    model stays as it is. Options are those of Session.attach. accumulate(model), backward(loss), clip_grad_norm_
    and step() stay in the loop. clip_grad_norm_(…, max_norm) is to have the job's clip_norm=, and makes the step,
    whose norm it gives: nothing may be between that and optimizer.step()."""
    taken = ServerOptimizer(optimizer)
    undo = take_accelerator(accelerator, taken)
    try:
        m = taken.attach(session, model.to(accelerator.device), **options)
    except BaseException:
        undo()
        raise
    return m, taken
