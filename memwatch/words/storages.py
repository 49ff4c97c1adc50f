"""The names for a piece of memory: its role, the module that passes it on, or the op that made it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from memwatch.words.processes import listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OLDER: Final = "made before the recording began"
_OUTSIDE_OPS: Final = "made outside every recorded op"
_CALL_NOT_IMPORTED: Final = "its call is not in the memory snapshot"
_MADE_IN_THREAD: Final = "made in thread {thread}"
_MADE_IN_STEP: Final = "made in step {step}, which was not recorded"
_WORKSPACE: Final = "workspace of {op}"
_IN_MODULE: Final = "{what} in `{module}`"
_AT: Final = "{what} at {place}"
_WITHIN: Final = " in "
_ATEN: Final = "aten"
_GRADIENTS: Final = ("gradient", "unsharded gradient")
_GRADIENT: Final = "`{parameter}` .grad"
_STATE: Final = "{optimizer} `{slot}` of `{parameter}`"
_STATE_NAME: Final = re.compile(r"(?P<optimizer>\w+)\.(?P<slot>[^\[]+)\[(?P<parameter>.*)\]", re.DOTALL)
_UNSHARDED: Final = "all-gathered `{name}`"
_OUTPUT: Final = "output of `{module}`"
_SAVED_BY: Final = "saved by {op}"
_OPTIMIZERS: Final = {
    name.lower(): name
    for name in (
        *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "Muon", "NAdam"),
        *("RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam"),
    )
}
"""How torch spells its optimizers: a recording has them in small letters."""


def short_op(op_name: str) -> str:
    """Return `mul` for `aten.mul.Tensor`, and `c10d.allreduce_` for `c10d.allreduce_.default`."""
    space, *name = op_name.split(".")
    if len(name) != 2:
        return op_name
    return name[0] if space == _ATEN else f"{space}.{name[0]}"


def site_name(op_name: str, function: str, file: str) -> str:
    """Return where in the code memory is made, without lines, which move: `aten.mul.Tensor in f (a.py)`."""
    place = f"{function}{_in_file(file)}" if file else ""
    return _WITHIN.join(part for part in (op_name, place) if part)


def file_of_line(line: str) -> str:
    """Return the name that a `site_name` has for the file of a `file:line`."""
    return os.path.basename(line.rpartition(":")[0])


def file_of_site(site: str, line: str) -> str:
    """Return the name of the file in a `site_name`; "" for other names, such as that of a parameter or a thread.

    Args:
        site: the name. A file, and the name of a thread, may have parentheses too.
        line: a `file:line` of the site.
    """
    file = file_of_line(line)
    return file if file and site.endswith(_in_file(file)) else ""


def site_in_file(site: str, file: str, other: str) -> str:
    """Return a `site_name` that has one file's name, with another file's name."""
    return site.removesuffix(_in_file(file)) + _in_file(other)


def _in_file(file: str) -> str:
    return f" ({file})"


def short_site(site: str) -> str:
    """Return a `site_name` with the op in short; other names as they are."""
    op_name, within, function = site.partition(_WITHIN)
    return f"{short_op(op_name)}{within}{function}" if within else site


def role_name(role: str, name: str) -> str:
    """Return what people call memory in a role: "`head.weight` .grad", "Adam `exp_avg` of `head.weight`".

    Args:
        role: the role, one of ROLES.
        name: its recorded name: `head.weight`, `adam.exp_avg[head.weight]`.
    """
    if role in _GRADIENTS:
        return _GRADIENT.format(parameter=name)
    if role == "unsharded parameter":
        return _UNSHARDED.format(name=name)
    state = _STATE_NAME.fullmatch(name) if role == "optimizer state" else None
    if state is None:
        return name
    return _STATE.format(
        **state.groupdict() | {"optimizer": _OPTIMIZERS.get(state["optimizer"], state["optimizer"])}
    )


def output_name(module: str) -> str:
    """Return the name of the output of a module."""
    return _OUTPUT.format(module=module)


def saved_name(op_name: str, module: str) -> str:
    """Return the name of memory that an op saved for its backward, with the module that ran the op, if there is one."""
    what = _SAVED_BY.format(op=short_op(op_name))
    return _IN_MODULE.format(what=what, module=module) if module else what


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


def unmade_name(thread: str, step: int, *, is_older: bool, has_ops: bool) -> str:
    """Return a name for memory whose op and place are both unknown.

    Args:
        thread: name of the thread that allocated it, empty for the block's own.
        step: the step that made it, if it was not recorded, else -1.
        is_older: whether it was alive when the block was entered.
        has_ops: whether ops were recorded at all.
    """
    if thread:
        return _MADE_IN_THREAD.format(thread=thread)
    if step >= 0:
        return _MADE_IN_STEP.format(step=step)
    if not has_ops:
        return _CALL_NOT_IMPORTED
    return _OLDER if is_older else _OUTSIDE_OPS


MOVED_PEAK: Final = "The peak is at another moment now: op {op} ({phase}){at}"
"""The line about two captures whose peaks are at different ops, so that their sites are of two moments."""
MOVED_TO_LINE: Final = " at {line}"


RENAMED_FILE: Final = (
    "The sites of {old} are compared with the sites of {new}: the same functions call the same ops."
)
NO_COMMON_FILE: Final = (
    "memwatch matched no file of the old capture ({old}) with a file of the new one ({new}), so only the peaks, "
    "parameters, gradients and optimizer states can be compared. `memwatch summary` shows each peak alone."
)
_MOST_FILES: Final = 3
"""Files in one sentence: a guess."""


def file_remarks(renamed: Mapping[str, str], old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return sentences about files of two captures that have different names.

    Args:
        renamed: the new name of each file that was matched with a file of another name.
        old: the files of the old capture, if none of them was matched with a file of the new one; otherwise empty.
        new: the files of the new capture, likewise.
    """
    sentences = [RENAMED_FILE.format(old=before, new=after) for before, after in renamed.items()]
    if old and new:
        sentences.append(NO_COMMON_FILE.format(old=listed(old, _MOST_FILES), new=listed(new, _MOST_FILES)))
    return sentences


def moved_peak(op_name: str, phase: str, line: str) -> str:
    """Return that the peak of a new capture is at another op than the old one's."""
    at = MOVED_TO_LINE.format(line=os.path.basename(line)) if line else ""
    return MOVED_PEAK.format(op=short_op(op_name), phase=phase, at=at)
