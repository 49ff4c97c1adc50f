"""Derive from a recorded retention path the holder's kind, the reference to cut, and the expression to write.

All of it follows from the kinds of the references. The words are in `memwatch.words.holders`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from memwatch.kinds.edges import EdgeKind, VertexKind
from memwatch.kinds.holders import HolderKind

if TYPE_CHECKING:
    from memwatch.capture.paths import Path
    from memwatch.kinds.edges import Edge

_HOOK_TABLE: Final = "hooks"
"""How torch's names for dictionaries of hooks end: `_forward_hooks`, `_state_dict_pre_hooks`."""

_SILENT_ON_STACK: Final = (EdgeKind.ITEM, EdgeKind.REFERENCE)


@dataclass(frozen=True)
class HolderPath:
    """A retention path, read.

    Attributes:
        edges: the references, the root's first; at least one.
    """

    edges: Path

    @property
    def head(self) -> Edge:
        """The reference from the root."""
        return self.edges[0]

    @property
    def kind(self) -> HolderKind:
        """The kind of holder."""
        if self.is_graph:
            return HolderKind.GRAPH
        if self.head.kind is EdgeKind.EVALUATION_STACK:
            if self.suspended is not None:
                return HolderKind.GENERATOR
            return self._kind_on_the_way if self.is_kept_off_stack else HolderKind.EVALUATION_STACK
        if self.head.kind is EdgeKind.C_CODE:
            return HolderKind.CPP_ONLY
        variable = self.head.kind.row.root_holder
        if variable is None:
            return HolderKind.GLOBAL  # a module that no running call belongs to, or a class
        if self.accessors is None and self._on_the_way:
            return HolderKind.HOOK if self.is_of_hook else self._kind_on_the_way
        return HolderKind.ATTRIBUTE if self.accessors else variable

    @property
    def suspended(self) -> Edge | None:
        """The variable of a suspended generator that a running loop iterates over, or None.

        The variable keeps its value, whichever call runs the loop.
        """
        inner = self.edges[1] if len(self.edges) > 1 else None
        if self.head.kind is not EdgeKind.EVALUATION_STACK or inner is None:
            return None
        is_variable = inner.kind is EdgeKind.LOCAL and inner.owner is not None
        return inner if is_variable and _kind_of_edge(inner) is HolderKind.GENERATOR else None

    @property
    def is_kept_off_stack(self) -> bool:
        """Whether a function or autograd's `ctx` keeps the memory, but the search found nothing that refers to these.

        torch's C++ code may refer to them: a node to its `ctx`, and an older tensor to its hooks. The reference to edit
        is the cell of the function or the attribute of `ctx`, whatever leads to them.
        """
        if self.head.kind is not EdgeKind.EVALUATION_STACK or self.is_graph or self.suspended is not None:
            return False
        return any(_is_off_stack(edge) for edge in self._on_the_way)

    @property
    def _kind_on_the_way(self) -> HolderKind:
        """The kind of holder of the reference nearest to the memory that has one. This is the reference to edit."""
        known = (kind for edge in reversed(self._on_the_way) if (kind := _kind_of_edge(edge)) is not None)
        return next(known, HolderKind.ATTRIBUTE)

    @property
    def may_be_from_earlier_sample(self) -> bool:
        """Whether an earlier sample found the path, because samples search with gc only once for each storage."""
        in_cpp = self.head.kind is EdgeKind.C_CODE or self.edges[-1].kind is EdgeKind.SHARED_MEMORY
        return self.suspended is not None or self.is_kept_off_stack or in_cpp

    @property
    def is_graph(self) -> bool:
        """Whether the path ends in an autograd graph that keeps the memory."""
        return self.edges[-1].kind is EdgeKind.GRAPH

    @property
    def is_of_hook(self) -> bool:
        """Whether a hook lies on the path."""
        return any(map(_is_hook_table, self._on_the_way))

    @property
    def is_of_torch(self) -> bool:
        """Whether the root is a variable of a call of torch's own."""
        owner = self.head.owner
        in_torch = self.head.is_torchs or (owner is not None and bool(owner.library))
        return in_torch and self.head.kind.row.is_call_variable

    @property
    def is_inside(self) -> bool:
        """Whether the root's variable refers to a container or an object, and that to the memory."""
        return len(self.edges) > (2 if self.head.kind is EdgeKind.MODULE else 1)

    @property
    def _on_the_way(self) -> Path:
        """The references after the root's. The step from a numpy array to the tensor of its memory is left out."""
        edges = self.edges[1:-1] if self.is_graph else self.edges[1:]
        while edges and edges[-1].kind in (EdgeKind.NUMPY_BASE, EdgeKind.SHARED_MEMORY):
            edges = edges[:-1]
        return edges

    @cached_property
    def accessors(self) -> Path | None:
        """The references of an expression that starts at the variable, or None if Python cannot write it.

        Items at the end are left out: the report names the container.
        """
        if self.head.kind is EdgeKind.EXCEPTION_HANDLED or not all(map(_can_write, self._on_the_way)):
            return None
        accessors = list(self._on_the_way)
        while accessors and accessors[-1].kind in (EdgeKind.ITEM, EdgeKind.VALUE):
            accessors.pop()
        return tuple(accessors)

    @property
    def telling(self) -> Edge | None:
        """The last reference on the path whose words name the place to edit, or None."""
        if self.head.kind is EdgeKind.EVALUATION_STACK:
            edges = [edge for edge in self._on_the_way if edge.kind not in _SILENT_ON_STACK]
            return edges[-1] if edges else None
        telling = [edge for edge in self._on_the_way if not edge.kind.row.is_silent] or self._on_the_way
        return telling[-1] if telling else None

    @property
    def is_direct(self) -> bool:
        """Whether a variable of a call refers to the memory itself, through no container or object."""
        return self.head.kind is not EdgeKind.C_CODE and not self._on_the_way

    @property
    def place(self) -> Path | None:
        """The references, if an expression from a variable names one value at a time; None if they may have many.

        The last one may be the value of a key: another key of the dictionary is another place.
        """
        if not self.head.kind.row.is_variable or self.accessors is None or self.is_graph:
            return None
        way = self._on_the_way[:-1] if self.is_value_of_key else self._on_the_way
        return self.edges if all(edge.kind.row.is_fixed_place for edge in way) else None

    @property
    def is_value_of_key(self) -> bool:
        """Whether the memory is the value of a key of a dictionary."""
        return bool(self._on_the_way) and self._on_the_way[-1].kind is EdgeKind.VALUE

    @property
    def ends_in_container(self) -> bool:
        """Whether the memory is an item of a container, which keeps it when the next one is put in."""
        return bool(self._on_the_way) and self._on_the_way[-1].kind in (
            EdgeKind.ITEM,
            EdgeKind.VALUE,
            EdgeKind.MEMBER,
        )

    @property
    def links_objects(self) -> bool:
        """Whether an object keeps the memory that another object of its class refers to, as in `state.prev.output`."""
        owners = [
            None
            if edge.kind is not EdgeKind.ATTRIBUTE or edge.owner is None
            else (edge.owner.kind, edge.owner.name)
            for edge in self.edges
        ]
        return any(one is not None and one == other for one, other in pairwise(owners))

    @property
    def last_attribute(self) -> Edge | None:
        """The last reference on the path from an object or a cache, or None."""
        named = (
            edge
            for edge in reversed(self._on_the_way)
            if edge.kind.row.is_kept_by_owner and edge.owner is not None
        )
        return next(named, None)

    @property
    def to_edit(self) -> Edge | None:
        """The reference whose file and line a reader should edit, or None without a known line."""
        if self.suspended is not None:
            return self.suspended
        if self.is_kept_off_stack:
            edge = self.telling
            return edge if edge is not None and edge.file and edge.line else None
        if self.head.kind.row.root_holder is None:
            return None
        telling = self.telling if self.accessors is None else None
        return telling if telling is not None and telling.file and telling.line else self.head


