"""Find the program's names for its model and its optimizers, so that printed lines can be pasted into it."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from memwatch.fit.way import Expressions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer


def expressions_of(
    spaces: Sequence[Mapping[str, Any]], model: nn.Module, optimizers: Sequence[Optimizer]
) -> Expressions:
    """Return the names of a model and its optimizers: a variable, an attribute of one, or else a word for it.

    Args:
        spaces: variables by name; earlier spaces come first.
        model: the model.
        optimizers: its optimizers.
    """
    fallback = ["optimizer"] if len(optimizers) == 1 else [f"optimizer_{n}" for n in range(len(optimizers))]
    named = [_name(spaces, each) or name for each, name in zip(optimizers, fallback, strict=True)]
    return Expressions(_name(spaces, model) or "model", tuple(named))


def variables_of(step: Callable[[], Any]) -> list[Mapping[str, Any]]:
    """Return the variables that a function can see outside itself."""
    function = step.__func__ if isinstance(step, MethodType) else step
    if not isinstance(function, FunctionType):
        return []
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return [{name: cell.cell_contents for name, cell in cells.items() if _is_set(cell)}, function.__globals__]


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # reading is the question
    except ValueError:
        return False
    return True


def _name(spaces: Sequence[Mapping[str, Any]], wanted: object) -> str | None:
    for find in (_variables, _attributes):
        for space in spaces:
            name = next((name for name, value in find(space) if value is wanted), None)
            if name is not None:
                return name
    return None


def _variables(space: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, value in list(space.items()) if not name.startswith("_"))


def _attributes(space: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in _variables(space):
        held = getattr(value, "__dict__", None)
        if type(held) is dict and not isinstance(value, type):
            yield from ((f"{name}.{attribute}", each) for attribute, each in list(held.items()))
