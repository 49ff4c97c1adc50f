"""A second opinion on who holds what: the program runs again, plainly, and its variables are seen in the peak's op.

Nothing is declared here. A row of `at_peak` names a variable of a running call or a global; this looks whether that
call runs, has the variable, and whether a tensor of that size can be reached from it.
"""

from __future__ import annotations

import gc
import re
import sys
from collections import deque
from types import FrameType, FunctionType, ModuleType

import torch
from torch.utils._python_dispatch import TorchDispatchMode

CLAIMED = ("seen", "structure")
VARIABLE = re.compile(r"`([^`]+)`, (?:local variable|argument) of `([^`]+)`")
GLOBAL = re.compile(r"global `([^`]+)` of module `?([\w.]+)`?")
STACK = re.compile(r"on the evaluation stack of `([^`]+)`|the running call of `([^`]+)`")
BACKWARD = "in the autograd engine"
MOST_OBJECTS = 50_000


class Oracle(TorchDispatchMode):
    """Takes the place of `memwatch.profile` in a program, and judges what was said of one op's instant.

    Args:
        op_name: the op of the peak.
        occurrence: how many ops of that name ran before it.
        claims: pairs of what was said of a holder and the bytes that it holds.
    """

    def __init__(self, op_name: str, occurrence: int, claims: list[tuple[str, int]]) -> None:
        super().__init__()
        self._op_name, self._left, self._claims = op_name, occurrence, claims
        self.false: list[str] = []
        self.has_looked = False

    def __call__(self, **options):
        """Return itself for `memwatch.profile(...)`."""
        return self

    def step(self):
        """Do nothing for `prof.step()`."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if str(func) == self._op_name:
            if self._left == 0:
                self.has_looked = True
                calls = list(running(sys._getframe(1)))
                self.false = [
                    f"{nbytes} B: {words}" for words, nbytes in self._claims if is_false(words, nbytes, calls)
                ]
            self._left -= 1
        return result


def question(prof):
    """Return the oracle for what a profile says about its peak."""
    peak_op = int(prof.timeline["op"].to_numpy()[prof.timeline["live_bytes"].to_numpy().argmax()])
    if peak_op < 0:
        return None
    names = prof.ops["name"]
    name = names.iloc[peak_op]
    rows = prof.at_peak
    if "holder_evidence" in rows:
        rows = rows[rows["holder_evidence"].isin(CLAIMED)]
    claims = list(zip(rows["holder"], rows["nbytes"].tolist()))
    return Oracle(name, int((names.iloc[:peak_op] == name).sum()), claims)


def running(frame: FrameType | None):
    """Yield a call and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_false(words: str, nbytes: int, calls: list[FrameType]) -> bool:
    """Return True for words that name a variable or a call, if they are not so."""
    if BACKWARD in words and torch._C._current_graph_task_id() == -1:
        return True
    if found := GLOBAL.search(words):
        module = sys.modules.get(found[2])
        return module is not None and not reaches(vars(module).get(found[1].partition(".")[0]), nbytes)
    if found := VARIABLE.search(words):
        if "thread" in words:
            return False  # other threads' calls are not looked at
        owners = [call for call in calls if call.f_code.co_name == found[2].rpartition(".")[2]]
        return not any(reaches(value_of(found[1], call), nbytes) for call in owners)
    if found := STACK.search(words):
        name = (found[1] or found[2]).rpartition(".")[2].strip("<>")
        return not any(call.f_code.co_name.strip("<>") == name for call in calls)
    return False


def value_of(expression: str, call: FrameType) -> object:
    """Return what an expression is in a running call, None where it has no such variable."""
    expression = expression.lstrip("*")
    try:
        return eval(expression, call.f_globals, dict(call.f_locals))
    except Exception:  # a key that is not written as Python has it
        return call.f_locals.get(re.split(r"[.\[]", expression)[0])


def reaches(start: object, nbytes: int) -> bool:
    """Return True if a tensor on a storage of this size can be reached from an object."""
    seen, waiting = set(), deque([start])
    while waiting and len(seen) < MOST_OBJECTS:
        obj = waiting.popleft()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        if isinstance(obj, torch.Tensor) and obj.layout is torch.strided:
            if obj.untyped_storage().nbytes() == nbytes:
                return True
            waiting.append(obj.grad if obj.is_leaf else None)
        if isinstance(obj, (FrameType, ModuleType, type)):
            continue
        if isinstance(obj, FunctionType):
            waiting.extend([obj.__closure__, obj.__defaults__, obj.__dict__])
        else:
            waiting.extend(gc.get_referents(obj))
    return False
