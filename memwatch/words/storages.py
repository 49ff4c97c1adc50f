"""What a piece of memory is called that no role names: after the op that made it, and where that ran."""

from __future__ import annotations

from typing import Final

_OUTSIDE_OPS: Final = "made outside every recorded op"
_CALL_NOT_IMPORTED: Final = "its call is not in the memory snapshot"
_MADE_IN_THREAD: Final = "made in thread {thread}"
_MADE_IN_STEP: Final = "made in step {step}, which was not recorded"
_WORKSPACE: Final = "workspace of {op}"
_IN_MODULE: Final = "{what} in `{module}`"
_AT: Final = "{what} at {place}"
_ATEN: Final = "aten"


def short_op(op_name: str) -> str:
    """Return `mul` for `aten.mul.Tensor`, and `c10d.allreduce_` for `c10d.allreduce_.default`."""
    space, *name = op_name.split(".")
    if len(name) != 2:
        return op_name
    return name[0] if space == _ATEN else f"{space}.{name[0]}"


def made_name(op_name: str, module: str, place: str, *, is_workspace: bool) -> str:
    """Return `addmm in `blocks.0` at train.py:40`, as far as it is known; empty if nothing is.

    Args:
        op_name: the op, with its namespace and overload.
        module: the module that it ran in.
        place: `file:line` of the call.
        is_workspace: whether the op needed it only while it ran.
    """
    op = short_op(op_name)
    what = _WORKSPACE.format(op=op) if is_workspace and op else op
    if not what:
        return place
    if module:
        what = _IN_MODULE.format(what=what, module=module)
    return _AT.format(what=what, place=place) if place else what


def unmade_name(thread: str, step: int, *, has_ops: bool) -> str:
    """Return what memory is called of which neither op nor place is known.

    Args:
        thread: name of the thread that allocated it, empty for the block's own.
        step: the step that made it, if it was not recorded, else -1.
        has_ops: whether ops were recorded at all.
    """
    if thread:
        return _MADE_IN_THREAD.format(thread=thread)
    if step >= 0:
        return _MADE_IN_STEP.format(step=step)
    return _OUTSIDE_OPS if has_ops else _CALL_NOT_IMPORTED
