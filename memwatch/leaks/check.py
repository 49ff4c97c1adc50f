"""check_leaks: what did this one pass leave behind?"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast

from memwatch.leaks.diagnose import diagnose
from memwatch.leaks.exemptions import Exemptions
from memwatch.leaks.leak import TensorLeakError
from memwatch.leaks.names_bound_in_block import NamesBoundInBlock
from memwatch.leaks.new_storage_mode import NewStorageMode
from memwatch.leaks.new_storages import NewStorages, YoungWatch, storages_behind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from memwatch.leaks.known_causes import KnownCauses

F = TypeVar("F", bound="Callable[..., Any]")


class check_leaks:  # noqa: N801 - used like a function
    """Raise :class:`TensorLeakError` if tensors made in the block outlive it without a good reason.

    A context manager and a decorator. Reported are cycles, loops that gc cannot free, and tensors that
    something older than the block holds. Not reported: names the block itself binds, what the decorated
    function returns, parameters, buffers, gradients and optimizer state of living parameters, and what pytest
    holds.

    If the block raises, the error is chained to that exception.

    Args:
        sites: True to note the line that made each tensor, at a few microseconds per op.
        known: what earlier checks found; a leak with a known cause is told without a look at the whole heap.

    Example:
        >>> with check_leaks():
        ...     train_step(model, batch)
    """

    def __init__(self, *, sites: bool = True, known: KnownCauses | None = None) -> None:
        self._sites = sites
        self._known = known
        self._blocks: list[_Block] = []

    def __enter__(self) -> check_leaks:
        block = _Block(NamesBoundInBlock(), sites=self._sites, known=self._known)
        self._blocks.append(block)
        block.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._blocks.pop()
        try:
            leaks = block.finish(error) if error is None or isinstance(error, Exception) else []
        finally:
            block.stop()
        if leaks:
            raise TensorLeakError(leaks) from error

    def keep(self, *objects: object) -> None:
        """Exempt what the caller of the block holds: its arguments and its result."""
        self._blocks[-1].exempt.objects.update(map(id, objects))

    def __call__(self, fn: F) -> F:
        """Check every call of a function, plain or ``async``."""
        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def checked_async(*args: Any, **kwargs: Any) -> Any:
                with check_leaks(sites=self._sites, known=self._known) as check:
                    result = await fn(*args, **kwargs)
                    check.keep(args, kwargs, result)
                return result

            return cast("F", checked_async)

        @functools.wraps(fn)
        def checked(*args: Any, **kwargs: Any) -> Any:
            with check_leaks(sites=self._sites, known=self._known) as check:
                result = fn(*args, **kwargs)
                check.keep(args, kwargs, result)
            return result

        return cast("F", checked)


class _Block:
    """One entry of the block: what watches it and what it may keep."""

    def __init__(self, names: NamesBoundInBlock, *, sites: bool, known: KnownCauses | None) -> None:
        self.exempt = Exemptions()
        self._known = known
        self._names = names
        self._young = YoungWatch()
        self._book = NewStorages()
        self._watch = NewStorageMode(self._book, 1) if sites else None

    def start(self) -> None:
        self._young.start()
        if self._watch is not None:
            self._watch.start()

    def finish(self, error: BaseException | None) -> list[Any]:
        """Look at the survivors."""
        if self._watch is not None:
            self._watch.stop()
        self._note_survivors()
        survivors = self._book.alive()
        if not survivors:
            return []
        if error is not None:
            self.exempt.objects.add(id(error))
        self._names.exempt(self.exempt)
        return diagnose(survivors, self.exempt, runs=1, per_call=False, known=self._known)

    def stop(self) -> None:
        """Take the mode off and resume garbage collection; a second call does nothing."""
        if self._watch is not None:
            self._watch.stop()
        self._young.stop()

    def _note_survivors(self) -> None:
        young = self._young.survivors()
        if young:
            for storage in storages_behind(young):
                self._book.add(storage, 1)
