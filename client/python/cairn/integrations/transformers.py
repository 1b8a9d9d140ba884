"""transformers.Trainer: the Trainer makes its optimizer and its scheduler, and the servers step."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional

from transformers import TrainerCallback

from ..errors import Invalid, Unsupported
from ..torch import AttachedModel
from ._optimizer import ServerOptimizer, replace, take_accelerator

_REFUSED = {  # options of TrainingArguments
    "load_best_model_at_end": "the model is attached until training ends, and nothing is loaded into it: leave it out, "
                              "and load trainer.state.best_model_checkpoint after trainer.train()",
    "auto_find_batch_size": "a step that has run out of memory would be tried again with gradients at the servers: "
                            "give per_device_train_batch_size",
}


class Callback(TrainerCallback):
    """Attaches the Trainer's model when training begins, and closes it at the end, see close(). `m`: the attached
    model."""

    def __init__(self, trainer: Any, session: Any, snapshots: bool, options: Any):
        self._trainer, self._session, self._snapshots, self._options = trainer, session, snapshots, options
        self._optimizer: Optional[ServerOptimizer] = None
        self._undo: List[Callable[[], None]] = []

    @property
    def m(self) -> AttachedModel:
        if self._optimizer is None:
            raise Invalid("the model is attached by trainer.train(), which has not begun")
        return self._optimizer._attached()

    def take_optimizer(self, create: Callable[..., Any], model: Any = None) -> Any:
        """In place of Trainer.create_optimizer."""
        trainer, args = self._trainer, self._trainer.args
        create(*[] if model is None else [model])
        if not isinstance(trainer.optimizer, ServerOptimizer):
            taken = trainer.optimizer
            while hasattr(taken, "optimizer"):  # of an accelerator's, of a run before
                taken = taken.optimizer
            trainer.optimizer = ServerOptimizer(taken)
        self._optimizer = trainer.optimizer
        if args.n_gpu > 1:
            raise Unsupported(f"{args.n_gpu} cards in one process: start one process a card, by torchrun")
        self._undo.append(take_accelerator(trainer.accelerator, self._optimizer))
        return trainer.optimizer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self._optimizer is not None
        m = self._optimizer.attach(self._session, self._trainer.model, clip_norm=args.max_grad_norm, **self._options)
        try:
            self._optimizer.judge_step(state.global_step, "To go on: trainer.train(resume_from_checkpoint=…) of that "
                                       "step, or `cairn snapshot restore` of the job to this one")
        except BaseException:
            m.close()
            raise

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self._optimizer is not None and self._optimizer.result is not None
        if not self._optimizer.result.applied:
            raise Invalid(f"the servers skipped a round before step {state.global_step}, whose gradients were not "
                          "finite, and the Trainer counts it as a step: its learning rates would be those of other "
                          "steps. Go on from the newest checkpoint, with a smaller learning rate or other data")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._snapshots:
            self.m.snapshot()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.m.stage < 3:
            self.close()

    def close(self) -> None:
        """Leaves the job. trainer.train() does it at its end, but in stage 3, where the model would have no parameters
        then to be saved or evaluated; call it where training ended by an exception."""
        if self._optimizer is not None and self._optimizer.m is not None:
            self._optimizer.m.close()
        for undo in self._undo:
            undo()
        self._undo = []

    def paused(self, what: str, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """The other workers wait meanwhile; in stage 3 the model is whole."""
        m = self._optimizer.m if self._optimizer is not None else None
        if m is None or m._job.closed:
            return method(*given, **named)
        with m.pause(what, at_most=3600):
            if what == "evaluating":  # its forward passes bring what they need
                return method(*given, **named)
            with m.gathered("*"):
                return method(*given, **named)


def attach(trainer: Any, session: Any, snapshots: bool = False, **options: Any) -> Callback:
    """Of a Trainer that has not begun: trainer.train() trains through the servers. Its options are the Trainer's, the
    optimizer (AdamW and SGD of torch), max_grad_norm, gradient_accumulation_steps, any scheduler; `options` are those
    of Session.attach but clip_norm. `snapshots`: the job has a snapshot made with each checkpoint, which
    resume_from_checkpoint needs after `cairn snapshot restore`."""
    args = trainer.args
    for name, why in _REFUSED.items():
        if getattr(args, name, False):
            raise Unsupported(f"{name} of TrainingArguments: {why}")
    if "clip_norm" in options:
        raise Invalid("clip_norm: it is max_grad_norm of TrainingArguments")
    callback = Callback(trainer, session, snapshots, options)
    replace(trainer, create_optimizer=functools.partial(callback.take_optimizer, trainer.create_optimizer),
            evaluate=functools.partial(callback.paused, "evaluating", trainer.evaluate),
            save_model=functools.partial(callback.paused, "saving", trainer.save_model))
    trainer.add_callback(callback)
    return callback
