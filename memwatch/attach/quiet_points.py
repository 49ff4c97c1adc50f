"""The points of the main thread at which a recording can begin or end without an effect on the program.

A recording pushes hooks on saved tensors, and sometimes a dispatch mode, and switches on a dispatch key of torch for
the thread. The program may have an open `with` statement of the same kind. Then its end would remove memwatch's hook
instead of its own. torch itself restores its state at the end of a backward and of `inference_mode`, so a recording
that began inside would be switched off there. A loop of torch over hooks raises if a hook is added meanwhile.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from memwatch._torch.autograd import NO_TASK, current_graph_task_id, top_saved_hooks
from memwatch._torch.jit import tracing_state
from memwatch._torch.modes import PLACES_THAT_CHANGE_HOOKS, mode_stack
from memwatch._torch.modules import MODULE_CALL_CODE
from memwatch._torch.tensors import is_transforming
from memwatch.own_code import is_memwatch_code

if TYPE_CHECKING:
    from types import FrameType

_TORCH: Final = os.path.dirname(torch.__file__)
_MODULE_FILE: Final = os.path.join(_TORCH, "nn", "modules", "module.py")
_OWN_WRAPPER_FILE: Final = os.path.join("memwatch", "record", "context.py")
"""Our own frame around each call of a module. It may stay, because it checks whether the recording is still on."""


class TorchState(NamedTuple):
    """The hooks and modes of the main thread, which a recording changes.

    Attributes:
        hooks: the `id()` of the innermost hook on saved tensors; None if there is none.
        modes: the `id()` of each dispatch mode, the outermost first.
    """

    hooks: int | None
    modes: tuple[int, ...]

    @classmethod
    def here(cls) -> TorchState:
        """Return the state of this thread."""
        hooks = top_saved_hooks()
        return cls(None if hooks is None else id(hooks[0]), tuple(map(id, mode_stack())))


PLAIN: Final = TorchState(None, ())
"""The state of a thread that is inside no `with` statement of these kinds."""


def obstacle(frame: FrameType | None, expected: TorchState) -> str:
    """Return why no recording can begin or end in this thread now, as the end of a sentence about it; "" if it can.

    Args:
        frame: the innermost frame of the program.
        expected: the state that the thread must have: `PLAIN` for a beginning, and for an end the state right after
            the beginning.
    """
    if current_graph_task_id() != NO_TASK:
        return "is in a backward"
    if is_transforming() or tracing_state() is not None:
        return "is in a transform or a trace of torch"
    if TorchState.here() != expected:
        return "is inside hooks on saved tensors or a dispatch mode"
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(PLACES_THAT_CHANGE_HOOKS):
            return f"is in {os.path.relpath(file, os.path.dirname(_TORCH))}"
        if is_memwatch_code(file) and not file.endswith(_OWN_WRAPPER_FILE):
            return "is in code of memwatch"
        frame = frame.f_back
    return ""


def is_between_calls(frame: FrameType | None) -> bool:
    """Return True if the thread runs no module.

    In a forward, autograd keeps tensors that no object of Python refers to. They are freed by the next backward. A
    recording that begins there does not know them, and shows a lower peak until then.
    """
    while frame is not None:
        is_call = (
            frame.f_code is MODULE_CALL_CODE
            if MODULE_CALL_CODE is not None
            else frame.f_code.co_filename == _MODULE_FILE
        )
        if is_call:
            return False
        frame = frame.f_back
    return True
