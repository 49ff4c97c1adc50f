"""One holder of a piece of memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from memwatch.analysis.holders.paths import HolderPath, kind_of_object
from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.holders import HolderEvidence, HolderKind, Inference
from memwatch.words import holders as words
from memwatch.words.edges import edge_phrase

if TYPE_CHECKING:
    from memwatch.capture.paths import Path
    from memwatch.kinds.edges import Edge


class HolderKey(NamedTuple):
    """The identity of a holder for a reader. All items of a list in one variable have one key, for example.

    Attributes:
        kind: the kind of holder.
        subject: the names that identify it within its kind, such as those of the variable, its function and its file.
    """

    kind: HolderKind
    subject: tuple[object, ...]


_ITERATED: Final = ".0"
"""The name that Python gives to the argument of a comprehension."""


@dataclass(frozen=True)
class Holder:
    """The reference that keeps a piece of memory alive.

    Attributes:
        kind: the kind of holder.
        words: the holder in words, without its evidence.
        site: `file:line` of the line to edit; "" if there is none.
        path: the retention path in words, one reference a line; "" if none was recorded.
        is_own: True if the line is the program's own code, False if it is a library's, None if not determined.
        subject: the names that identify it within its kind.
        evidence: how it is known.
        inference: the rule that inferred it, or None for a holder that was seen or read.
        edges: the references of the path, the root's first.
    """

    kind: HolderKind
    words: str
    site: str = ""
    path: str = ""
    is_own: bool | None = None
    subject: tuple[object, ...] = field(default=(), repr=False)
    evidence: HolderEvidence = field(kw_only=True)
    inference: Inference | None = None
    edges: Path = field(default=(), repr=False, compare=False)

    @property
    def key(self) -> HolderKey:
        """The identity of this holder for a reader."""
        return HolderKey(self.kind, self.subject)

    @property
    def key_of_items(self) -> HolderKey:
        """The key that holders share if they differ only in an item or a linked object: `rows[0].x`, `rows[1].x`."""
        if self.links_objects:
            linked = object_holder(self)
            return self.key if linked is None else linked.key
        kinds = [edge.kind for edge in self.edges]
        if not any(kind in words.ITEMS for kind in kinds):
            return self.key
        references = (each if isinstance(each, tuple) else (each,) for each in self.subject)
        subject = (each[:1] if each[:1] and each[0] in words.ITEMS else each for each in references)
        return HolderKey(self.kind, tuple(subject))

    @property
    def told(self) -> str:
        """The holder in words. An inferred holder is marked as such, with its rule."""
        if self.inference is None:
            return self.words
        return words.INFERRED.format(holder=self.words, rule=self.inference.words)

    @property
    def is_of_torch(self) -> bool:
        """Whether it is a variable of a call of torch's own."""
        return bool(self.edges) and HolderPath(self.edges).is_of_torch

    @property
    def foreign(self) -> bool:
        """Whether the line is torch's, Python's or an installed package's, which no user edits."""
        return self.is_own is False

    @property
    def is_of_array(self) -> bool:
        """Whether numpy has the memory too. numpy's reads are not ops."""
        return any(edge.kind is EdgeKind.NUMPY_BASE for edge in self.edges)

    @property
    def is_implicit(self) -> bool:
        """Whether it is the iterable of a comprehension, which has no written name in the comprehension's own call."""
        return bool(self.edges) and self.edges[0].name == _ITERATED

    @property
    def is_likely(self) -> bool:
        """Whether it is not inferred, or inferred from samples both before and after."""
        return self.inference in (None, Inference.BETWEEN)

    @property
    def is_guess(self) -> bool:
        """Whether it is the evaluation stack of a call, inferred only because no variable was found."""
        guesses = Inference.SAME_CALL, Inference.NO_VARIABLE
        return self.kind is HolderKind.EVALUATION_STACK and self.inference in guesses

    @property
    def nearness(self) -> tuple[bool, bool, bool]:
        """The sort key of holders seen at one time: first the program's own, then packages', then torch's own calls."""
        return self.foreign, self.foreign and self.is_of_torch, self.is_implicit

    @property
    def order(self) -> tuple[bool, bool, bool]:
        """The sort key of holders: the program's own first, and among inferred ones objects before variables.

        A reference from an object outlasts a call, so it more likely existed at another time as well.
        """
        is_brief = not self.is_likely and self.kind in (HolderKind.LOCAL, HolderKind.ARGUMENT)
        return self.foreign, is_brief, self.is_implicit

    @property
    def may_be_cut(self) -> bool:
        """Whether a program can drop the reference.

        It cannot if only C++ has it, or a stack of torch or a library.
        """
        if self.kind is HolderKind.CPP_ONLY:
            return False
        known = [edge.is_own for edge in self.edges if edge.is_own is not None]
        return self.kind is not HolderKind.EVALUATION_STACK or not known or known[-1]

    @property
    def place(self) -> tuple[object, ...] | None:
        """The identity of the expression that names the memory, if the expression has one value at a time; else None.

        The value of a key has the identity of its dictionary. Some expressions have no identity: if no variable is
        known that leads to the object, if the call is one of another thread, and if objects refer to others of their
        class. There, a twin may be in another object.
        """
        place = HolderPath(self.edges).place if self.edges and self.path and not self.links_objects else None
        if place is None or (place[0].owner is not None and place[0].owner.thread):
            return None
        named = place[:-1] if HolderPath(self.edges).is_value_of_key else place
        return tuple(map(_identity, named))

    @property
    def is_inside(self) -> bool:
        """Whether a container or an object that the holder names refers to the memory."""
        return bool(self.edges) and HolderPath(self.edges).is_inside

    @property
    def links_objects(self) -> bool:
        """Whether it reaches the memory through an object of the class that refers to it, as `state.prev.output`."""
        return bool(self.edges) and HolderPath(self.edges).links_objects

    @property
    def kept_exception(self) -> tuple[object, ...]:
        """The references to the exception whose traceback keeps the memory, without items; empty if none does."""
        kinds = [edge.kind for edge in self.edges]
        if EdgeKind.TRACEBACK_CALL not in kinds or EdgeKind.EXCEPTION_FIELD not in kinds:
            return ()
        to_exception = self.edges[: kinds.index(EdgeKind.EXCEPTION_FIELD)]
        # one sample may see the object through `self`, and another one through a global variable
        compared = to_exception[1:] if len(to_exception) > 1 else to_exception
        return tuple((edge.kind, None if edge.kind in words.ITEMS else edge.name) for edge in compared)

    @property
    def is_variable_of_ended_call(self) -> bool:
        """Whether it is a plain variable of a call, which a sample saw at another time only."""
        if self.is_likely or not self.edges:
            return False
        read = HolderPath(self.edges)
        return read.is_direct and read.head.kind.row.is_call_variable

    def is_through(self, other: Holder) -> bool:
        """Whether this is the other holder itself, or is reached through it, as `output.logits` through `output`."""
        return self.key == other.key or (bool(other.edges) and _starts_with(self.subject, other.subject))

    def inferred(self, rule: Inference) -> Holder:
        """Return this holder, marked as inferred by a rule."""
        return dataclasses.replace(self, evidence=HolderEvidence.INFERRED, inference=rule)

    def on_stack_of(self, function: str, site: str, *, is_own: bool) -> Holder:
        """Return this value of an evaluation stack as a value on a call's stack.

        The call's line is the line to edit.
        """
        text = words.ON_STACK.format(value=self.words, function=function)
        subject = (*self.subject, function)
        return dataclasses.replace(self, words=text, site=site, is_own=is_own, subject=subject)


