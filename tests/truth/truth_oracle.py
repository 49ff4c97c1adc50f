"""A second opinion about holders: the program runs again, plainly, and its variables are inspected in the peak's op.

Nothing is declared here. A row of `at_peak` names a variable of a running call or a global. The oracle checks whether
that call runs, has the variable, and whether a tensor of that size can be reached from it.
"""

from __future__ import annotations

import functools
import gc
import re
import sys
from collections import deque
from types import FrameType, FunctionType, ModuleType, TracebackType

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from truth_score import CLAIMED, peak_op
from truth_witness import Witness, running

VARIABLE = re.compile(r"`([^`]+)`, (?:local variable|argument) of `([^`]+)`")
GLOBAL = re.compile(r"global `([^`]+)` of module `?([\w.]+)`?")
STACK = re.compile(r"on the evaluation stack of `([^`]+)`|the running call of `([^`]+)`")
BACKWARD = "gradient in flight"
MOST_OBJECTS = 50_000


class Oracle(TorchDispatchMode):
    """Replaces `memwatch.profile` in a program, and judges the claims about one op's instant.

    Args:
        names: the recorded ops up to the op of the peak.
        claims: pairs of a claimed holder and the bytes that it holds.
        witness: notes the place of every op.
    """

    def __init__(self, names: list[str], claims: list[tuple[str, int]], witness: Witness) -> None:
        super().__init__()
        self.witness = witness
        self._names, self._claims = list(map(out_of_place, names)), claims
        self._in_place = [out_of_place(name) != name for name in names]
        self._recorded = set(self._names)
        self._ran: list[str] = []
        self.false: list[str] = []
        self.has_looked = False  # stays False if the ops differ from the recorded ones

    def __call__(self, **options):
        """Return itself for `memwatch.profile(...)`."""
        return self

    def step(self):
        """Do nothing for `prof.step()`."""

    def __enter__(self):
        self.witness.start()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.witness.stop()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = out_of_place(str(func))
        is_counted = name in self._recorded and not is_view(str(func))
        place = len(self._ran)
        was_in_place = is_counted and place < len(self._names) and self._in_place[place]
        written = args[0] if was_in_place and out_of_place(str(func)) == str(func) else None
        self.witness.note((args, kwargs), result, sys._getframe(1), is_counted=is_counted, written=written)
        if is_counted:
            self._ran.append(name)
        if not self.has_looked and len(self._ran) == len(self._names) and self._ran == self._names:
            self.has_looked = True
            calls = list(running(sys._getframe(1)))
            self.false = [
                f"{nbytes} B: {words}" for words, nbytes in self._claims if is_false(words, nbytes, calls)
            ]
        return result


def question(prof, file):
    """Return the oracle for a profile's claims about a program's peak; None if the peak comes before all ops.

    Args:
        prof: the profile.
        file: the source of the program.
    """
    last = peak_op(prof)
    if last < 0:
        return None
    names = [name for name in prof.ops["name"].tolist()[: last + 1] if not is_view(name)]
    rows = prof.at_peak
    if "holder_evidence" in rows:
        rows = rows[rows["holder_evidence"].isin(CLAIMED)]
    claims = list(zip(rows["holder"], rows["nbytes"].tolist()))
    return Oracle(names, claims, Witness(file))


def out_of_place(name: str) -> str:
    """Return one name for an op that torch calls differently under a mode, where it adds a bias out of place."""
    return name.replace("_.", ".").replace("aten.index_put.", "aten._index_put_impl.")


@functools.cache
def is_view(name: str) -> bool:
    """Return True for an op whose results are views of its arguments: an interceptor need not see these."""
    operator = torch.ops
    for part in name.split("."):
        operator = getattr(operator, part, None)
    returns = () if operator is None else operator._schema.returns
    return bool(returns) and all(
        one.alias_info is not None and not one.alias_info.is_write for one in returns
    )


def is_false(words: str, nbytes: int, calls: list[FrameType]) -> bool:
    """Return True for words that name a variable or a call, if they are not so."""
    words = words.rpartition("reached from ")[2]
    if BACKWARD in words and torch._C._current_graph_task_id() == -1:
        return True
    if found := GLOBAL.search(words):
        module = sys.modules.get(found[2])
        return module is not None and not reaches(value_in(found[1], vars(module), {}), nbytes)
    if found := VARIABLE.search(words):
        if "thread" in words:
            return False  # calls of other threads are not read
        owners = [call for call in calls if defined_name(call) == found[2].rpartition(".")[2]]
        return not any(
            reaches(value_in(found[1], call.f_globals, dict(call.f_locals)), nbytes) for call in owners
        )
    if found := STACK.search(words):
        name = (found[1] or found[2]).rpartition(".")[2].strip("<>")
        return not any(call.f_code.co_name.strip("<>") == name for call in calls)
    return False


def defined_name(call: FrameType) -> str:
    """Return the name of a call's function; for a comprehension, the name of the function around it."""
    name = call.f_code.co_name
    if not name.endswith(("comp>", "genexpr>")):
        return name
    # Python 3.10 has it not, and calls a comprehension in place
    qualified = getattr(call.f_code, "co_qualname", None)
    if qualified is None:
        return defined_name(call.f_back) if call.f_back is not None else name
    *_, around, _ = ("", *qualified.replace(".<locals>", "").split("."))
    return around or name


def value_in(expression: str, global_names: dict[str, object], local_names: dict[str, object]) -> object:
    """Return an expression's value among the variables of a call or module; None if a variable is missing."""
    expression = expression.lstrip("*")
    try:
        return eval(expression, global_names, local_names)
    except Exception:  # a key that is not written as Python has it
        return {**global_names, **local_names}.get(re.split(r"[.\[]", expression)[0])


def reaches(start: object, nbytes: int) -> bool:
    """Return True if a tensor on a storage of this size can be reached from an object."""
    seen, waiting = set(), deque([start])
    while waiting and len(seen) < MOST_OBJECTS:
        obj = waiting.popleft()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        if isinstance(obj, torch.Tensor):
            if nbytes in sizes_of(obj):
                return True
            if torch._C._functorch.is_functorch_wrapped_tensor(obj):
                waiting.append(torch._C._functorch.get_unwrapped(obj))
                continue
            waiting.append(obj.grad if obj.is_leaf else None)
        if isinstance(obj, torch.futures.Future) and obj.done():
            waiting.append(obj.value())
        if isinstance(obj, np.ndarray):
            if type(obj.base).__name__ == "PyCapsule" and obj.nbytes == nbytes:
                return True
            waiting.extend([obj.base, *(obj.ravel().tolist() if obj.dtype == object else [])])
        if isinstance(obj, (FrameType, ModuleType, type)):
            continue
        if isinstance(obj, TracebackType):
            waiting.extend([*obj.tb_frame.f_locals.values(), obj.tb_next])
        elif isinstance(obj, FunctionType):
            waiting.extend([obj.__closure__, obj.__defaults__, obj.__dict__])
        else:
            waiting.extend(gc.get_referents(obj))
    return False


def sizes_of(tensor: torch.Tensor) -> list[int]:
    """Return the bytes of the storages that a tensor shows."""
    if tensor.layout is torch.sparse_coo:
        return [part.untyped_storage().nbytes() for part in (tensor._indices(), tensor._values())]
    try:
        return [tensor.untyped_storage().nbytes()]
    except NotImplementedError:  # a wrapper, as torch.func has them
        return []
