"""Find the storages that a block made and that outlive it, at a cost that depends on the survivors alone.

While automatic collection is off, everything made in the block stays in gc's youngest generation. Tensors and
autograd nodes are gc objects. A list of that generation therefore shows the survivors of all threads, without an
interceptor or a scan of the heap. Storages that only C++ holds are found from there along the autograd graph.
"""

from __future__ import annotations

import concurrent.futures.thread
import functools
import gc
import sys
import threading
import time
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import torch

from memwatch._torch.autograd_state import requires_grad
from memwatch._torch.dispatch import schema_of
from memwatch._torch.dynamo import skip_frames_of
from memwatch._torch.modes import UncompiledMode, mode_stack, pop_mode, push_mode
from memwatch._torch.tensors import device_of
from memwatch.gc_pause import GcPause, age_everything, pause_gc, resume_gc, stop_calling
from memwatch.heap.autograd import autograd_edges, is_sparse, seen_through, sparse_parts
from memwatch.heap.classes import class_ids, is_a, of_classes
from memwatch.heap.frames import is_test_runner_code
from memwatch.heap.names import instance_dict
from memwatch.heap.tensors import (
    TypeFilter,
    is_simulated,
    is_storage,
    is_tensor,
    quiet,
    storage_bytes,
    storage_of,
)
from memwatch.own_code import CodeOwner, OwnThread, code_owner, hands_on
from memwatch.patches import Patches
from memwatch.signal_handlers import pass_on, raises_later, suppress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType


class Site(NamedTuple):
    """A line of the program that made a storage."""

    file: str
    line: int
    function: str


@dataclass(slots=True, eq=False)
class NewStorage:
    """A storage that a watched block made; never keeps it alive.

    Attributes:
        ref: weak reference to the storage.
        nbytes: its size in bytes when first seen.
        device: its device, such as `cpu` or `cuda:0`.
        run: index of the run that made it.
        site: the user's line that made it, or None if lines were not noted.
        certain: True if an op was seen to make it; False if it was only found as a survivor.
        time_s: clock when it was first seen, in seconds.
        caller: the line that called the function of that line, if the program's own code did.
        sources: smaller storages from which it was made, if the op was seen.
        grew: True if it replaced a smaller storage from which it was made, as by `torch.cat`.
        replaced_bytes: bytes of that smaller one.
        is_constant: True if the body of a module made it while the module was imported, which happens once.
        is_used: True if the run that made it gave it, as a parameter, to an op that autograd recorded.
    """

    ref: weakref.ref[torch.UntypedStorage]
    nbytes: int
    device: str
    run: int
    site: Site | None
    certain: bool
    time_s: float
    caller: Site | None = None
    sources: tuple[weakref.ref[torch.UntypedStorage], ...] = ()
    grew: bool = False
    replaced_bytes: int = 0
    is_constant: bool = False
    is_used: bool = False

    @property
    def alive(self) -> bool:
        """Whether the storage still exists."""
        return self.ref() is not None

    @property
    def size(self) -> tuple[str, int]:
        """The device and the bytes: what another storage must have to take this one's place."""
        return self.device, self.nbytes

    def bytes_now(self) -> int:
        """Return the bytes that the storage has now; those it had if it is dead."""
        storage = self.ref()
        return self.nbytes if storage is None else storage_bytes(storage)


def empty_storage(storage: torch.UntypedStorage) -> NewStorage:
    """Return a storage from before all runs that has no memory yet; `resize_` may give it some."""
    device = str(device_of(storage))
    return NewStorage(weakref.ref(storage), 0, device, -1, None, certain=True, time_s=time.monotonic())


class InPlaceChange(NamedTuple):
    """The last op that changed a storage in place while autograd recorded it, or that put it into a tensor.

    Attributes:
        ref: weak reference to the storage.
        run: index of the run with the op.
        site: the user's line.
        caller: the line that called the function of that line.
    """

    ref: weakref.ref[torch.UntypedStorage]
    run: int
    site: Site | None
    caller: Site | None


