"""torch.jit and torch's futures: the running trace, and the tensors in scripted modules and futures.

| torch | here |
| --- | --- |
| torch._C._get_tracing_state | tracing_state |
| torch.jit._trace, "_trace_impl", "trace_module" | TRACERS |
| torch.jit._script.RecursiveScriptModule | ScriptModule |
| torch._C.ScriptModule, ParameterDict, BufferDict | tensors_of_script_module(inside) |
| torch._C.Future | Future |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from memwatch._torch.lookup import NoSuchClass, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_traces: Final = Part("ops that torch.jit traces are recorded, and the recorder's may be written down")
tracing_state: Final[Callable[[], Any]] = _traces.take("torch._C._get_tracing_state", lambda: None)
"""Return the state of torch.jit's trace in this thread, or None if it does not trace."""
_traces.take("torch.jit._trace._trace_impl", None)
TRACERS: Final[tuple[tuple[Any, str], ...]] = tuple(
    (place, name)
    for place in (_traces.take("torch.jit._trace", torch.jit), torch.jit)
    for name in ("_trace_impl", "trace_module")
    if hasattr(place, name)
)
"""The functions that every trace runs through, each with its module."""

_script: Final = Part("searches for leaks skip tensors that scripted modules hold")
ScriptModule: Final[type[Any]] = _script.take("torch.jit._script.RecursiveScriptModule", NoSuchClass)
"""The class of scripted modules."""
_Inside: Final[type[Any]] = _script.take("torch._C.ScriptModule", NoSuchClass)
_ParameterDict: Final[Any] = _script.take("torch._C.ParameterDict", None)
_BufferDict: Final[Any] = _script.take("torch._C.BufferDict", None)


class ScriptTensor(NamedTuple):
    """A parameter or a buffer of a scripted module."""

    is_parameter: bool
    name: str
    tensor: Any


def tensors_of_script_module(inside: Any) -> Iterator[ScriptTensor]:
    """Yield the parameters and buffers of the C++ module inside a scripted one."""
    if type(inside) is not _Inside or not _script.complete:
        return
    for is_parameter, table in ((True, _ParameterDict), (False, _BufferDict)):
        for name, tensor in table(inside).items():
            yield ScriptTensor(is_parameter, name, tensor)


Future: Final[Any] = Part("searches for leaks skip tensors that torch futures hold").take(
    "torch._C.Future", NoSuchClass
)
"""The C class of torch's futures, with `done` and `value`."""
