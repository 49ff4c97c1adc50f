"""Who holds each of many storages: one pass over the graph for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from memwatch.heap.nearby import Nearby
from memwatch.heap.paths import Step, steps_of
from memwatch.heap.search import search
from memwatch.heap.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

_KINDS: Final = (
    ("parameter '", "parameter"),
    ("buffer '", "buffer"),
    ("._backward_hooks", "hook"),
    ("hooks", "hook"),
    ("(ctx)", "autograd ctx"),
    ("saved ", "autograd node"),
    ("ctx.", "autograd ctx"),
    (".variable of", "autograd node"),
    ("next_functions", "autograd node"),
    (".grad of", "gradient"),
    (".grad_fn of", "autograd node"),
    ("closure cell", "closure cell"),
    ("suspended", "generator"),
    ("argument `", "argument"),
    ("local `", "local"),
    ("thread local", "thread"),
    ("exception", "exception"),
    ("traceback", "exception"),
    ("default argument", "default argument"),
    ("lru_cache", "cache"),
    ("item [", "item"),
    ("key ", "item"),
    ("member of", "item"),
    ("field .", "attribute"),
    ("class attribute", "class attribute"),
    ("attribute .", "attribute"),
    ("global `", "global"),
)
_SELF_EXPLAINING: Final = ("storage of", "._base of")


@dataclass(frozen=True, slots=True)
class Holder:
    """The reference that keeps one storage alive, as text.

    Attributes:
        kind: "local", "argument", "global", "closure cell", "attribute", "class attribute", "item",
        "parameter",
            "buffer", "gradient", "optimizer state", "autograd node", "autograd ctx", "hook", "generator",
            "exception", "thread", "cache", "default argument", "running call" or "C++ only".
        name: the words of the last reference, such as ``local `x` of train (train.py:41)``.
        function: the running call from which the path starts, or None.
        file: source file to edit, if known.
        line: line in that file.
        path: the whole retention path, root first.
    """

    kind: str
    name: str
    function: str | None
    file: str | None
    line: int | None
    path: tuple[Step, ...]


UNKNOWN: Final = Holder(
    "C++ only", "no Python reference: C++ or a temporary of a running call", None, None, None, ()
)


def holders_of(
    storages: Sequence[torch.UntypedStorage], *, deep: bool = True, max_objects: int = 20_000
) -> list[Holder]:
    """Find the holder of each storage.

    First looks near the running calls, which is cheap and bounded; what is not found there is looked for in
    one
    snapshot of the whole heap. No user code runs.

    Args:
        storages: the storages, alive.
        deep: False to skip the snapshot (some tenths of a second in a large process) and answer "C++ only"
        instead.
        max_objects: the most objects to look at near the running calls.

    Returns:
        One holder per storage, in order.
    """
    found: dict[int, Holder] = {}
    with Nearby(map(id, storages), max_objects, (id(storages),)) as nearby:
        for storage in storages:
            path = nearby.path(storage)
            if path:
                found[id(storage)] = _holder(steps_of(nearby, path))
    missing = [storage for storage in storages if id(storage) not in found]
    if missing and deep:
        with Snapshot(missing) as snapshot:
            asked = set(snapshot.positions([id(storages), id(missing)]))
            tree = search(snapshot, snapshot.root_groups(runner=True), closed=snapshot.barriers() | asked)
            for storage in missing:
                chain = tree.path(snapshot.position(storage))
                if chain:
                    found[id(storage)] = _holder(steps_of(snapshot, chain))
    return [found.get(id(storage), UNKNOWN) for storage in storages]


def _holder(steps: list[Step]) -> Holder:
    telling = [step for step in steps if not step.words.startswith(_SELF_EXPLAINING)]
    if not telling:
        return UNKNOWN
    last = telling[-1]
    kind = next((kind for words, kind in _KINDS if words in last.words), "attribute")
    if any("attribute .state of" in step.words for step in telling) and kind == "item":
        # an optimizer's state is keyed by the parameters: a path may end at a key as well as at a value
        kind = "parameter" if last.edge.target and last.edge.target.name == "Parameter" else "optimizer state"
    known = [step for step in reversed(telling) if step.edge.file is not None]
    where = (known[0] if known else last).edge
    return Holder(kind, last.words, _function(telling[0]), where.file, where.line, tuple(telling))


def _function(first: Step) -> str | None:
    return (
        first.words.rpartition(" of ")[2].partition(" (")[0]
        if first.words.startswith(("local", "argument"))
        else None
    )