def _starts_with(subject: tuple[object, ...], beginning: tuple[object, ...]) -> bool:
    return bool(beginning) and subject[: len(beginning)] == beginning


def holder_of(path: Path) -> Holder:
    """Return the holder that a recorded retention path shows; the path has one reference at least."""
    read = HolderPath(path)
    edge = read.to_edit
    return Holder(
        read.kind,
        _words(read),
        "" if edge is None else words.site_text(edge),
        words.path_text(path),
        None if edge is None else edge.is_own,
        tuple(map(_identity, _told_edges(read))),
        evidence=HolderEvidence.SEEN,
        edges=path,
    )


def object_holder(holder: Holder) -> Holder | None:
    """Return a holder that begins at the object's attribute instead of a variable, or None without an object.

    A sample saw the object through a variable of a call. When the call has returned, the object's references remain.
    """
    read = HolderPath(holder.edges) if holder.edges else None
    if read is not None and read.is_kept_off_stack:
        return holder
    edge = None if read is None else read.last_attribute
    if edge is None:
        return None
    return dataclasses.replace(
        holder,
        kind=kind_of_object(edge),
        words=edge_phrase(edge),
        site="",
        path="",
        subject=(_identity(edge),),
    )


def twin_of(holder: Holder) -> Holder:
    """Return the holder of a twin of a seen allocation. The twin's item in a list is unknown."""
    return of_any_item(holder).inferred(Inference.TWIN)


def of_any_item(holder: Holder) -> Holder:
    """Return a holder whose words leave open which items of lists and dictionaries are meant."""
    accessors = HolderPath(holder.edges).accessors if holder.edges else None
    if not accessors or all(edge.kind not in words.ITEMS for edge in accessors):
        return holder
    return dataclasses.replace(holder, words=words.variable_phrase(holder.edges[0], accessors, any_item=True))


def _told_edges(path: HolderPath) -> Path:
    """Return the references that the words of a holder name."""
    if path.is_kept_off_stack and path.telling is not None:
        return (path.telling,)
    if path.accessors is not None:
        return (path.head, *path.accessors)
    return (path.head,) if path.telling is None else (path.head, path.telling)


def _identity(edge: Edge) -> tuple[object, ...]:
    """Return what identifies a reference. The line that its call has reached is no part of it."""
    owner = edge.owner
    if owner is None:
        return edge.kind, edge.name, edge.position
    inner = None if owner.inner is None else owner.inner.name
    return edge.kind, edge.name, edge.position, owner.kind, owner.name, owner.file, owner.thread, inner


def _words(path: HolderPath) -> str:
    head, telling = path.head, path.telling
    if path.suspended is not None:
        return words.suspended_phrase(path.suspended, path.suspended if telling is None else telling)
    if path.is_kept_off_stack and telling is not None:
        return words.suspended_phrase(telling, telling)
    if head.kind is EdgeKind.EVALUATION_STACK:
        return words.stack_phrase(head, telling)
    if path.kind is HolderKind.GLOBAL and head.kind.row.words_as_root is None:
        is_module = head.kind is EdgeKind.MODULE and len(path.edges) > 1
        return edge_phrase(path.edges[1] if is_module else head)
    if path.accessors is not None:
        return words.variable_phrase(head, path.accessors)
    if telling is None:
        return words.variable_phrase(head)
    return words.reached_phrase(telling, head, by_hook=path.is_of_hook)
