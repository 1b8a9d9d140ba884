"""Lightning: a strategy, whose processes are those of DDP, and whose gradients go to the servers."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Dict, Iterator, Optional

import torch
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn

from .. import connect
from ..errors import Invalid, Unsupported
from ..torch import AttachedModel
from ._optimizer import ServerOptimizer


@contextlib.contextmanager
def _place(rank: int, world: int) -> Iterator[None]:
    """For attach: Lightning, where it starts processes by itself, tells them WORLD_SIZE and not RANK."""
    ours = {"CAIRN_RANK": str(rank), "CAIRN_WORLD": str(world)}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


class CairnStrategy(DDPStrategy):
    """lightning.Trainer(strategy=CairnStrategy(name="gpt", stage=2)): options are those of Session.attach but
    clip_norm, which is the Trainer's gradient_clip_val. configure_optimizers stays as it is, with one optimizer of
    torch (AdamW, Adam, SGD). `session`: None is cairn.connect(). `m`: the attached model, from fit on. The cluster of
    processes, the sampler and metrics are those of DDPStrategy."""

    def __init__(self, session: Any = None, process_group_backend: Optional[str] = None, **options: Any):
        super().__init__(process_group_backend=process_group_backend)
        if "clip_norm" in options:
            raise Invalid("clip_norm: it is gradient_clip_val of the Trainer")
        self._session, self._options = session, options
        self._taken: Optional[ServerOptimizer] = None

    @property
    def m(self) -> AttachedModel:
        if self._taken is None:
            raise Invalid("the model is attached by trainer.fit(), which has not begun")
        return self._taken._attached()

    def configure_ddp(self) -> None:
        """There is none around the model."""

    def setup_optimizers(self, trainer: Any) -> None:
        if not self.lightning_module.automatic_optimization:
            raise Unsupported("manual optimization: the strategy cannot see which passes are of a step. Use automatic "
                              "optimization with one optimizer, or a loop of your own with a job for each model")
        super().setup_optimizers(trainer)
        if trainer.gradient_clip_val and str(trainer.gradient_clip_algorithm or "norm") not in (
                "norm", "GradClipAlgorithmType.NORM"):
            raise Unsupported("gradient_clip_algorithm=\"value\": the servers clip by the norm; leave it out")
        if "16-mixed" == self.precision_plugin.precision:
            raise Unsupported("precision=\"16-mixed\" multiplies losses by a GradScaler, which finds no gradients: "
                              "give \"bf16-mixed\" or \"32-true\"")
        self.optimizers = [ServerOptimizer(self.optimizers[0])]

    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self._taken = self.optimizers[0]
        with _place(self.global_rank, self.world_size):
            self._session = self._session or connect()
            self._taken.attach(self._session, self.lightning_module, clip_norm=trainer.gradient_clip_val or 0.0,
                               **self._options)
        self.precision_plugin.clip_gradients = self._judge_clipping

    def on_train_start(self) -> None:
        self._taken.judge_step(self.lightning_module.trainer.global_step,
                               "To go on: trainer.fit(…, ckpt_path=…) of that step, or `cairn snapshot restore` of "
                               "the job to this one")
        super().on_train_start()

    def _judge_clipping(self, optimizer: Any, clip_val: Any = 0.0, gradient_clip_algorithm: Any = "norm") -> None:
        """What configure_gradient_clipping of the module asks for."""
        if clip_val and (clip_val != self.m.clip_norm or "value" in str(gradient_clip_algorithm).lower()):
            raise Unsupported(f"clipping to {clip_val} by {gradient_clip_algorithm}: the servers clip, to the "
                              "gradient_clip_val of the Trainer, by the norm")

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        with self.m.no_sync():
            yield

    def training_step(self, *given: Any, **named: Any) -> Any:
        """As a forward pass of the module, which begins the round."""
        with self.precision_plugin.train_step_context():
            return self._forward_redirection(self.lightning_module, self.lightning_module, "training_step",
                                             *given, **named)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **named: Any) -> Any:
        made = super().optimizer_step(optimizer, closure, model, **named)
        if not self._taken.result.applied:
            raise Invalid("the servers skipped a round whose gradients were not finite, and Lightning counts it as a "
                          "step: its learning rates would be those of other steps. Go on from the newest checkpoint, "
                          "with a smaller learning rate or other data")
        return made

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Without the moments, which are the job's: on_train_start judges its step."""
        self._taken.load_groups(checkpoint["optimizer_states"][0])

    def lightning_module_state_dict(self) -> Dict[str, Any]:
        """Of a model that is attached, whole."""
        if self._taken is None or self._taken.m is None or self._taken.m._job.closed:
            return super().lightning_module_state_dict()
        with self.m.gathered("*"):
            return {name: value.detach().clone() if isinstance(value, torch.Tensor) else value
                    for name, value in super(CairnStrategy, self).lightning_module_state_dict().items()}

    def teardown(self) -> None:
        """Closes the model. In stage 3, where it would have no parameters then, it stays attached after a fit that
        ended well, for checkpoints and evaluations: self.m.close() is the script's."""
        m = None if self._taken is None else self._taken.m
        if m is None or m._job.closed or m.stage < 3:
            if m is not None:
                m.close()
            super().teardown()
        elif self.lightning_module.trainer.interrupted:
            m.close()
            with contextlib.suppress(Invalid):  # it moves the model, which is not here, to the host
                super().teardown()
        else:
            with m.gathered("*"):
                super().teardown()
