"""Choose the one reference of a path or a cycle that a person should cut."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from memwatch._torch.modules import HOOK_TABLES
from memwatch.kinds.edges import Edge, EdgeKind, VertexKind
from memwatch.leaks.cause import series_of
from memwatch.own_code import CodeOwner, code_owner
from memwatch.words.edges import edge_phrase
from memwatch.words.leaks import holder_phrase

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from memwatch.heap.paths import Step
    from memwatch.leaks.leak import Survivor

# Torch's tables of hooks on a retention path: `_forward_hooks` of a module, `_backward_hooks` of a tensor.


def hook_entry(path: Sequence[Edge]) -> int | None:
    """Return the place on a path of the first reference from a table of hooks to a hook, or None.

    A dictionary of the program's own may have numbers as keys too: what leads to the table tells them apart.
    """
    for place in range(1, len(path)):
        if is_hook_number(path[place]) and _leads_to_table(path[place - 1]):
            return place
    return None


def is_registration(cut: Edge, path: Sequence[Edge]) -> bool:
    """Return True if registering a hook made the reference to cut."""
    place = hook_entry(path)
    return cut.kind.row.is_hook_table or (place is not None and path[place] is cut)


def held_by_hook(cut: Edge | None, path: Sequence[Edge]) -> bool:
    """Return True if the reference to cut lies behind a hook that was registered before."""
    place = hook_entry(path)
    return place is not None and any(edge is cut for edge in path[place + 1 :])


def _leads_to_table(edge: Edge) -> bool:
    return edge.kind.row.is_hook_table or (
        edge.kind in (EdgeKind.ATTRIBUTE, EdgeKind.GLOBAL) and edge.name in HOOK_TABLES
    )


_UNTOLD: Final = 1 + max(kind.row.cut_rank or 0 for kind in EdgeKind)
_LONGEST: Final = 5  # references in the words for a holder


def edge_to_cut(steps: Sequence[Step]) -> Step | None:
    """Return the reference of a cycle that is easiest to edit, or None without a cycle."""
    return min(steps, key=_rank, default=None)


def cycle_key(steps: Sequence[Step], cut: Step) -> Hashable:
    """Return what is equal for survivors of one cycle, wherever it was entered: one edit ends it for all."""
    rank = _rank_of(cut.edge)
    return min((series_of(step.edge) for step in steps if _rank_of(step.edge) == rank), key=repr)


def edit_of(edge: Edge) -> Hashable:
    """Return an equal key for all references that one edit ends: those of one line, or else of one series."""
    if edge.kind is EdgeKind.ATTRIBUTE and edge.line is not None:  # for any subclass
        return edge.kind, edge.name, edge.file, edge.line
    return series_of(edge)


def edit_rank(step: Step) -> tuple[int, bool, bool, bool]:
    """Return how easy a reference of a cycle is to edit; the smallest is the easiest."""
    edge = step.edge
    # a coroutine of Python's, in which one of the program waits
    in_library = _is_of_suspended_call(edge) and not _is_programs(edge)
    # of a child's parent and the parent's list of children the first can be made weak; a list cannot
    to_container = edge.target is not None and edge.target.kind is VertexKind.CONTAINER
    # The caller has the argument of a function too, so the object stays alive if the reference is weak.
    return _rank_of(edge), in_library, to_container, not edge.of_argument


def _is_of_suspended_call(edge: Edge) -> bool:
    return edge.kind.row.is_call_variable and edge.owner is not None and edge.owner.kind.is_suspended_call


def _is_programs(edge: Edge) -> bool:
    return edge.file is not None and code_owner(edge.file) is CodeOwner.PROGRAM


def _is_await(edge: Edge) -> bool:
    """Return True for the reference from a coroutine of the program to the coroutine or future that it waits for."""
    is_coroutine = edge.owner is not None and edge.owner.kind is VertexKind.COROUTINE
    return edge.kind is EdgeKind.TEMPORARY and is_coroutine and _is_programs(edge)


def _rank(step: Step) -> tuple[tuple[int, bool, bool, bool], int]:
    rank = edit_rank(step)
    of_every_class = step.edge.kind in (EdgeKind.CLASS_DESCRIPTOR, EdgeKind.CLASS_BASES)
    return rank, 0 if of_every_class or rank[0] > _UNTOLD else step.start


def _rank_of_kind(kind: EdgeKind) -> int:
    return _UNTOLD if kind.row.cut_rank is None else kind.row.cut_rank


def _rank_of(edge: Edge) -> int:
    name = edge.name or ""
    if edge.kind.row.is_plumbing or (edge.kind is EdgeKind.ATTRIBUTE and name.startswith("__")):
        return _UNTOLD + 1
    # the arguments of `ctx.save_for_backward`; operators save only tensors that they need
    if edge.kind in (EdgeKind.SAVED, EdgeKind.UNPACK_HOOK):
        return _rank_of_kind(EdgeKind.SAVED) if is_saved_by_ctx(edge) else _UNTOLD
    if edge.kind is EdgeKind.ATTRIBUTE and _is_torchs(edge):
        return _rank_of_kind(EdgeKind.GLOBAL)
    if _is_await(edge):
        return _rank_of_kind(EdgeKind.LOCAL)
    if edge.kind is EdgeKind.VALUE and not _is_text_key(name):
        return _rank_of_kind(EdgeKind.KEY)
    return _rank_of_kind(edge.kind)


def _is_torchs(edge: Edge) -> bool:
    """Return True for a table of hooks, and for torch's wrapper of a hook. Nobody writes these references."""
    if edge.name in HOOK_TABLES:
        return True
    private = edge.owner is not None and edge.owner.name.startswith("_")
    return private and is_torchs_file(edge)


