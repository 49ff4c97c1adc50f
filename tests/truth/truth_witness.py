"""Record where each op ran and which tensors backward read, in a plain second run of a program.

Modules come from torch's own global hooks, lines from the running frames. In backward both belong to the forward op
whose node runs. It is found by autograd's sequence numbers. This module uses nothing of memwatch.
"""

from __future__ import annotations

import functools
import os
import sysconfig
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
from torch.nn.modules import module as modules
from torch.utils import checkpoint

_TORCH = os.path.dirname(torch.__file__) + os.sep
_PYTHON = sysconfig.get_paths()["stdlib"] + os.sep
_PACKAGES = os.sep + "site-packages" + os.sep
_HERE = str(Path(__file__).parent / "truth_")


class Place(NamedTuple):
    """Where an op ran: the module whose call was running, the line, and the program's own line."""

    module: weakref.ref | None
    line: str
    own_line: str


class Witness:
    """Notes the place of every op, and the ops whose results backward reads.

    Attributes:
        places: the place of each op, or None if unknown.
        in_backward: whether each op ran in backward.
        made: the number of allocations of each size that each op made.
        read_in_backward: the forward ops whose results an op of backward read, with the bytes.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self.places: list[Place | None] = []
        self.in_backward: list[bool] = []
        self.made: Counter[tuple[int, int]] = Counter()
        self.read_in_backward: set[tuple[int, int]] = set()
        self._running: list[weakref.ref] = []
        self._of_node: dict[int, Place | None] = {}
        self._made_by: dict[int, int] = {}
        self._hooks: list = []

    def start(self) -> None:
        """Begin to see the calls of modules."""
        self._hooks = [
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        """See the calls of modules no more."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, module, args):
        self._running.append(weakref.ref(module))

    def _leave(self, module, args, output):
        running = [call() for call in self._running]
        if module in running:
            del self._running[len(running) - 1 - running[::-1].index(module) :]

    def note(
        self, args: object, result: object, frame: FrameType, *, is_counted: bool, written: object = None
    ) -> None:
        """Note one op that has run.

        Args:
            args: its arguments.
            result: its result.
            frame: the call that called it.
            is_counted: whether the recorded program has the op as well.
            written: the argument that the recorded program writes in place, if this run has a new result instead.
        """
        is_backward = torch._C._current_graph_task_id() != -1
        is_again = is_backward and is_in_region(frame)  # a forward that a checkpoint runs again
        if is_backward and not is_again:
            node = torch._C._current_autograd_node()
            place = self._of_node.get(node._sequence_nr()) if node is not None else None
        elif is_again and not self._running:
            place = None  # a region that was left by an exception: its modules are not known
        else:
            place = self._place(frame)
        number = torch._C._autograd._get_sequence_nr() - 1
        self._of_node.setdefault(number, place)
        given = {one.untyped_storage().data_ptr(): one for one in plain_tensors(args)}
        if is_backward and not is_again:
            for address, tensor in given.items():
                if address in self._made_by:
                    self.read_in_backward.add((self._made_by[address], tensor.untyped_storage().nbytes()))
        for tensor in plain_tensors(result):
            address = tensor.untyped_storage().data_ptr()
            if isinstance(written, torch.Tensor):
                self._made_by[address] = self._made_by.get(written.untyped_storage().data_ptr(), -1)
            elif address not in given and is_counted:
                self._made_by[address] = len(self.places)
                self.made[len(self.places), tensor.untyped_storage().nbytes()] += 1
        if is_counted:
            self.places.append(place)
            self.in_backward.append(is_backward)

    def _place(self, frame: FrameType) -> Place:
        line = own_line = ""
        for call in running(frame):
            file = call.f_code.co_filename
            if not line and not is_machinery(file):
                line = f"{file}:{call.f_lineno}"
            if file == self._file:
                own_line = f"{file}:{call.f_lineno}"
                break
        return Place(self._running[-1] if self._running else None, line, own_line)


@functools.cache
def is_machinery(file: str) -> bool:
    """Return True for a file of torch, of Python or of these tests' own tools."""
    of_python = file.startswith(_PYTHON) and _PACKAGES not in file
    return file.startswith((_TORCH, _HERE, "<frozen")) or of_python


def is_in_region(frame: FrameType) -> bool:
    """Return True if a checkpoint runs a region again within the backward that runs."""
    for call in running(frame):
        if call.f_code.co_filename == checkpoint.__file__:
            return True
        if call.f_code.co_name == "_engine_run_backward":
            return False
    return False


def running(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a call and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def plain_tensors(values: object) -> list[torch.Tensor]:
    """Return the tensors in some values whose bytes lie in one storage. Tensors of torch.func wrap others."""
    return [
        one
        for one in leaves_of(values)
        if type(one) in (torch.Tensor, torch.nn.Parameter)
        and one.layout is torch.strided
        and has_storage(one)
    ]


def leaves_of(values: object) -> Iterator[object]:
    """Yield the items of tuples, lists and dictionaries. An op gets no other containers."""
    if isinstance(values, (tuple, list)):
        for value in values:
            yield from leaves_of(value)
    elif isinstance(values, dict):
        yield from leaves_of(list(values.values()))
    else:
        yield values


def has_storage(tensor: torch.Tensor) -> bool:
    """Return True for a tensor with memory of its own."""
    try:
        tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return False
    return True


def what_is_misplaced(prof, witness: Witness, names: dict[int, str], is_view) -> list[str]:
    """Return the claims of `at_peak` about modules, lines and activations that the second run contradicts."""
    numbers = {
        op: place for place, op in enumerate(op for op, name in prof.ops["name"].items() if not is_view(name))
    }
    made_by = prof.storages["op"]
    wrong = []
    for row in prof.at_peak.itertuples():
        number = numbers.get(int(made_by[row.Index]))
        if number is None or number >= len(witness.places) or witness.places[number] is None:
            continue
        place = witness.places[number]
        says = {"line": (row.line, place.line), "own_line": (row.own_line, place.own_line)}
        module = place.module() if place.module is not None else None
        if row.category not in ("parameter", "buffer", "gradient", "optimizer state"):
            path = names.get(id(module)) if place.module is not None else ""
            if path is not None and not is_module(row.module, path, is_root=module is not None and not path):
                says["module"] = (row.module, path)
        is_read = (number, row.nbytes) in witness.read_in_backward
        if witness.made[number, row.nbytes] > 1:
            pass  # it is not known which of them was read
        elif row.category == "temporary" and is_read and not witness.in_backward[number]:
            says["category"] = (row.category, "read in backward")
        elif row.category == "activation" and not is_read:
            says["category"] = (row.category, "never read in backward")
        for column, (said, true) in says.items():
            if said != true:
                wrong.append(f"{column}: {said!r}, is {true!r}: {row.nbytes} B {row.op_name} {row.category}")
    return wrong


def is_module(said: str, path: str, *, is_root: bool) -> bool:
    """Return True if a name belongs to a module with a path below its root. The root's name is unknown."""
    return "." not in said if is_root else f".{said}".endswith(f".{path}") if path else not said


def paths_of(nets: dict[str, object]) -> dict[int, str]:
    """Return the path of each module of some roots, without the root's name, by `id`."""
    return {id(module): path for net in nets.values() for path, module in net.named_modules()}
