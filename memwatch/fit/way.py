"""Define ways to run a training step with less memory. Each way is some lines of Python, which memwatch runs as is.

The lines contain the program's own names for its model and its optimizers, so that they can be pasted into it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.tensors import gradient_hooks
from memwatch.kinds.fit import Kind
from memwatch.sizes import format_bytes
from memwatch.way_lines import LINES, joined, of_blocks
from memwatch.words import fit as words
from memwatch.words.ways import STANDS_FOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from memwatch.planner.plan import Plan


@dataclass(frozen=True)
class Expressions:
    """The program's expressions for the objects in the lines of a way.

    Attributes:
        unknown: words for objects without an expression. A comment asks the user to replace them.
        function: the function in which they are valid; "" for the body of a script, or if it is not known.
        are_made_later: whether a library makes the optimizers when the training begins, so that no code before it can
            name them.
    """

    model: str = "model"
    optimizers: tuple[str, ...] = ("optimizer",)
    unknown: tuple[str, ...] = ()
    function: str = ""
    are_made_later: bool = False

    @classmethod
    def of(cls, names: Mapping[int, str], model: nn.Module, optimizers: Sequence[Optimizer]) -> Expressions:
        """Return the expressions for a model and its optimizers, with a word for each object that has none.

        Args:
            names: the expressions, by the `id` of the object.
            model: the model.
            optimizers: its optimizers.
        """
        fallback = (
            ["optimizer"] if len(optimizers) == 1 else [f"optimizer_{n}" for n in range(len(optimizers))]
        )
        objects = zip((model, *optimizers), ("model", *fallback), strict=True)
        named = [(names.get(id(each)), word) for each, word in objects]
        of_model, *of_optimizers = [name or word for name, word in named]
        return cls(of_model, tuple(of_optimizers), tuple(word for name, word in named if name is None))


@dataclass(frozen=True)
class Change:
    """One change of a model or of its optimizers.

    Attributes:
        kind: its kind.
        names: the modules that it changes.
        segments: into how many parts a chain is cut.
        keeps_buffers: whether the buffers of a block are put back after it was computed again.
        budget_bytes: peak increase that a plan may have.
        plan: the plan to apply.
        device: the kind of device that computes in half precision, such as "cuda".
    """

    kind: Kind
    names: tuple[str, ...] = ()
    segments: int = 0
    keeps_buffers: bool = False
    budget_bytes: int = 0
    plan: Plan | None = field(default=None, compare=False, repr=False)
    device: str = ""

    def lines(self, program: Expressions) -> str:
        """Return the lines that make this change."""
        key = f"{self.kind.value}, buffers" if self.keeps_buffers else self.kind.value
        template = LINES[key]
        if self._is_later(program):
            return LINES[f"{key}, later"]
        if self.kind.is_of_optimizers:
            return "".join(template.format(optimizer=optimizer) for optimizer in program.optimizers)
        if "{names}" in template:
            return of_blocks(key, program.model, self.names, device=self.device)
        options = {"budget": self.budget_bytes}
        return template.format(
            model=program.model, name="".join(self.names[:1]), segments=self.segments, options=options
        )

    def _is_later(self, program: Expressions) -> bool:
        """Return True if its lines change the optimizers when they exist, and need no name for them."""
        return program.are_made_later and f"{self.kind.value}, later" in LINES

    def words_to_replace(self, program: Expressions) -> list[str]:
        """Return the words in its lines that the user has to replace."""
        code = "" if self._is_later(program) else re.sub(r"#.*", "", self.lines(program))
        return [word for word in program.unknown if re.search(rf"(?<![\w.'\"]){word}(?!\w)", code)]

    @property
    def name(self) -> str:
        """Its kind, as a user selects it, and the objects that it changes, such as modules."""
        return self.kind.value + self._filled(words.DETAILS.get(self.kind.value, ""))

    @property
    def text(self) -> str:
        """Its effect, in a few words."""
        return self._filled(words.CHANGES[self.kind.value])

    def _filled(self, template: str) -> str:
        return template.format(
            segments=self.segments, name="".join(self.names[:1]) or "model",
            budget=format_bytes(self.budget_bytes), which=words.modules_as_text(self.names),
            noun=words.MODULE if len(self.names) == 1 else words.MODULES,
        )  # fmt: skip


@dataclass(frozen=True)
class Way:
    """Some changes together. A way without changes is the program itself."""

    changes: tuple[Change, ...] = field(default=())

    @property
    def name(self) -> str:
        """The way in a few words: its kinds, as a user selects them, and the objects that they change."""
        return " + ".join(change.name for change in self.changes) or words.PLAIN

    @property
    def text(self) -> str:
        """The effects of its changes, in a few words."""
        return "; ".join(change.text for change in self.changes) or words.CHANGES["plain"]

    @property
    def is_planned(self) -> bool:
        """Whether memwatch itself runs in the steps, and measures the first of them to plan the others."""
        return any(change.kind in (Kind.POLICY, Kind.BACKEND) for change in self.changes)

    @property
    def steps_in_backward(self) -> bool:
        """Whether hooks of the parameters call the optimizer's step."""
        return any(change.kind is Kind.STEP_IN_BACKWARD for change in self.changes)

    @property
    def computes_again(self) -> bool:
        """Whether a step does the same work as before, and computes some of it twice."""
        kinds = {change.kind for change in self.changes}
        return bool(kinds) and kinds <= {Kind.CHECKPOINT, Kind.CHAIN, Kind.POLICY}

    @property
    def checkpointed(self) -> tuple[str, ...]:
        """The modules whose forward runs again as a whole."""
        return tuple(
            name for change in self.changes if change.kind is Kind.CHECKPOINT for name in change.names
        )

    def spares_work_of(self, other: Way) -> bool:
        """Return True if this way recomputes only a part of what another way recomputes, and is otherwise the same.

        A submodule is a part of its module. A step in the backward computes the same as a step after the backward.
        """
        if self == other or (self.steps_in_backward and not other.steps_in_backward):
            return False
        # a step in the backward frees gradients early, and updates one parameter at a time
        ignored = {Kind.CHECKPOINT, Kind.STEP_IN_BACKWARD}
        ignored |= {Kind.FOREACH, Kind.GRADIENTS} if other.steps_in_backward else set()
        rest, rest_of_other = (
            [change for change in way.changes if change.kind not in ignored] for way in (self, other)
        )
        mine, others = set(self.checkpointed), set(other.checkpointed)
        is_part = all(any(name == it or name.startswith(f"{it}.") for it in others) for name in mine)
        is_less = mine != others or self.steps_in_backward != other.steps_in_backward
        return rest == rest_of_other and is_part and is_less

    @property
    def has_settings_only(self) -> bool:
        """Whether it has changes, and each of them is one argument or one line."""
        return bool(self.changes) and all(change.kind.is_setting for change in self.changes)

    def spares_settings_of(self, other: Way) -> bool:
        """Return True if this way is the other one without some of its settings."""
        more = set(other.changes) - set(self.changes)
        return set(self.changes) < set(other.changes) and all(change.kind.is_setting for change in more)

    def also(self, *changes: Change) -> Way:
        """Return this way with more changes."""
        return Way((*self.changes, *changes))

    @property
    def plan(self) -> Plan | None:
        """The plan that the lines apply; None for lines without a plan."""
        return next((change.plan for change in self.changes if change.plan is not None), None)

    def code(self, program: Expressions) -> str:
        """Return the lines that apply the way in a program."""
        lines = joined(change.lines(program) for change in self.changes)
        replaced = dict.fromkeys(word for change in self.changes for word in change.words_to_replace(program))
        return "".join(f"{STANDS_FOR.format(word=word)}\n" for word in replaced) + lines