class NewStorages:
    """The storages that successive runs made, each once.

    Attributes:
        by_id: the storages, by `id`, in the order in which they were noted.
        resized_at: the lines that resized storages, and their callers, by the `id` of the storage.
        in_place: the last recorded change in place of each storage, by its `id`.
        placed_at: for each storage that was put into a tensor without an op that made it, the line that did so, by the
            `id` of the storage. It may be an old storage.
        is_program_imported: True if the program trains a model while a module is imported, so that its tensors are no
            constants.
    """

    def __init__(self) -> None:
        self.is_program_imported = False
        self._lock = threading.RLock()  # several threads may make storages; a signal handler, too
        self.by_id: dict[int, NewStorage] = {}
        self.resized_at: dict[int, tuple[Site | None, Site | None]] = {}
        self.in_place: dict[int, InPlaceChange] = {}
        self.placed_at: dict[int, InPlaceChange] = {}

    def add(
        self, storage: torch.UntypedStorage, run: int, site: Site | None = None, *, certain: bool = False
    ) -> NewStorage | None:
        """Note a storage and return it, unless it is known already or empty."""
        if self.has(storage):
            return None
        nbytes = storage_bytes(storage)
        if not nbytes:
            return None
        ref = weakref.ref(storage)
        made = NewStorage(ref, nbytes, str(device_of(storage)), run, site, certain, time.monotonic())
        placed = self.placed_at.get(id(storage))
        if site is None and placed is not None and placed.ref() is storage:
            made.site, made.caller = placed.site, placed.caller
        with self._lock:
            # of a dead one, in whose place in the order this one does not belong
            self.by_id.pop(id(storage), None)
            self.by_id[id(storage)] = made
        return made

    def has(self, storage: torch.UntypedStorage) -> bool:
        """Return True if a storage is known."""
        known = self.by_id.get(id(storage))
        return known is not None and known.ref() is storage

    def alive(self) -> list[NewStorage]:
        """Drop the dead and return the living."""
        with self._lock:
            self.by_id = {key: made for key, made in self.by_id.items() if made.alive}
            changes = list(self.in_place.items())  # in one step: other threads note changes meanwhile
            self.in_place = {key: change for key, change in changes if change.ref() is not None}
            places = list(self.placed_at.items())
            self.placed_at = {key: place for key, place in places if place.ref() is not None}
            return list(self.by_id.values())


def with_line_of_change(made: NewStorage, in_place: Mapping[int, InPlaceChange]) -> NewStorage:
    """Return a storage with the line at which its graph grew: of the last change in place, if it came later."""
    storage = made.ref()
    change = in_place.get(id(storage))
    if change is None or change.ref() is not storage or (made.site is not None and change.run <= made.run):
        return made
    return replace(made, site=change.site, caller=change.caller)


def runs_in_import() -> bool:
    """Return True if the running call is, directly or not, part of the body of a module that is being imported."""
    # each op of a check comes here, and a call of `is_import` for each frame took twice as long
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _IMPORT_SYSTEM:
        frame = frame.f_back
    return frame is not None


_IMPORT_SYSTEM: Final = "<frozen importlib._bootstrap>"
"""The file of the calls that Python makes to import a module, whatever loads it."""


class YoungWatch:
    """Holds gc still over a block and lists the tensors and nodes that were made in it and live on."""

    def __init__(self, at_collection: Callable[[str], None]) -> None:
        """Watch; `at_collection` is called with "start" and "stop" if gc runs in the block."""
        self._promoted: list[weakref.ref[Any]] = []
        self._at_collection: Callable[[str], None] | None = at_collection
        self._pause: GcPause | None = None

    def start(self) -> None:
        """Hold gc still; the block does not begin yet."""
        self._pause = pause_gc()

    def begin(self) -> None:
        """Begin the block: what is there now is old."""
        age_everything()
        gc.callbacks.append(self._before_collection)

    def stop(self) -> None:
        """End the block and give gc back."""
        stop_calling(self)
        self._promoted.clear()
        self._at_collection = None
        if self._pause is not None:
            resume_gc(self._pause)
            self._pause = None

    @raises_later
    def _before_collection(self, phase: str, _info: dict[str, int]) -> None:
        # The program itself calls gc.collect(): its survivors leave the youngest generation, so remember them.
        if self._at_collection is not None:
            self._at_collection(phase)
        if phase == "start":
            self._promoted += [
                weakref.ref(obj) for obj in _young_tensors() if is_tensor(obj) or is_storage(obj)
            ]

    def survivors(self) -> list[object]:
        """Return the young tensors, nodes and storages that are alive; drop the list soon."""
        found = _young_tensors()
        found += [obj for obj in (ref() for ref in self._promoted) if obj is not None]
        return found


