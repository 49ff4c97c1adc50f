"""The contexts of one checkpointed region: of its forward, and of running it again."""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from torch import Tensor, compiler
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from memwatch.encoding.values import leaves
from memwatch.replay.overloads import overload_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from memwatch._torch.dispatch import OpOverload
    from memwatch.replay.checkpoints.choose import Choice

    Contexts: TypeAlias = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

Sizes: TypeAlias = "Mapping[OpOverload, list[int]]"
"""By overload, for each call of it in a region: the bytes of its results if they are saved, 0 if not."""

_SAVE, _AGAIN = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
_NOTHING: Final[list[OpOverload]] = []
_SHOWS_RESULT: Final = "op_output" in inspect.signature(SelectiveCheckpointContext.__init__).parameters


def sizes_by_region(choice: Choice) -> dict[int, Sizes]:
    """Return what each region saves, by its key; regions that save nothing are left out."""
    found: dict[int, dict[OpOverload, list[int]]] = {}
    for key, name, place in sorted(choice.saved):
        overload = overload_named(name)
        sizes = found.setdefault(key, {}).setdefault(overload, [])
        sizes += [0] * (place - len(sizes)) + [choice.saved[key, name, place]]
    return dict(found)


def contexts_of(sizes: Sizes | None, around: Iterable[Around] = ()) -> Contexts:
    """Return the two contexts of a region.

    Args:
        sizes: what the region saves, None for a plain checkpoint.
        around: called when the region begins to run again.
    """
    if sizes or compiler.is_compiling():
        forward, again = create_selective_checkpoint_contexts(policy_of(sizes) if sizes else _NOTHING)
    else:
        forward, again = contextlib.nullcontext(), contextlib.nullcontext()
    entered = tuple(around)
    return forward, RunAgain(again, entered) if entered else again


def policy_of(sizes: Sizes) -> Callable[..., CheckpointPolicy]:
    """Return the policy of one run of a region.

    The calls of an overload are counted, as torch itself does to find what was saved. A result that is larger than the
    recorded one is not saved, so that a region never takes more than was planned for it.
    """
    left = {overload: iter(each) for overload, each in sizes.items()}
    decided: dict[OpOverload, deque[CheckpointPolicy]] = {}

    def policy(context: Any, op: OpOverload, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        planned = left.get(op)
        if planned is None:
            return _AGAIN
        if context.is_recompute:  # torch before 2.13 asks once more, and does not show the result
            return decided[op].popleft() if decided.get(op) else _AGAIN
        nbytes = next(planned, 0)
        if _SHOWS_RESULT:
            return _SAVE if nbytes and _nbytes(context.op_output) <= nbytes else _AGAIN
        decision = _SAVE if nbytes else _AGAIN
        decided.setdefault(op, deque()).append(decision)
        return decision

    return policy


def _nbytes(result: Any) -> int:
    if isinstance(result, Tensor):
        return result.untyped_storage().nbytes()
    return sum(each.untyped_storage().nbytes() for each in leaves(result) if isinstance(each, Tensor))


Around: TypeAlias = "Callable[[], AbstractContextManager[Any]]"


@dataclass(slots=True)
class RunAgain:
    """The context in which a region runs again, with others around it."""

    inner: AbstractContextManager[Any]
    around: tuple[Around, ...]
    _stack: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        """Enter all contexts."""
        with contextlib.ExitStack() as stack:
            for each in self.around:
                stack.enter_context(each())
            stack.enter_context(self.inner)
            self._stack = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave all contexts; torch leaves them by an exception once it has what it needs."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.__exit__(kind, error, trace)
