"""A dispatch mode that sees each storage being made on this thread, with the user's line; on where a line is wanted."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from memwatch._torch.dispatch import schema_of
from memwatch._torch.dynamo import skip_frames_of
from memwatch._torch.modes import UncompiledMode, mode_stack, pop_mode, push_mode
from memwatch.heap.autograd import is_sparse, sparse_parts
from memwatch.heap.class_checks import class_ids, is_a
from memwatch.heap.frames import is_test_runner_code
from memwatch.heap.tensors import is_simulated, is_storage, is_tensor, quiet, storage_bytes, storage_of
from memwatch.own_code import CodeOwner, code_owner, hands_on
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from memwatch.leaks.new_storages import NewStorages, Site

_is_runner: Final = functools.cache(is_test_runner_code)
_RESIZES: Final = "aten::resize"
_PLACES: Final = "aten::set_"
_NUMBERS: Final = class_ids(bool, int, float, complex)
_Look: TypeAlias = "Callable[[NewStorageMode, Any, Any, Sequence[Any]], None]"


class NewStorageMode(UncompiledMode):
    """Writes the storages that ops return into a book; changes nothing.

    Args:
        book: where new storages are noted; weak references only.
        run: index of the run.

    Attributes:
        run: index of the run, which may change while the mode is on.
        ops: how many ops came by.
        on_op: called with each op that may make a storage, before its storages are noted.
    """

    def __init__(self, book: NewStorages, run: int) -> None:
        super().__init__()
        self._book = book
        self.run = run
        self.ops = 0
        self.on_op: Callable[[object], None] | None = None
        self._looks: dict[Any, _Look | None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops += 1
        try:
            result = func(*args, **(kwargs or {}))
        except RuntimeError as error:
            # of a scripted function, a mode is given plain numbers where the op takes tensors only
            pass_on(error)
            numbers = _numbers_for_tensors(func, args)
            if numbers is None:
                raise
            result = func(*numbers, **(kwargs or {}))
        if func not in self._looks:
            self._looks[func] = _look_for(func)
        look = self._looks[func]
        if look is not None:
            with quiet():
                look(self, func, result, args)
        return result

    def note_resized(self, _func: Any, result: Any, _args: Sequence[Any]) -> None:
        """Note the line at which an op gives storages another size."""
        for storage in _storages(result):
            self._book.resized_at[id(storage)] = user_lines()

    def note_placed(self, _func: Any, _result: Any, args: Sequence[Any]) -> None:
        """Note a storage that was made without an op, as by `copy.deepcopy` and `torch.load`, or that is an old one."""
        if self.on_op is None:
            return  # Only rounds of a program need it. find_leaks would count the death of an old one as a release.
        for storage in filter(is_storage, args):
            if not is_simulated(args[0]) and not self._book.has(storage):
                site, caller = user_lines()
                made = self._book.add(storage, self.run, site)
                if made is not None:
                    made.caller = caller

    def note_made(self, func: Any, result: Any, args: Sequence[Any]) -> None:
        """Note the storages that an op returns, and the smaller ones from which they were made."""
        if self.on_op is not None:
            self.on_op(func)
        for tensor in _tensors(result):
            for storage in _storages(tensor):
                if self._book.has(storage):
                    continue
                site, caller = user_lines()
                made = self._book.add(storage, self.run, site, certain=True)
                if made is None:
                    continue
                made.caller = caller
                sources = {id(source): source for part in args for source in _storages(part)}
                smaller = [each for each in sources.values() if 0 < storage_bytes(each) < made.nbytes]
                # a pointwise op repeats a smaller operand, so nothing grows, except rows that a sparse operand lacks
                if smaller and (torch.Tag.pointwise not in func.tags or storage_of(tensor) is None):
                    made.sources = tuple(map(weakref.ref, smaller))

    def start(self) -> None:
        """Switch on for this thread."""
        push_mode(self)

    def stop(self) -> None:
        """Switch off, leaving modes that were entered later in place; does nothing if already off."""
        if not any(mode is self for mode in mode_stack()):
            return
        above = []
        while mode_stack():
            mode = pop_mode()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            push_mode(mode)


def _look_for(func: Any) -> _Look | None:
    """Return what to note of an op: the storages that it makes, places in a tensor, or gives another size."""
    schema = schema_of(func)
    if any(ret.alias_info is None for ret in schema.returns):
        return NewStorageMode.note_made
    if schema.name == _PLACES:
        return NewStorageMode.note_placed
    return NewStorageMode.note_resized if schema.name.startswith(_RESIZES) else None


def _numbers_for_tensors(func: Any, args: Sequence[Any]) -> list[Any] | None:
    """Return the operands with numbers as tensors where the op takes tensors; None without such numbers."""
    wanted = (str(argument.type) == "Tensor" for argument in schema_of(func).arguments)
    made = [
        torch.tensor(value) if is_wanted and id(type(value)) in _NUMBERS else value
        for is_wanted, value in zip(wanted, args, strict=False)
    ]
    return None if all(new is old for new, old in zip(made, args, strict=False)) else made


def _tensors(value: Any) -> Iterator[Any]:
    if is_tensor(value):
        yield value
    elif is_a(value, tuple) or is_a(value, list):
        kind = tuple if is_a(value, tuple) else list
        for part in kind.__iter__(value):
            yield from _tensors(part)


def _storages(value: Any) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of an operand; for a sparse operand, those of its parts."""
    for tensor in _tensors(value):
        if is_simulated(tensor):
            continue
        storage = storage_of(tensor)
        if storage is not None:
            yield storage
        elif is_sparse(tensor):
            parts = [part for _, part in sparse_parts(tensor) if part is not None]
            yield from filter(None, map(storage_of, parts))


def user_lines() -> tuple[Site | None, Site | None]:
    """Return the innermost running call of a program or a package, and its caller, each with its line.

    A call of Python's own code, such as `copy.deepcopy`, is returned only without any other. Callers of memwatch and
    test runners are skipped.
    """
    found: Site | None = None
    within_python: Site | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        owner = code_owner(file)
        if found is not None and (owner is CodeOwner.MEMWATCH or _is_runner(file)):
            return found, None
        is_passing = hands_on(frame.f_code, frame.f_lasti)
        if not is_passing and (owner.calls_torch or owner is CodeOwner.PYTHON):
            line = file, frame.f_lineno, frame.f_code.co_name
            if not owner.calls_torch:
                within_python = within_python or line
            elif found is not None:
                return found, line
            else:
                found = line
        frame = frame.f_back
    return found or within_python, None


skip_frames_of(NewStorageMode.__torch_dispatch__.__code__)