def _can_write(edge: Edge) -> bool:
    owner = edge.owner
    if edge.kind is EdgeKind.REFERENCE:
        return owner is not None and owner.kind is VertexKind.PARTIAL  # its function, `.func`
    return (
        edge.kind.row.is_accessor
        and (owner is None or owner.kind.row.is_expression)
        and not _is_hook_table(edge)
    )


def _is_hook_table(edge: Edge) -> bool:
    return edge.kind is EdgeKind.ATTRIBUTE and _HOOK_TABLE in (edge.name or "")


def kind_of_object(edge: Edge) -> HolderKind:
    """Return the kind of holder that an object is which refers to memory, whatever variable leads to it."""
    return _kind_of_edge(edge) or HolderKind.ATTRIBUTE


def _kind_of_edge(edge: Edge) -> HolderKind | None:
    of_owner = None if edge.owner is None else edge.owner.kind.row.holder
    is_in_owner = edge.kind in (EdgeKind.LOCAL, EdgeKind.TEMPORARY, EdgeKind.ATTRIBUTE)
    return of_owner if of_owner is not None and is_in_owner else edge.kind.row.holder


def _is_off_stack(edge: Edge) -> bool:
    kind = _kind_of_edge(edge)
    return kind is not None and kind.row.is_off_stack