def _young_tensors() -> list[object]:
    return tensors_among(gc.get_objects(0))


def tensors_among(objects: Sequence[object]) -> list[object]:
    """Return the tensors and autograd nodes among many objects; drop the list soon."""
    return of_classes(objects, TypeFilter().wants)


_MAX_NODES: Final = 1_000_000
"""Nodes of autograd that one search for storages passes. A guess: a step of a large model has tens of thousands."""
NODE_BYTES: Final = 512
"""Of one autograd node after backward. Measured with torch 2.13: the 217 nodes of the loss of three
`TransformerEncoderLayer` take 111,859 bytes of the heap, 515 each."""


def storages_behind(objects: Iterable[object]) -> list[torch.UntypedStorage]:
    """Return the real storages that tensors and nodes keep alive, including those that only autograd holds.

    They come in the order of the objects, which is the order of their birth if gc lists them.
    """
    return behind(objects)[0]


def behind(objects: Iterable[object]) -> tuple[list[torch.UntypedStorage], int]:
    """Return the storages that tensors and nodes keep alive, and how many autograd nodes they lead to."""
    seen: dict[int, object] = {id(obj): obj for obj in objects}
    todo = list(reversed(seen.values()))
    found = []
    wanted = TypeFilter()
    with quiet():
        while todo and len(seen) < _MAX_NODES:
            obj: Any = todo.pop()
            if is_storage(obj):
                if device_of(obj).type != "meta":
                    found.append(obj)
                continue
            if is_tensor(obj):
                storage = None if is_simulated(obj) else storage_of(obj)
                if storage is not None:
                    found.append(storage)
            for edge in seen_through(autograd_edges(obj)):
                if id(edge.target) not in seen and wanted(edge.target) and not is_storage(edge.target):
                    seen[id(edge.target)] = edge.target
                    todo.append(edge.target)
    nodes = sum(not (is_tensor(obj) or is_storage(obj)) for obj in seen.values())
    return found, nodes


# A dispatch mode that sees each storage being made on this thread, with the user's line; on where a line is wanted.