def is_torchs_file(edge: Edge) -> bool:
    """Return True for a reference that a file of torch makes."""
    return edge.file is not None and code_owner(edge.file) is CodeOwner.TORCH


def is_saved_by_ctx(edge: Edge) -> bool:
    """Return True for one of several tensors that a custom Function saved."""
    return edge.name == "tensors" and edge.position is not None


def _is_text_key(key: str) -> bool:
    return "'" in key


def _is_telling(step: Step) -> bool:
    return not is_hook_number(step.edge) and _rank_of(step.edge) < _UNTOLD


def is_hook_number(edge: Edge) -> bool:
    """Return True for an entry of torch's tables of hooks, which are keyed by running numbers."""
    is_table = edge.owner is not None and edge.owner.name == "OrderedDict"
    return edge.kind is EdgeKind.VALUE and is_table and (edge.name or "").isdigit()


def entry_step(steps: Sequence[Step], young: Sequence[bool]) -> Step | None:
    """Return the reference through which an object from before the block holds an object born in it.

    For a gradient whose parameter is only kept as a key of optimizer state, it is the reference to the parameter.

    Args:
        steps: the retention path.
        young: for each object of its chain, whether it was born in the block.
    """
    before: Step | None = None
    for step in steps:
        if young[step.end] and not (step.start and young[step.start]):
            is_of_key = step.edge.kind is EdgeKind.GRAD and before is not None
            return before if is_of_key and before.edge.kind is EdgeKind.KEY else step  # type: ignore[union-attr]
        before = step
    visible = [step for step in steps if not step.hidden]
    return visible[-1] if visible else (steps[0] if steps else None)


def holder_of(survivor: Survivor) -> tuple[str, tuple[Edge, ...]]:
    """Return who holds a survivor, in one phrase, and the references that the phrase names."""
    if not survivor.steps:
        edge = Edge(EdgeKind.C_CODE)
        return edge_phrase(edge), (edge,)
    if survivor.kind.is_reached:
        told = _along_path(survivor.steps, survivor.cut)
        return holder_phrase(told), tuple(edge for edge in told if edge is not None)
    edges = _in_cycle(survivor)
    return holder_phrase(edges, is_path=False), tuple(edges)


def container_of(survivor: Survivor) -> str:
    """Return the container that got an entry with the tensor, in one phrase; empty if the cut is no entry."""
    cut = survivor.cut
    if cut is None or not (cut.edge.kind.row.is_entry or _is_part(cut.edge)) or cut is survivor.steps[0]:
        return ""
    before = [*itertools.takewhile(lambda step: step is not cut, survivor.steps)]
    return holder_phrase(_along_path(before, None))


def _is_part(edge: Edge) -> bool:
    """Return True for a part of a list or dictionary of modules."""
    if edge.kind is not EdgeKind.SUBMODULE or edge.owner is None:
        return False
    classes = {edge.owner.name, *(name for name, _ in edge.owner.bases)}
    return (edge.name or "").isdigit() or "ModuleDict" in classes


def _in_cycle(survivor: Survivor) -> list[Edge]:
    """Return the reference to cut and the most telling others; the first one out of the cycle explains nothing."""
    steps = survivor.steps
    first = survivor.cut or steps[0]
    exits = steps[survivor.cycle_length : survivor.cycle_length + 1] if survivor.looped else []
    others = (
        step
        for step in steps
        if step is not first and all(step is not exit_ for exit_ in exits) and _is_telling(step)
    )
    return [first.edge, *(step.edge for step in sorted(others, key=_rank)[: _LONGEST - 1])]


def _along_path(steps: Sequence[Step], cut: Step | None) -> list[Edge | None]:
    """Return the references that Python shows, root first; None stands for those left out of a long path."""
    visible = [step.edge for step in steps if not step.hidden or step is cut] or [steps[0].edge]
    if len(visible) <= _LONGEST + 2:
        return list(visible)
    start, end = visible[:2], visible[-_LONGEST + 1 :]
    is_told = cut is None or any(cut.edge is edge for edge in (*start, *end))
    return [*start, *([] if is_told or cut is None else [cut.edge]), None, *end]
