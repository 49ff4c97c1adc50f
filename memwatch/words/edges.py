"""The words for references and for the objects at their ends."""

from __future__ import annotations

from typing import Final

from memwatch.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.sizes import format_bytes
from memwatch.words.places import place

_MAX_NAME: Final = 60  # characters of a quoted name

UNKNOWN: Final = "?"
HIDDEN_MARK: Final = "  [C++, unseen by gc]"
OF_OWNER: Final = "{reference} of {owner}"

EDGES: Final[dict[EdgeKind, str]] = {
    EdgeKind.REFERENCE: "reference from {owner}",
    EdgeKind.LOCAL: "local `{name}`",
    EdgeKind.ARGUMENT: "argument `{name}`",
    EdgeKind.GLOBAL: "global `{name}`",
    EdgeKind.CONTEXT_VARIABLE: "ContextVar {quoted}",
    EdgeKind.THREAD_LOCAL: "thread local attribute .{name}",
    EdgeKind.TEMPORARY: "a temporary",
    EdgeKind.CALLER: "caller",
    EdgeKind.EVALUATION_STACK: "a value that no variable names",
    EdgeKind.CHECKED_FUNCTION: "the function",
    EdgeKind.ATTRIBUTE: "attribute .{name}",
    EdgeKind.INSTANCE_DICT: "__dict__",
    EdgeKind.CLASS_OF: "class of {owner} object",
    EdgeKind.CLASS_ATTRIBUTE: "class attribute .{name}",
    EdgeKind.CLASS_ENTRY: "class entry .{name}",
    EdgeKind.CLASS_DESCRIPTOR: "{name} descriptor",
    EdgeKind.CLASS_BASES: "__mro__ or bases",
    EdgeKind.PARAMETER: "parameter {quoted}",
    EdgeKind.BUFFER: "buffer {quoted}",
    EdgeKind.SUBMODULE: "submodule {quoted}",
    EdgeKind.ITEM: "item [{position}]",
    EdgeKind.VALUE: "value of key {name}",
    EdgeKind.KEY: "a key",
    EdgeKind.MEMBER: "member",
    EdgeKind.FIELD: "field .{name}",
    EdgeKind.CLOSURE_CELL: "closure cell `{name}`",
    EdgeKind.CELL_CONTENTS: "contents of a closure cell",
    EdgeKind.DEFAULT_ARGUMENT: "default argument `{name}`",
    EdgeKind.BOUND_SELF: "`self`",
    EdgeKind.BOUND_FUNCTION: "function",
    EdgeKind.PARTIAL_ARGUMENT: "argument `{name}`",
    EdgeKind.CACHE_RESULT: "a result kept by lru_cache",
    EdgeKind.CACHE_ARGUMENT: "an argument kept by lru_cache",
    EdgeKind.COROUTINE: "coroutine",
    EdgeKind.EXCEPTION_FIELD: "{name} of exception {owner}",
    EdgeKind.EXCEPTION_ARGS: "args of exception {owner}",
    EdgeKind.EXCEPTION_HANDLED: "exception being handled",
    EdgeKind.TRACEBACK_CALL: "call",
    EdgeKind.TRACEBACK_NEXT: "next entry",
    EdgeKind.LAST_EXCEPTION: "sys.{name} (the last uncaught exception, kept for the debugger)",
    EdgeKind.MODULE: "module {name}",
    EdgeKind.ATEXIT_CALLBACK: "atexit callback",
    EdgeKind.FINALIZER_REGISTRY: "registry of weakref.finalize callbacks",
    EdgeKind.SIGNAL_HANDLER: "handler of {name}",
    EdgeKind.TRACE_FUNCTION: "trace function (sys.settrace)",
    EdgeKind.PROFILE_FUNCTION: "profile function (sys.setprofile)",
    EdgeKind.ASYNC_GENERATOR_HOOK: "asynchronous generator hook (sys.set_asyncgen_hooks)",
    EdgeKind.OUTPUT_HISTORY: "IPython's output history `{name}`",
    EdgeKind.SHELL_RESULT: "the interactive shell's {result} `{name}`",
    EdgeKind.DISPATCH_MODE: "active dispatch mode",
    EdgeKind.FUNCTION_MODE: "active function mode",
    EdgeKind.DEFAULT_SAVED_HOOK: "active saved-tensor hook",
    EdgeKind.STORAGE: "storage",
    EdgeKind.GRAD: ".grad",
    EdgeKind.GRAD_FN: ".grad_fn",
    EdgeKind.BASE: "._base",
    EdgeKind.TENSOR_HOOKS: "tensor hooks (._backward_hooks)",
    EdgeKind.ACCUMULATE_HOOKS: "post-accumulate-grad hooks",
    EdgeKind.SPARSE_PART: "sparse .{name}()",
    EdgeKind.FUNCTORCH_VALUE: "value wrapped by torch.func",
    EdgeKind.NEXT_FUNCTION: "next_functions[{position}]",
    EdgeKind.VARIABLE: ".variable",
    EdgeKind.METADATA: ".metadata",
    EdgeKind.SAVED: "saved `{name}`",
    EdgeKind.PACKED: "saved `{name}`, packed by a saved-tensor hook",
    EdgeKind.UNPACK_HOOK: "unpack hook of saved `{name}`",
    EdgeKind.CTX_SAVED: "ctx.{name}",
    EdgeKind.NODE_HOOKS: "node hooks (register_hook)",
    EdgeKind.NODE_PREHOOKS: "node pre-hooks (register_prehook)",
    EdgeKind.GRAPH: ".grad_fn and the graph behind it",
    EdgeKind.NUMPY_BASE: "numpy .base",
    EdgeKind.FUTURE_RESULT: "result",
    EdgeKind.SHARED_MEMORY: "memory that {owner} shares",
    EdgeKind.C_CODE: "C code (no Python reference)",
}
"""One template per kind; ` of` and the owner follow unless the template has a place for the owner."""

