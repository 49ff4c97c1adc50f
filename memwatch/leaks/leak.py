"""A survivor: one storage that outlived the code that made it, explained. A leak: survivors that one edit would free.

A leak is text: its bytes, the line that made it, its holder, and the change that ends it.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from memwatch._torch import missing
from memwatch.device_names import CPU
from memwatch.errors import DrawError, MemwatchError
from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.leaks import LeakKind
from memwatch.leaks.new_storages import NODE_BYTES
from memwatch.output_files import OutputError, write_whole
from memwatch.text import ShownAsText, preformatted
from memwatch.words import leaks as words
from memwatch.words.edges import reference_phrase, vertex_phrase

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from os import PathLike

    import graphviz  # type: ignore[import-untyped]

    from memwatch.heap.paths import Step
    from memwatch.kinds.edges import Edge, Vertex
    from memwatch.kinds.known_leaks import KnownLeak
    from memwatch.leaks.new_storages import NewStorage

_WIDTH: Final = 60  # characters of a line in a picture; a guess

Name = tuple[str | None, int | None]
"""The name and the position of a reference in its owner. Each is None if the reference has only the other."""


class Holding(NamedTuple):
    """One storage and its holder.

    Attributes:
        place: the device and the holder. Storages that one edit would free have equal places.
        slot: the name and the position of the holder's reference to the storage.
        nbytes: bytes of the storage.
    """

    place: tuple[str, Hashable]
    slot: Name
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Survivor:
    """A storage that outlived the code that made it, and the references that keep it.

    It does not keep any object of the program alive.

    Attributes:
        storage: when and where it was made.
        key: equal for survivors that one edit would free.
        steps: the retention path. If no root reaches it, the cycle and then the path to the tensor.
        is_named: False if `steps` has the cycle only, without the path to the tensor.
        cut: the reference to cut.
        tensor: a description of the tensor.
        kind: why it is still alive.
        looped: True if no root reaches it and a cycle above it was found.
        cycle_length: number of first steps that form the cycle; 0 for a retention path.
        cuts: one reference for each edit, if several edits are needed to break all cycles that keep it; else empty.
        main: the first reference to cut, and the cycle that names the cause, if its objects form several cycles.
        has_more_cycles: True if the search left out some cycles that keep it.
        branch: number of the step in the cycle where the path to the tensor begins.
        is_view: True if all tensors over the storage together show at most half of it.
        is_result: True if a tensor over the storage has a graph and is not a view.
        is_one_more: True if it is a new entry of a container that has older entries of the same class.
        is_replaced: True for a parameter that the program has replaced but an optimizer still keeps.
        older_items_follow: True if it is in a list or array, and older items come after it.
        registers_itself: True if a method of the object behind the reference to cut uses the variable of the container,
            so that the object has probably put itself there.
        unreachable: True if no root reaches it.
        nbytes: bytes of the storage at the snapshot.
        may_be_replaced: True if its name kept only a few values in earlier blocks, so the next value may replace it.
        in_place: True if its only holder is a container with a place for it: a list or array that had this place
            before, or a bounded container that is not full.
        if_kept: an explanation by a cycle that gc cannot see. It counts if gc does not free the cycle of `steps`.
        work: the function of the thread that holds it, if the runs started the thread. The end of the thread frees
            all variables of its calls.
        key_holder: for an entry of a `WeakKeyDictionary`, the explanation of its key; None if no root keeps the key.
            memwatch searches for it only if there are several calls.
        others: further explanations, by holders that would still keep the storage after the cut. memwatch searches for
            them only in the first of several calls.
    """

    storage: NewStorage
    key: Hashable
    steps: list[Step]
    cut: Step | None
    tensor: str
    is_named: bool = True
    kind: LeakKind = LeakKind.RETAINED
    looped: bool = False
    cycle_length: int = 0
    cuts: tuple[Step, ...] = ()
    has_more_cycles: bool = False
    main: tuple[Step, list[Step]] | None = None
    branch: int = 0
    is_view: bool = False
    is_result: bool = False
    is_one_more: bool = False
    is_replaced: bool = False
    older_items_follow: bool = False
    registers_itself: bool = False
    unreachable: bool = False
    nbytes: int = 0
    may_be_replaced: bool = False
    in_place: bool = False
    if_kept: Survivor | None = None
    work: Vertex | None = None
    key_holder: Survivor | None = None
    others: tuple[Survivor, ...] = ()

    def of_kind(self) -> Survivor:
        """Return this unreachable survivor with the kind of its leak. Call it after a collection by gc."""
        if not self.storage.alive:
            return replace(self, kind=LeakKind.CYCLE)
        found = self.if_kept or self
        return replace(found, kind=LeakKind.UNCOLLECTABLE if found.looped else LeakKind.RETAINED)

    @property
    def through_graph(self) -> bool:
        """Whether its path leads through the autograd graph of a tensor."""
        return any(step.edge.kind is EdgeKind.GRAD_FN for step in self.steps)

    @property
    def holding(self) -> Holding:
        """The storage and its holder."""
        edge = None if self.cut is None else self.cut.edge
        # a cycle or a thread is one holder, whichever of its references leads to the storage
        is_whole = edge is None or self.looped or self.work is not None
        slot = (None, None) if edge is None or is_whole else (edge.name, edge.position)
        return Holding((self.storage.device, self.key), slot, self.nbytes)


@dataclass(frozen=True, repr=False)
class Leak(ShownAsText):
    """Tensors that outlive the code that made them, held by one reference.

    A leak holds text and typed references only; it keeps no object of the program alive.

    Attributes:
        kind: a `LeakKind`, which equals its text. "cycle" is garbage that only gc can free. "uncollectable" is a loop
            through autograd that gc cannot free. A live root reaches a "retained" tensor. A "graph" has nodes of
            autograd that a live root reaches, and no tensors. "hooks" are hooks that each call registers.
        nbytes: leaked bytes of tensor storage; for a graph, an estimate of the bytes of its nodes; for hooks, the bytes
            that they keep, in ``memwatch leaks`` only. Per call that leaks for :func:`memwatch.find_leaks`.
        device: the device of these bytes. A reference that holds tensors on two devices is two leaks.
        count: number of leaked storages, nodes of a graph, or hooks. Per call that leaks for
            :func:`memwatch.find_leaks`.
        holder: the reference to cut, in words.
        container: the container that got an entry with the tensor, in words; empty if the reference to cut is no entry.
        path: the retention path, or the cycle, one reference per line.
        site: ``file.py:12 in f``, the line that made the first held tensor; None if it was not recorded.
        advice: one sentence on what to change.
        tensor: a description of the largest leaked tensor or storage of this line.
        held_s: seconds from the birth of the oldest of these bytes to the check.
        per_call: True if ``nbytes`` and ``count`` are per call that leaks.
        repeat: the name of such a call: "call"; in ``memwatch leaks`` also "step" of an optimizer, or "pass" of a loop;
            in a test "run".
        every: for :func:`memwatch.find_leaks`, the number of calls per leak of this size; 1 if each call leaks.
        caller: ``file.py:40 in g``, the line that called the function of ``site``, such as the caller of a factory;
            None if it was not recorded, or only memwatch called.
        reference: the one reference to cut: the last part of ``holder`` that is older than the tensor.
        keeps_graph: True if the tensor is kept together with its autograd graph.
        mostly_in_graph: True if only autograd graphs keep more than half of the bytes, such as activations that a kept
            loss still has saved for its backward.
        beside: classes of other objects that grow along, each with its count per call; only for the largest leak of
            :func:`memwatch.find_leaks`.
        edges: the references of ``path``, typed; empty if C code alone holds the tensors.
        cut: the reference to cut, typed; None if C code alone holds the tensors.
        cuts: the references to remove to free the tensors, ``cut`` first. There are several only if the objects of
            the cycle are in several cycles.
        cycle_length: number of ``edges``, from the first, that form the cycle; 0 for a retention path.
        branch: the index in ``edges`` of the reference of the cycle that starts at the object from which the path to
            the tensor leaves.
        cause: a short name for the leaks that one edit would end, such as ``cause-1f0a93c2``. Leaks of other tests
            and processes with the same cause share it.
        grows: True if the leak is one tensor that becomes larger.
        first_bytes: bytes of the first held storage, the one of ``site``.
        one_value: True if a name holds it that had one value at a time in earlier blocks, so the next value may
            replace it. For :func:`memwatch.check_leaks` only.
        graph_nodes: nodes of autograd graphs that the leak adds, per call that leaks: those of a graph, or those that
            the largest leak of :func:`memwatch.find_leaks` with a graph adds beside its tensors.
        shares_nodes: True if other leaks keep graphs too, and may keep some of these nodes.
        known: the leak of a library that this is, with a link; None if it is the program's own.
        hook: the function that calls register as a hook, and where it is defined; empty for other leaks, and if the
            hooks are of several functions.
        also: other holders that keep tensors of it: to cut the reference ``cut`` alone does not free these.
        rises: True if each call adds more than the call before: ``nbytes`` and ``count`` are averages.
        added_at: the line or two of the program that add to the container by its name, with their code; empty if none
            was found.
    """

    kind: LeakKind
    nbytes: int
    count: int
    holder: str
    path: tuple[str, ...]
    site: str | None
    advice: str
    tensor: str = "storage"
    held_s: float = 0.0
    per_call: bool = False
    reference: str = ""
    keeps_graph: bool = False
    mostly_in_graph: bool = False
    beside: tuple[tuple[str, int], ...] = ()
    edges: tuple[Edge, ...] = ()
    cut: Edge | None = None
    cycle_length: int = 0
    branch: int = 0
    device: str = CPU
    cause: str = ""
    every: int = 1
    caller: str | None = None
    grows: bool = False
    first_bytes: int = 0
    one_value: bool = False
    cuts: tuple[Edge, ...] = ()
    graph_nodes: int = 0
    known: KnownLeak | None = None
    repeat: str = "call"
    container: str = ""
    hook: str = ""
    also: tuple[str, ...] = ()
    added_at: str = ""
    rises: bool = False
    shares_nodes: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", LeakKind(self.kind))  # type: ignore[arg-type]  # by its text

    @property
    def graph_bytes(self) -> int:
        """The bytes of ``graph_nodes``, an estimate."""
        return self.graph_nodes * NODE_BYTES

    def headline(self) -> str:
        """Return the leak in one line."""
        return words.headline(
            self.kind,
            sizes={self.device: self.nbytes},
            count=self.count,
            per_call=self.per_call,
            holder=self.holder,
            every=self.every,
            repeat=self.repeat,
            rises=self.rises,
        )

    def __repr__(self) -> str:
        # a prompt shows a list of leaks: one line for each; `print(leak)` gives its whole text
        return f"<Leak: {self.headline()}>"

    def __str__(self) -> str:
        # nodes that a container keeps have no line, and "unknown line" would say nothing
        has_no_line = self.kind is LeakKind.GRAPH and self.site is None
        made = [self._made_at_line] * (self.kind is not LeakKind.HOOKS and not has_no_line)
        if self.hook:
            made.append(words.HOOK_LINE.format(hook=self.hook))
        if self.kind is LeakKind.HOOKS and self.nbytes:
            line = words.tensors_of_hooks_line(
                self.device, self.nbytes, per_call=self.per_call, repeat=self.repeat, every=self.every
            )
            made.append(line)
        if self.graph_nodes and self.kind is not LeakKind.GRAPH:
            line = words.nodes_line(
                self.graph_nodes,
                self.graph_bytes,
                per_call=self.per_call,
                repeat=self.repeat,
                every=self.every,
                of_several=self.shares_nodes,
            )
            made.append(line)
        if self.added_at:
            made.append(words.ADDED_AT_LINE.format(lines=self.added_at))
        lines = [self.headline(), *made]
        if self.kind.is_reached and len(self.edges) == 1:  # the headline has it, but for its line
            lines[0] += words.place_of(self.edges[0])
        else:
            lines.append(f"  {words.TEXT_FROM_ROOT if self.kind.is_reached else words.TEXT_CYCLE}")
            lines += [f"    {line}" for line in words.shortened(self.path, self.edges)]
        if self.also:
            lines.append(words.also_line(self.also))
        if self.kind is LeakKind.CYCLE:
            lines.append(words.HELD_FOR.format(seconds=self.held_s))
        if self.beside:
            lines.append(words.beside_line(self.beside, self.repeat))
        if self.known is not None:
            known = self.known
            lines.append(words.KNOWN_LINE.format(library=known.library, what=known.what, link=known.link))
        return "\n".join([*lines, words.ADVICE.format(advice=self.advice)])

    @property
    def _made_at_line(self) -> str:
        tensor = words.WITH_GRAPH.format(tensor=self.tensor) if self.mostly_in_graph else self.tensor
        line = words.MADE_AT.format(site=self.site or words.UNKNOWN_LINE, tensor=tensor)
        return line if self.caller is None else line + words.CALLED_FROM.format(caller=self.caller)

    @property
    def place_line(self) -> str:
        """The line that adds to the container, or else the line that made the tensors; empty if neither is known."""
        if self.added_at:
            return words.ADDED_AT_LINE.format(lines=self.added_at)
        return "" if self.site is None else self._made_at_line

    @property
    def may_be_filling(self) -> bool:
        """Whether one pass put it into a container, which may be a window or a cache that is not full yet."""
        is_entry = self.cut is not None and self.cut.kind.row.is_entry
        return is_entry and self.kind is LeakKind.RETAINED and not (self.per_call or self.grows)

    def draw(self, path: str | PathLike[str]) -> None:
        """Draw the retention path or the cycle with graphviz.

        Args:
            path: the picture to write; the suffix chooses the format, such as ``.svg`` or ``.png``.

        Raises:
            DrawError: the package graphviz or the ``dot`` program is not installed, or ``dot`` fails; the message
                holds the leak as text.
        """
        try:
            import graphviz
        except ModuleNotFoundError as error:
            raise DrawError(words.NO_GRAPHVIZ.format(target=path, leak=self)) from error

        target = Path(path)
        kind = target.suffix.removeprefix(".") or "svg"
        try:
            write_whole(target, self._graph().pipe(format=kind), force=True)
        except graphviz.ExecutableNotFound as error:
            raise DrawError(words.NO_DOT.format(target=target, leak=self)) from error
        except (OutputError, OSError, ValueError, graphviz.CalledProcessError) as error:
            raise DrawError(words.NOT_DRAWN.format(target=target, error=error, leak=self)) from error

    def _graph(self) -> graphviz.Digraph:
        """Return the leak as a graph with a box for each object and an arrow for each reference.

        The arrow of a reference that only C++ knows is dashed. The last arrow of a cycle leads back to its first box.
        The path from a cycle to the tensor begins at the box with the number `branch`.
        """
        import graphviz

        graph = graphviz.Digraph("leak", graph_attr={"label": _wrapped(self.headline())})
        graph.attr("node", shape="box", fontname="monospace")
        graph.attr("edge", fontname="monospace")
        cycle = self.cycle_length
        targets = [edge.target for edge in self.edges]
        first = targets[cycle - 1] if cycle else None
        boxes = [
            words.ROOT if first is None else vertex_phrase(first),
            *("" if target is None else vertex_phrase(target) for target in targets),
        ]
        for number, text in enumerate(boxes):
            if number != cycle or not cycle:  # the end of a cycle is its beginning
                graph.node(str(number), _wrapped(text))
        for number, edge in enumerate(self.edges):
            leaves_cycle = cycle > 0 and number == cycle
            above = self.branch if leaves_cycle else number
            below = 0 if number + 1 == cycle else number + 1
            phrase = reference_phrase(edge)
            label = words.FROM_CYCLE.format(line=phrase) if leaves_cycle else phrase
            style = "dashed" if edge.hidden else "solid"
            graph.edge(str(above), str(below), _wrapped(label), style=style)
        if not self.edges:  # C code alone holds the tensors
            graph.node("1", _wrapped(self.tensor))
            graph.edge("0", "1", _wrapped(self.path[0]))
        return graph


def _wrapped(text: str) -> str:
    """Return a text for a box or an arrow of a picture, in short lines."""
    import graphviz

    return str(graphviz.escape("\n".join(textwrap.wrap(text, _WIDTH))))


class Leaks(list[Leak]):
    """A list of leaks, which a notebook shows as their texts."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return preformatted("\n\n".join(map(str, self)) or words.NO_LEAKS)