class Applied:
    """An active way; `undo` takes it back."""

    def __init__(self, way: Way, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        parameters = [parameter for group in _groups(optimizers) for parameter in group["params"]]
        hooks = [gradient_hooks(parameter) for parameter in parameters] if way.steps_in_backward else []
        before = [(space, dict(space)) for space in [*_spaces(model, optimizers), *hooks]]
        names = tuple(f"optimizer_{number}" for number in range(len(optimizers)))
        space: dict[str, Any] = {
            "model": model,
            "plan": way.plan,
            **dict(zip(names, optimizers, strict=True)),
        }
        exec(compile(way.code(Expressions("model", names)), "<memwatch.fit>", "exec"), space)  # noqa: S102  # its own
        for name in ("model", "plan", *names, *_OF_LOOPS):
            space.pop(name, None)  # a function of the lines keeps all their names alive
        self._changed = [(after, _changes(former, after)) for after, former in before]

    def undo(self) -> None:
        """Take back the changes of the way, and leave all other changes."""
        for space, changes in self._changed:
            for key, (before, _) in changes.items():
                _set(space, key, before)

    def redo(self) -> None:
        """Apply the way again, after everything was put back."""
        for space, changes in self._changed:
            for key, (_, after) in changes.items():
                _set(space, key, after)


_MISSING: Any = object()
_OF_LOOPS: Final = ("block", "chain", "contexts", "group", "hook", "logits_head", "one", "parameter")
"""Names that the lines bind, and that none of their functions reads."""


def _spaces(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[dict[Any, Any]]:
    """Return the dictionaries whose entries a way may set."""
    found = [module.__dict__ for module in model.modules()]
    for optimizer in optimizers:
        found += [optimizer.__dict__, *optimizer.param_groups]
        found += [value for value in optimizer.__dict__.values() if isinstance(value, dict)]
    return found


def _groups(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def _changes(before: dict[Any, Any], after: dict[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    keys = [*before, *(key for key in after if key not in before)]
    pairs = {key: (before.get(key, _MISSING), after.get(key, _MISSING)) for key in keys}
    return {key: (old, new) for key, (old, new) in pairs.items() if old is not new}


def _set(space: dict[Any, Any], key: Any, value: Any) -> None:
    if value is _MISSING:
        space.pop(key, None)
    else:
        space[key] = value


def expressions_of(
    spaces: Sequence[Mapping[str, Any]], model: nn.Module, optimizers: Sequence[Optimizer]
) -> Expressions:
    """Return the names of a model and its optimizers: a variable, an attribute of a variable, or else a word.

    Args:
        spaces: variables by name; earlier spaces come first.
        model: the model.
        optimizers: its optimizers.
    """
    found = {id(each): _name(spaces, each) for each in (model, *optimizers)}
    names = {key: name for key, name in found.items() if name is not None}
    return Expressions.of(names, model, optimizers)


def variables_of(step: Callable[[], Any]) -> list[Mapping[str, Any]]:
    """Return the variables that a function can see outside itself."""
    function = step.__func__ if isinstance(step, MethodType) else step
    if not isinstance(function, FunctionType):
        return []
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return [{name: cell.cell_contents for name, cell in cells.items() if _is_set(cell)}, function.__globals__]


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # reading fails for a variable without a value
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
