"""What a parameter of stage 3 is while it is not here: it has its shape and dtype, and whoever uses its values is told
so, instead of being given an empty tensor. The way of torch's own UninitializedParameter: the object's class changes.

What it shows besides is one NaN, expanded: no memory, and no plausible number for code that asks no torch function.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping, Optional, Sequence, Type

import torch

from .errors import Invalid

_ALLOWED = frozenset("""size dim ndimension numel nelement element_size stride storage_offset get_device is_contiguous
    is_complex is_floating_point is_signed is_same_size __hash__ __len__ requires_grad_ register_hook
    register_post_accumulate_grad_hook has_names""".split())  # of what it is, not of its values
_VALUES = frozenset("data T H mT mH real imag".split())  # properties that are not


def _is_harmless(function: Any) -> bool:
    if function.__class__.__name__ == "method-wrapper":  # __get__ or __set__ of a property
        return getattr(function.__self__, "__name__", None) not in _VALUES
    return getattr(function, "__name__", None) in _ALLOWED


class _Absent:
    _cairn_name: str
    _cairn_class: Type[torch.Tensor]

    @classmethod
    def __torch_function__(cls, function: Any, types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Optional[Mapping[str, Any]] = None) -> Any:
        if _is_harmless(function):
            return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[misc]
        raise Invalid(f"{_first_name(args, kwargs)} is not here: in stage 3 a parameter is, inside its module's "
                      "forward and backward. For a state dict or a checkpoint take m.state_dict(), which is read from "
                      "the servers; elsewhere use it within `with m.gathered(name or module):`; to change its values: "
                      "m.write({name: values}). If this is torch.compile: compile first, then attach")

    def __repr__(self) -> str:
        return f"Parameter {self._cairn_name} of {list(self.shape)}, which is not here (stage 3)"  # type: ignore


def _first_name(args: Any, kwargs: Optional[Mapping[str, Any]]) -> str:
    """Of an absent parameter among arguments, which may be lists."""
    left = list(args) + list((kwargs or {}).values())
    for one in left:
        if isinstance(one, _Absent):
            return one._cairn_name
        if isinstance(one, (list, tuple)):
            left.extend(one)
    return "a parameter"


@functools.lru_cache(maxsize=None)
def _absent_class(present: type) -> type:
    return type("Absent" + present.__name__, (_Absent, present), {})


def leave(parameter: torch.Tensor, name: str) -> None:
    """The caller frees what its data was."""
    shape, present = parameter.shape, type(parameter)
    one = torch.full((1,), float("nan"), dtype=parameter.dtype, device=parameter.device)
    parameter.data = one.as_strided(shape, (0,) * len(shape))
    parameter._cairn_name, parameter._cairn_class = name, present  # type: ignore[attr-defined]
    parameter.__class__ = _absent_class(present)


def come(parameter: torch.Tensor, data: torch.Tensor) -> None:
    if isinstance(parameter, _Absent):
        parameter.__class__ = parameter._cairn_class
        del parameter._cairn_name, parameter._cairn_class
    parameter.data = data
