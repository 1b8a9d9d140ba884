"""What a loop takes for its optimizer, while the servers have the real one."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, Dict, Iterator, Optional

import torch

from ..errors import EpochChanged, Invalid, Unsupported
from ..optim import driven, from_torch
from ..records import Result
from ..torch import AttachedModel

_MARK = "cairn"  # of a state dict: whose moments are at the servers


class ServerOptimizer(torch.optim.Optimizer):
    """A torch optimizer (AdamW, Adam, SGD) whose step() is the servers'. Its param groups are those of the optimizer,
    so that a scheduler may be made of either. `m` is the attached model, `result` what the last step() gave."""

    def __init__(self, optimizer: torch.optim.Optimizer):  # not torch's, which makes param groups and counts steps
        self.optimizer = optimizer
        self.m: Optional[AttachedModel] = None
        self.result: Optional[Result] = None
        self._is_committed = False  # by norm()

    def attach(self, session: Any, model: torch.nn.Module, **options: Any) -> AttachedModel:
        """The model, whose learning rates are from now on those of the param groups at each step()."""
        if self.m is not None and not self.m._job.closed:
            raise Invalid(f"job {self.m.name} has this optimizer already: close it first, m.close()")
        self.m = session.attach(model, from_torch(self.optimizer, schedule=driven()), **options)
        return self.m

    def judge_step(self, step: int, how: str) -> None:
        """Whether the loop begins where the job stands. `how`: what to do for a loop that is to go on."""
        m = self._attached()
        if m.version.step != step:
            raise Invalid(f"job {m.name} is at step {m.version.step}, and this loop begins at step {step}: its data "
                          f"and learning rates would be those of other steps. {how}; of a checkpoint of another "
                          "program's make a job before, by cairn.import_checkpoint. A job that is to begin anew takes "
                          "another name: name=…")

    def norm(self, max_norm: float) -> torch.Tensor:
        """The step's gradient norm before clipping, for a loop that asks before step(): the step is made here."""
        m = self._attached()
        if max_norm != float("inf") and max_norm != m.clip_norm:
            raise Invalid(f"clipping to {max_norm:g} here, {m.clip_norm or 'no clipping'} in the job: the servers "
                          f"clip, by what attach was given: clip_norm={max_norm:g}")
        if not self._is_committed:
            self._commit()
        assert self.result is not None
        return torch.tensor(self.result.grad_norm)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._is_committed:
            self._commit()
        self._is_committed = False
        return loss

    def _commit(self) -> None:
        try:
            self.result = self._attached().step()
        except EpochChanged as changed:
            raise EpochChanged("a worker came or went, and this step, which is to be done again, is of a loop that "
                               "cannot: end the script and start it again, from the loop's newest checkpoint, with "
                               f"the job restored to that step. ({changed})") from changed
        self._is_committed = True
        self.optimizer._opt_called = True  # for a scheduler that was made of it  # type: ignore[attr-defined]

    step.hooked = True  # type: ignore[attr-defined]  # torch's own hooks are of steps that torch makes

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Before the first backward pass of a step, as a loop does it; later there is nothing to take back."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def _attached(self) -> AttachedModel:
        if self.m is None:
            raise Invalid("no model is attached to this optimizer yet: attach(session, model), or the function of "
                          "cairn.integrations that does it for this loop")
        return self.m

    # ---- what belongs to the torch optimizer ----

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.optimizer.param_groups = groups

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    @property
    def defaults(self) -> Any:
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: Any) -> None:
        self.optimizer.defaults = defaults

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def __repr__(self) -> str:
        job = "not attached" if self.m is None else f"job {self.m.name}"
        return f"ServerOptimizer({job}, {self.optimizer!r})"

    def __getstate__(self) -> Any:
        raise Invalid("this optimizer is the servers', and is neither copied nor pickled: m.snapshot() saves it")

    def state_dict(self) -> Dict[str, Any]:
        """Param groups, the job and its step; moments are the servers', in snapshots."""
        with warnings.catch_warnings():  # that there are no moments, which the mark says
            warnings.simplefilter("ignore", UserWarning)
            state = self.optimizer.state_dict()
        mark = {} if self.m is None else {"job": self.m.name, "step": self.m.version.step}
        return {"state": {}, "param_groups": state["param_groups"], _MARK: mark}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """The options of param groups. Moments are those of the job, which judge_step() holds against the loop's."""
        if state_dict["state"] and self.m is not None:
            raise Unsupported("moments of torch's optimizer, for one whose moments are at the servers: a job that goes "
                              "on with them begins by cairn.import_checkpoint(session, path, model, optimizer, name=…)")
        self.load_groups(state_dict)

    def load_groups(self, state_dict: Dict[str, Any]) -> None:
        self.optimizer.load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})


# ---- an Accelerator, of one's own or a Trainer's ----

def take_accelerator(accelerator: Any, optimizer: ServerOptimizer) -> Callable[[], None]:
    """What it does to models and gradients is the servers': gives what undoes that."""
    kind = getattr(accelerator.distributed_type, "value", str(accelerator.distributed_type))
    if kind not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        raise Unsupported(f"an Accelerator of type {kind} has an engine of its own, which cuts or exchanges what the "
                          "servers hold: start the script with torchrun, or with the type MULTI_CPU or MULTI_GPU")
    if accelerator.scaler is not None:
        raise Unsupported("mixed precision fp16 multiplies losses by a GradScaler, which finds no gradients: give "
                          "mixed_precision=\"bf16\" or \"no\" (Trainer: bf16=True), which need none")
    prepare = accelerator.prepare_model

    def prepare_model(model: Any, device_placement: Optional[bool] = None, evaluation_mode: bool = False) -> Any:
        if optimizer.m is not None and model is optimizer.m.model:
            device_placement = False  # it is there
        return prepare(model, device_placement=device_placement, evaluation_mode=True)  # without DDP around it

    @contextlib.contextmanager
    def no_sync(model: Any = None) -> Iterator[None]:
        with optimizer._attached().no_sync():
            yield

    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        if norm_type != 2:
            raise Unsupported(f"clipping by a norm of order {norm_type}: the servers clip by the norm of order 2")
        return optimizer.norm(float(max_norm))

    def clip_grad_value_(parameters: Any, clip_value: float) -> None:
        raise Unsupported("clip_grad_value_ finds no gradients, which are at the servers: they clip by the norm, "
                          "attach(…, clip_norm=…). A hook clips values: for p in model.parameters(): "
                          "p.register_hook(lambda g: g.clamp(-value, value))")

    taken = {"prepare_model": prepare_model, "no_sync": no_sync, "clip_grad_norm_": clip_grad_norm_,
             "clip_grad_value_": clip_grad_value_}
    return replace(accelerator, **taken)


def replace(owner: Any, **by: Any) -> Callable[[], None]:
    """Methods of one object, by what is given; gives what undoes that."""
    had = {name: vars(owner)[name] for name in by if name in vars(owner)}
    vars(owner).update(by)

    def undo() -> None:
        for name, one in by.items():
            if vars(owner).get(name) is one:
                del vars(owner)[name]
                vars(owner).update({name: had[name]} if name in had else {})
    return undo