_is_runner: Final = functools.cache(is_test_runner_code)
_RESIZES: Final = "aten::resize"
_PLACES: Final = "aten::set_"
_LIFTS: Final = "aten::lift_fresh"
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
        is_over: True once nothing is to be noted any more, in a thread that only itself can switch a mode off.
    """

    def __init__(self, book: NewStorages, run: int) -> None:
        super().__init__()
        self._book = book
        self.run = run
        self.ops = 0
        self.is_over = False
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
        if look is not None and not self.is_over:
            with quiet():
                look(self, func, result, args)
        return result

    def note_resized(self, _func: Any, result: Any, _args: Sequence[Any]) -> None:
        """Note the line at which an op gives storages another size."""
        for storage in _storages(result):
            self._book.resized_at[id(storage)] = user_lines()

    def note_changed(self, _func: Any, _result: Any, args: Sequence[Any]) -> None:
        """Note the line of a change in place that adds to a graph."""
        if not args or not is_tensor(args[0]) or not torch.is_grad_enabled():
            return
        if any(is_tensor(each) and requires_grad(each) for each in args):
            for storage in _storages(args[0]):
                self._book.in_place[id(storage)] = InPlaceChange(
                    weakref.ref(storage), self.run, *user_lines()
                )

    def note_lifted(self, _func: Any, result: Any, _args: Sequence[Any]) -> None:
        """Note a storage that `torch.tensor` and its like have filled, of which this op is all that a mode sees."""
        for storage in _storages(result):
            self._note(storage, certain=True)

    def note_placed(self, _func: Any, _result: Any, args: Sequence[Any]) -> None:
        """Note a storage that was made without an op, as by `copy.deepcopy` and `torch.load`, or that is an old one."""
        for storage in filter(is_storage, args):
            if is_simulated(args[0]):
                continue
            if self.on_op is not None:
                self._note(storage, certain=False)
            # Only rounds of a program need the storage. find_leaks would count the death of an old one as a release.
            elif not self._book.has(storage):
                self._book.placed_at[id(storage)] = InPlaceChange(
                    weakref.ref(storage), self.run, *user_lines()
                )

    def note_made(self, func: Any, result: Any, args: Sequence[Any]) -> None:
        """Note the storages that an op returns, and the smaller ones from which they were made."""
        if self.on_op is not None:
            self.on_op(func)
            if torch.is_grad_enabled():
                self._note_used(args)
        for tensor in _tensors(result):
            for storage in _storages(tensor):
                made = self._note(storage, certain=True)
                if made is None:
                    continue
                sources = {id(source): source for part in args for source in _storages(part)}
                smaller = [each for each in sources.values() if 0 < storage_bytes(each) < made.nbytes]
                # a pointwise op repeats a smaller operand, so nothing grows, except rows that a sparse operand lacks
                if smaller and (torch.Tag.pointwise not in func.tags or storage_of(tensor) is None):
                    made.sources = tuple(map(weakref.ref, smaller))

    def _note_used(self, args: Sequence[Any]) -> None:
        """Note new parameters among the operands. What makes or copies a model reads them without a graph."""
        for tensor in _tensors(args):
            if requires_grad(tensor):
                for storage in _storages(tensor):
                    made = self._book.by_id.get(id(storage))
                    if made is not None and made.run == self.run and made.ref() is storage:
                        made.is_used = True

    def _note(self, storage: torch.UntypedStorage, *, certain: bool) -> NewStorage | None:
        """Note a storage with the line that made it, and return it, unless it is known already or empty."""
        if self._book.has(storage):
            return None
        site, caller = user_lines()
        made = self._book.add(storage, self.run, site, certain=certain)
        if made is not None:
            made.caller = caller
            made.is_constant = runs_in_import()
        return made

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
    """Return what to note of an op: the storages that it makes, places in a tensor, resizes, or changes in place."""
    schema = schema_of(func)
    if any(ret.alias_info is None for ret in schema.returns):
        return NewStorageMode.note_made
    if schema.name == _PLACES:
        return NewStorageMode.note_placed
    if schema.name == _LIFTS:
        return NewStorageMode.note_lifted
    if schema.name.startswith(_RESIZES):
        return NewStorageMode.note_resized
    first = schema.arguments[0].alias_info if schema.arguments else None
    return NewStorageMode.note_changed if first is not None and first.is_write else None


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
            line = Site(file, frame.f_lineno, frame.f_code.co_name)
            if not owner.calls_torch:
                within_python = within_python or line
            elif found is not None:
                return found, line
            else:
                found = line
        frame = frame.f_back
    return found or within_python, None


# A mode sees the ops of one thread. The calls below switch modes on for the work that other threads do meanwhile.

RUNS_A_THREAD: Final = "_bootstrap_inner"
"""The method of `threading.Thread` that runs for the whole life of a Python thread, whatever its class."""
_RUNS_A_TASK: Final = "run"
_Task: Final = getattr(concurrent.futures.thread, "_WorkItem", None)
"""What a worker of `ThreadPoolExecutor` runs: one call."""
_worker: Final = getattr(concurrent.futures.thread, "_worker", None)


class OtherThreads:
    """Switches a mode on in threads that start meanwhile, and for the tasks of thread pools.

    The workers of a `ThreadPoolExecutor` may be older. Another thread that runs already gets no mode, so the lines of
    its storages are not known.
    """

    def __init__(self, mode: NewStorageMode) -> None:
        self.mode = mode
        self._patches = Patches()

    def start(self) -> None:
        """Begin to follow threads and tasks that start."""
        if hasattr(threading.Thread, RUNS_A_THREAD):
            self._patches.put_around(threading.Thread, RUNS_A_THREAD, self._enter_thread)
        if hasattr(_Task, _RUNS_A_TASK):
            self._patches.put_around(_Task, _RUNS_A_TASK, self._enter)

    def stop(self) -> None:
        """Let the mode note nothing more; does nothing if already off. A thread that runs on keeps the idle mode."""
        if self._patches:
            self._patches.take_off()
            self.mode.is_over = True

    def _enter_thread(self, thread: threading.Thread) -> Callable[[], object] | None:
        """Follow a thread, unless it is memwatch's own or runs tasks, which are followed one by one."""
        runs_tasks = (instance_dict(thread) or {}).get("_target") is _worker
        return None if is_a(thread, OwnThread) or runs_tasks else self._enter(thread)

    def _enter(self, _thread_or_task: object) -> Callable[[], object] | None:
        # an error must not stop the thread, because whoever started it waits until it runs
        with suppress(Exception):
            self.mode.start()
            return self.mode.stop
        return None


skip_frames_of(NewStorageMode.__torch_dispatch__.__code__)