BY_POSITION: Final[dict[EdgeKind, str]] = {
    EdgeKind.ARGUMENT: "argument [{position}]",
    EdgeKind.PARTIAL_ARGUMENT: "argument [{position}]",
    EdgeKind.SAVED: "saved {name}[{position}]",
    EdgeKind.PACKED: "saved {name}[{position}], packed by a saved-tensor hook",
    EdgeKind.UNPACK_HOOK: "unpack hook of saved {name}[{position}]",
}
"""Templates for edges that have a position, of kinds that may have a name instead."""

READ_GLOBAL: Final = "global `{name}` of {module}, read by {reader}"
SHELL_RESULTS: Final[dict[str, str]] = {
    "_": "last result",
    "__": "last but one result",
    "___": "third last result",
}
IN_THREAD: Final = " in thread {thread}"
SOME_FUNCTION: Final = "a function"

_OF_OBJECTS: Final = (
    EdgeKind.ATTRIBUTE,
    EdgeKind.INSTANCE_DICT,
    EdgeKind.PARAMETER,
    EdgeKind.BUFFER,
    EdgeKind.SUBMODULE,
)
"""References that any code may make. The file of the class is the wrong place to edit them."""
_CALLS: Final = (EdgeKind.LOCAL, EdgeKind.ARGUMENT, EdgeKind.TEMPORARY, EdgeKind.CALLER)
_SUSPENDED: Final = (VertexKind.GENERATOR, VertexKind.COROUTINE, VertexKind.ASYNC_GENERATOR)
OWNERS: Final[dict[tuple[EdgeKind, VertexKind], str]] = {
    **{(kind, VertexKind.FRAME): "{name}{thread}{at}" for kind in _CALLS},
    **{(kind, suspended): "suspended {owner}" for kind in _CALLS for suspended in _SUSPENDED},
    (EdgeKind.ATTRIBUTE, VertexKind.CTX): "{owner} (ctx)",
    (EdgeKind.INSTANCE_DICT, VertexKind.CTX): "{owner} (ctx)",
    (EdgeKind.ATTRIBUTE, VertexKind.FUNCTION): "function {owner}",
    (EdgeKind.REFERENCE, VertexKind.FUNCTION): "function {owner}",
    (EdgeKind.REFERENCE, VertexKind.PARTIAL): "{owner} of {inner}",
    (EdgeKind.PARTIAL_ARGUMENT, VertexKind.PARTIAL): "{owner} of {inner}",
    (EdgeKind.CACHE_RESULT, VertexKind.CACHE): "{inner}",
    (EdgeKind.CACHE_ARGUMENT, VertexKind.CACHE): "{inner}",
    (EdgeKind.CONTEXT_VARIABLE, VertexKind.CONTEXT): "a {owner}",
}
"""Templates for an owner. The words for the same object as a target differ."""

VERTICES: Final[dict[VertexKind, str]] = {
    VertexKind.OBJECT: "{name}",
    VertexKind.TENSOR: "{name}",
    VertexKind.ARRAY: "{name}",
    VertexKind.STORAGE: "storage of {size}",
    VertexKind.NODE: "{name}",
    VertexKind.CTX: "{name}",
    VertexKind.CONTAINER: "{name} of {count}",
    VertexKind.FUNCTION: "{name}{at}",
    VertexKind.BUILTIN: "built-in {name}",
    VertexKind.METHOD: "bound method {inner}",
    VertexKind.PARTIAL: "functools.partial",
    VertexKind.CACHE: "{name}",
    VertexKind.CODE: "code of {name}{at}",
    VertexKind.CELL: "closure cell",
    VertexKind.FRAME: "call of {name}{at}",
    VertexKind.GENERATOR: "generator {name}{at}",
    VertexKind.COROUTINE: "coroutine {name}{at}",
    VertexKind.ASYNC_GENERATOR: "async generator {name}{at}",
    VertexKind.TRACEBACK: "traceback at {place}",
    VertexKind.EXCEPTION: "{name}",
    VertexKind.CLASS: "class {name}",
    VertexKind.MODULE: "module {name}",
    VertexKind.NAMESPACE: "{place}",
    VertexKind.CONTEXT: "{name}",
}
AT: Final = " ({place})"
DLPACK_CAPSULE: Final = "DLPack capsule"
NAMELESS_MODULE: Final = "module"
LIMITED: Final = "{container} (maxlen {limit})"
LIMITED_CACHE: Final = "{container} (maxsize {limit})"