class TensorLeakError(MemwatchError, AssertionError):
    """Tensors outlived the code that made them. :attr:`leaks` describes them and their holders, as text."""

    def __init__(self, leaks: Sequence[Leak]) -> None:
        self.leaks = list(leaks)
        head = words.total_line(self.leaks)
        said = [*missing(), *[words.MAY_BE_FILLING] * any(leak.may_be_filling for leak in self.leaks)]
        notes = (words.NOTE.format(sentence=sentence) for sentence in said)
        super().__init__("\n".join([head, *map(str, self.leaks), *notes]))

    def __reduce__(self) -> tuple[type[TensorLeakError], tuple[list[Leak]]]:
        return type(self), (self.leaks,)


# Decide whether a leak matches a pattern, so that the user's rules can ignore it.


def matches(leak: Leak, pattern: str) -> bool:
    """Return True if a text of the leak matches: its cause, kind, holder, container, lines, tensor or path.

    Args:
        leak: the leak.
        pattern: shell-style pattern, or plain text that may stand anywhere in one of these texts.
    """
    lines = (leak.site or "", leak.caller or "")
    texts = (leak.cause, leak.kind, leak.holder, leak.container, *lines, leak.tensor, *leak.path)
    return any(pattern in text or fnmatchcase(text, pattern) for text in texts)
