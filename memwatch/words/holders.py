"""The words for the holder of memory at the peak: an expression such as `self.cache`, and the owner of its variable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.kinds.edges import EdgeKind, VertexKind
from memwatch.kinds.roles import ROLE_OF
from memwatch.words.edges import OF_OWNER, edge_phrase, names_owner, phrase_without_owner
from memwatch.words.storages import role_name, short_op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.kinds.edges import Edge, Vertex

IN_LIBRARY: Final = " ({library}'s, which runs `{function}`)"
IN_THREAD: Final = " in thread `{thread}`"
HEAD_LINE: Final = "{head} ({site})"
"""The first line of a retention path."""

STACK_TOPS: Final[dict[str, str]] = {
    "enumerate": "the last result of `enumerate`",
    "zip": "the last result of `zip`",
    "map": "an argument of `map`",
    "filter": "an item in `filter`",
    "tuple": "the arguments of a running call",
    "list": "a list that no variable names",
    "dict": "a dictionary that no variable names",
    "list_iterator": "the list of a running loop",
    "tuple_iterator": "the tuple of a running loop",
}
"""The words for a value on an evaluation stack, by the name of its type."""
STACK_VALUE: Final = "a value that no variable names"
STACK_OTHER: Final = "a {type} that no variable names"
ON_STACK: Final = "{value}, on the evaluation stack of `{function}`"

ITEMS: Final = (EdgeKind.ITEM, EdgeKind.VALUE)
"""References that the words may leave unspecified."""
ANY_ITEM: Final = "[...]"

REACHED: Final = "{reference}, reached from {head}"
REACHED_BY_HOOK: Final = "{reference}, of a hook, reached from {head}"
VARIABLE_OF: Final = "`{name}`, local variable of {owner}"
BY_NAME: Final = "`{name}`"
AUTOCAST_COPY: Final = "autocast's cache of converted weights, as a copy of `{name}`"
SAVED: Final = "saved by {op}"
SAVED_FOR_MODULE: Final = "saved by {op} in `{module}`"
KEPT_BY_GRAPH: Final = "the autograd graph of {root}; {saved}"
SOME_OP: Final = "an op"
REGION_INPUT: Final = "a checkpoint, which runs its region again from it in backward"
REGION_INPUT_OF: Final = "a checkpoint called by `{module}`, which runs its region again from it in backward"
REGION_GIVEN: Final = "a running checkpoint, which keeps it for its region"
REGION_RESULT: Final = (
    "a checkpoint, whose region ran again and returned it: kept until the backward of the region is over"
)
REGION_GRADIENT: Final = "a checkpoint, which was given it as the gradient of its region"
RECOMPUTED: Final = "a checkpoint, which ran {op} again and keeps its result until backward reads it"
RECOMPUTED_IN: Final = (
    "a checkpoint, which ran {op} in `{module}` again and keeps its result until backward reads it"
)
TAKEN_BY_REGION: Final = (
    "a checkpoint, whose region took the saved result of {op} over and keeps it until backward reads it"
)
KERNEL: Final = "the kernel of {op}"
RUNNING_OP: Final = "the running op {op}, whose result it is"
READING_OP: Final = "the running op {op}, whose argument it is"
NOT_SEEN: Final = "not seen"
NOT_SEEN_MADE_BEFORE: Final = "not seen; made before the block"
NOT_SEEN_MADE_BY: Final = "not seen; made by {op}"
TOO_SMALL: Final = "too small to look for: less than 0.1 % of the increase"
MADE_BY_THREAD: Final = "not seen; made by thread `{thread}`"

GRADIENT_IN_FLIGHT: Final = "gradient in flight, made by {op}"
GRADIENT_IN_FLIGHT_OF: Final = "gradient in flight, made by {op} in `{module}`"
VALUE_OF_STEP: Final = "a value within the optimizer's step, made by {op}"
COMPILED_RUNS: Final = "compiled code that runs"
CPP_CALLED: Final = "a call into C++ that runs, made by {op}"

INFERRED: Final = "{holder} (inferred: {rule})"
"""A holder that no sample saw: a rule inferred it."""
INFERRED_SHORT: Final = " (inferred)"
"""The same without its rule, for a table."""


def role_holder(role: str, name: str) -> str:
    """Return the holder of memory in a role, given the recorded name of the memory: `adam.exp_avg[head.weight]`."""
    row = ROLE_OF.get(role)
    template = None if row is None else row.holder_words
    return role_name(role, name) if template is None else template.format(name=name)


def short_inferred(holder: str) -> tuple[str, str]:
    """Return the holder alone, and the remark ` (inferred)`, or "" if a sample saw the holder."""
    before, _, after = INFERRED.removeprefix("{holder}").partition("{rule}")
    words, found, _ = holder.rpartition(before)
    return (words, INFERRED_SHORT) if found and holder.endswith(after) else (holder, "")


def told_by_op(template: str, op_name: str, module: str = "", thread: str = "") -> str:
    """Return a holder that is named after an op and the module or thread that ran the op."""
    return template.format(op=short_op(op_name), module=module, thread=thread)


def variable_phrase(head: Edge, accessors: Sequence[Edge] = (), *, any_item: bool = False) -> str:
    """Return a root's variable with the references that follow it, as ``self.cache``, and its owner.

    Args:
        head: the root's reference to its variable.
        accessors: the references from there.
        any_item: whether to leave open which items of lists and dictionaries are meant.
    """
    owner = head.owner
    way = (ANY_ITEM if any_item and each.kind in ITEMS else _accessor(each) for each in accessors)
    library = thread = ""
    if owner is not None and owner.inner is not None:
        library = IN_LIBRARY.format(library=owner.library, function=owner.inner.name)
    if owner is not None and owner.thread:
        thread = IN_THREAD.format(thread=owner.thread)
    return (head.kind.row.words_as_root or "").format(
        name=f"{head.name}{''.join(way)}",
        owner="" if owner is None else owner.name,
        library=library,
        thread=thread,
    )


def _accessor(edge: Edge) -> str:
    """Return a reference as Python writes it after the object that refers."""
    if edge.kind is EdgeKind.ITEM:
        return f"[{edge.position}]"
    if edge.kind is EdgeKind.VALUE:
        return f"[{edge.name}]"
    if edge.kind is EdgeKind.PARTIAL_ARGUMENT:
        return ".args" if edge.name is None else ".keywords"
    if edge.kind is EdgeKind.REFERENCE:
        return ".func"  # of a functools.partial
    if edge.kind is EdgeKind.GRAD:
        return ".grad"
    return f".{edge.name}"


def reached_phrase(reference: Edge, head: Edge, *, by_hook: bool) -> str:
    """Return a reference on the way from a variable, and that variable."""
    template = REACHED_BY_HOOK if by_hook else REACHED
    return template.format(reference=_short_phrase(reference), head=variable_phrase(head))


def suspended_phrase(variable: Edge, reference: Edge) -> str:
    """Return a variable of a suspended generator, or a reference that is reached from it."""
    head = _short_phrase(variable)
    if reference is variable:
        return head
    return REACHED.format(reference=_short_phrase(reference), head=head)


def stack_phrase(top: Edge, reference: Edge | None) -> str:
    """Return what lies on an evaluation stack.

    Args:
        top: the reference from the stack, named by the type of the object there.
        reference: the last reference on the way that tells something, if there is one.
    """
    if top.name is None:
        return STACK_VALUE
    known = STACK_TOPS.get(top.name)
    if known is not None:
        return known
    return STACK_OTHER.format(type=top.name) if reference is None else edge_phrase(reference)


def path_text(path: Sequence[Edge]) -> str:
    """Return a retention path, one reference per line. The path of a stack or a module starts at its first object."""
    head, *rest = path
    if head.kind.row.words_as_root is not None:
        return "\n".join([_head_line(head), *map(edge_phrase, rest)])
    is_silent = head.kind in (EdgeKind.EVALUATION_STACK, EdgeKind.MODULE)
    return "\n".join(map(edge_phrase, rest if is_silent else path))


def _head_line(head: Edge) -> str:
    """Return the first line of a path: the variable and the line that its call has reached."""
    words, site = variable_phrase(head), site_text(head)
    return HEAD_LINE.format(head=words, site=site) if site else words


def site_text(edge: Edge) -> str:
    """Return ``file:line`` of the line to edit, empty if there is none."""
    return f"{edge.file}:{edge.line}" if edge.file and edge.line else ""


def _short_phrase(edge: Edge) -> str:
    """Return a reference with the name of its owner in quotes. The place to edit is left out: it stands beside it."""
    owner = edge.owner
    words = None if owner is None or names_owner(edge) else _owner_name(edge, owner)
    if words is None:
        return edge_phrase(edge, short=True)
    if edge.kind is EdgeKind.LOCAL:
        return VARIABLE_OF.format(name=edge.name, owner=words)
    return OF_OWNER.format(reference=phrase_without_owner(edge), owner=words)


def _owner_name(edge: Edge, owner: Vertex) -> str | None:
    """Return an owner as its plain name, or None if the name alone does not identify it."""
    suspended = owner.kind.row.suspended
    if edge.kind in (EdgeKind.LOCAL, EdgeKind.TEMPORARY) and suspended is not None:
        return suspended.format(name=_last(owner.name))
    if owner.kind is VertexKind.CACHE and owner.inner is not None:
        owner = owner.inner
    elif owner.kind is VertexKind.FUNCTION and edge.kind is EdgeKind.ATTRIBUTE:
        return None
    return BY_NAME.format(name=_last(owner.name)) if owner.kind.row.is_named else None


def _last(name: str) -> str:
    """Return the part of a name after its last dot. A function's name is then as in its `def`."""
    return name.rpartition(".")[2]