def edge_phrase(edge: Edge, *, short: bool = False) -> str:
    """Return the words for a reference, such as ``closure cell `x` of hook (train.py:12)``; if short, no place."""
    if edge.kind is EdgeKind.GLOBAL and edge.reader is not None and edge.owner is not None:
        reader = vertex_phrase(edge.reader, short=short)
        return READ_GLOBAL.format(name=edge.name, module=edge.owner.name, reader=reader)
    owner = "" if edge.owner is None else _owner_phrase(edge, edge.owner, short=short)
    reference = phrase_without_owner(edge, owner)
    return OF_OWNER.format(reference=reference, owner=owner) if owner and not names_owner(edge) else reference


def names_owner(edge: Edge) -> bool:
    """Return True if the words for a reference have a place for its owner, which else follows them."""
    return "{owner}" in _template(edge)


def phrase_without_owner(edge: Edge, owner: str = "") -> str:
    """Return the words for a reference but not for its owner, such as ``attribute .cache``."""
    return _template(edge).format(
        name=UNKNOWN if edge.name is None else edge.name,
        position=UNKNOWN if edge.position is None else edge.position,
        quoted=_quoted(edge.name),
        result=SHELL_RESULTS.get(edge.name or "", ""),
        owner=owner,
    )


def _template(edge: Edge) -> str:
    by_position = edge.kind in BY_POSITION and (edge.position is not None or edge.name is None)
    return (BY_POSITION if by_position else EDGES)[edge.kind]


def edge_line(edge: Edge) -> str:
    """Return one line of a path: the reference, the place to edit it, what it leads to."""
    target = "" if edge.target is None else f" -> {vertex_phrase(edge.target)}"
    return f"{reference_phrase(edge)}{target}{HIDDEN_MARK if edge.hidden else ''}"


def reference_phrase(edge: Edge) -> str:
    """Return the words for a reference, and the place to edit it unless they name that already."""
    words = edge_phrase(edge)
    if edge.file and not _shows_place(edge) and (edge.line is not None or edge.kind not in _OF_OBJECTS):
        words += f"  ({place(edge.file, edge.line)})"
    return words


def vertex_phrase(vertex: Vertex, *, short: bool = False) -> str:
    """Return the words for an object: ``Tensor [8, 16] float32``, ``f (train.py:12)``, ``dict of 3``.

    Short words leave out where a function is defined.
    """
    if vertex.kind is VertexKind.MODULE and not vertex.name:
        return NAMELESS_MODULE
    words = VERTICES[vertex.kind].format(
        name=vertex.name,
        place=place(vertex.file, vertex.line),
        at=_at(vertex, short=short),
        count=vertex.count,
        size=format_bytes(vertex.nbytes or 0),
        inner="" if vertex.inner is None else vertex_phrase(vertex.inner, short=short),
    )
    if vertex.shape is not None:
        words += f" [{', '.join(map(str, vertex.shape))}] {vertex.dtype}"
    limited = LIMITED_CACHE if vertex.kind is VertexKind.CACHE else LIMITED
    return words if vertex.limit is None else limited.format(container=words, limit=vertex.limit)


def _at(vertex: Vertex, *, short: bool) -> str:
    return "" if short else AT.format(place=place(vertex.file, vertex.line))


def _owner_phrase(edge: Edge, owner: Vertex, *, short: bool) -> str:
    """Return the words for the object that refers."""
    words, template = vertex_phrase(owner, short=short), OWNERS.get((edge.kind, owner.kind))
    if template is None:
        return words
    return template.format(
        owner=words,
        name=owner.name,
        thread=IN_THREAD.format(thread=repr(owner.thread)) if owner.thread else "",
        at=_at(owner, short=short),
        inner=SOME_FUNCTION if owner.inner is None else vertex_phrase(owner.inner, short=short),
    )


def _shows_place(edge: Edge) -> bool:
    """Return True if the words for the owner already name the file and the line of the edge."""
    return edge.owner is not None and edge.line is not None and edge.owner.line == edge.line


def _quoted(name: str | None) -> str:
    text = repr(name)
    return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}..."
