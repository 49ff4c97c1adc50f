"""Read the references that autograd holds in C++, which gc never shows. Reading them calls no hook.

gc sees almost nothing of the autograd graph: ``gc.get_referents(grad_fn)`` is empty. So memwatch reads attributes:

- `memwatch._torch.autograd_state` reads the node of a tensor without changing the tensor.
- ``SavedTensor.data`` is the tensor that a node saved, or the object that a pack hook returned for it. To read it
  does not call the unpack hook.
- All other references are attributes of torch that only return a field.

torch also keeps the hooks of a node in C++, and no function returns them. ``node.register_hook(hook)`` passes the
node's dictionary of hooks to a static method of torch. memwatch replaces that method for a moment and registers a
marker. The replacement raises an error that carries the dictionary. At that moment torch has not stored the marker, so
the node stays as it was.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from memwatch._torch.autograd import (
    NODE_HOOKS_WORK,
    RAW_SAVED_PREFIX,
    RAW_SAVED_TENSORS,
    FunctionBase,
    registering_hooks_by,
)
from memwatch._torch.autograd_state import autograd_state, base_of
from memwatch._torch.modes import disable_torch_dispatch
from memwatch._torch.tensors import (
    BACKWARD_HOOKS,
    GRAD,
    INDICES,
    POST_GRAD_HOOKS,
    TENSOR_DICT,
    VALUES,
    TensorBase,
    is_wrapped,
    unwrapped,
)
from memwatch.heap.tensors import is_python_node, is_tensor, layout_of, mro_of, storage_of, type_dict
from memwatch.heap.vertices import vertex_of
from memwatch.kinds.edges import Edge, EdgeKind
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MARKER: Final = object()
"""The hook that memwatch pretends to register."""
_REGISTER_METHODS: Final = (
    ("register_hook", EdgeKind.NODE_HOOKS),
    ("register_prehook", EdgeKind.NODE_PREHOOKS),
)
_LOCK: Final = threading.Lock()  # one thread at a time replaces torch's method


class _HooksReadError(Exception):
    """Leaves ``register_hook`` before it stores the marker.

    Attributes:
        hooks: the node's dictionary of hooks.
    """

    def __init__(self, hooks: object) -> None:
        super().__init__()
        self.hooks = hooks


def node_hooks(node: object) -> list[tuple[EdgeKind, object]]:
    """Return the hook dictionaries of one autograd node, each with its kind.

    Args:
        node: a C++ autograd node, or the ``ctx`` of a custom Function.

    Returns:
        ``(kind, dictionary)`` for the post-hooks and the pre-hooks of the node; empty if this torch does not show
            them.
    """
    if not NODE_HOOKS_WORK:  # registering would change the node
        return []
    with _LOCK, registering_hooks_by(_raise_hooks):
        found = [(kind, _read_hooks(node, name)) for name, kind in _REGISTER_METHODS]
    return [(kind, hooks) for kind, hooks in found if hooks]


def _raise_hooks(original: Callable[..., Any], hooks: object, hook: object) -> Any:
    if hook is _MARKER:
        raise _HooksReadError(hooks)
    return original(hooks, hook)  # another thread registers its own hook during the replacement


def _read_hooks(node: object, name: str) -> object:
    register = _register_method(node, name)
    if register is None:
        return None
    try:
        register(node, _MARKER)
    except _HooksReadError as error:
        return error.hooks
    except (RuntimeError, TypeError, AttributeError) as error:
        pass_on(error)
        return None
    return None


def _register_method(node: object, name: str) -> Callable[[object, object], object] | None:
    namespace = vars(FunctionBase) if is_python_node(node) else type_dict(type(node))
    return namespace.get(name)


_PYTHON_NODE: Final = vars(FunctionBase)
_REFUSED: Final = (RuntimeError, AttributeError, NotImplementedError, TypeError)
"""The errors that torch's attributes raise for objects without them, such as a node whose buffers are freed."""
_SPARSE: Final = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


class NativeEdge(NamedTuple):
    """One reference that C or C++ code holds. It holds its target, so drop it soon.

    Attributes:
        kind: the kind of reference.
        target: the object that it refers to.
        name: the attribute that holds it, without torch's prefix, such as `self` for a saved tensor. Most kinds need
            no name.
        position: its index in a tuple, list or array, if it is an item.
        hidden: True if reports mark it as a reference that only C++ knows.
    """

    kind: EdgeKind
    target: object
    name: str | None = None
    position: int | None = None
    hidden: bool = True

    def between(self, owner: object, target: object) -> Edge:
        """Return the reference as an edge. The edge keeps neither the owner nor the target alive."""
        ends = vertex_of(owner), vertex_of(target)
        return Edge(self.kind, self.name, self.position, *ends, hidden=self.hidden)


def autograd_edges(obj: object, *, hooks: bool = True) -> list[NativeEdge]:
    """List the references that a tensor or an autograd node holds in C++.

    Args:
        obj: a tensor or an autograd node; anything else has no such edges.
        hooks: whether to list the hooks of nodes. This takes longer than to list all other references.

    Returns:
        Edges to tensors, nodes, storages, hook dictionaries and packed objects. Call it under
        :func:`memwatch.heap.tensors.quiet`. Drop the result soon: torch makes Python objects for the nodes and tensors
        that were read, and the result keeps them alive.
    """
    edges = _tensor_edges(obj) if is_tensor(obj) else _node_edges(obj, hooks=hooks)
    return [edge for edge in edges if edge.target is not None]


def plain_gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a leaf tensor, if the gradient is a leaf too; None otherwise.

    The gradient of a tensor with a node is not read.
    """
    if not autograd_state(tensor).is_leaf:
        return None
    gradient: torch.Tensor | None = _read(TENSOR_DICT, GRAD, tensor)
    return gradient if gradient is not None and autograd_state(gradient).is_leaf else None


def _read(descriptors: Any, name: str, obj: object) -> Any:
    descriptor = descriptors.get(name)
    if descriptor is None:
        return None
    try:
        return descriptor.__get__(obj)
    except _REFUSED as error:
        pass_on(error)
        return None


def gradient_of(tensor: Any) -> torch.Tensor | None:
    """Return the `.grad` of a tensor.

    Only leaves and tensors that retain their gradient have a gradient. For any other tensor, return None and do not
    read the attribute, because torch would print a warning.
    """
    state = autograd_state(tensor)
    if not (state.is_leaf or state.retains_grad):
        return None
    gradient: torch.Tensor | None = _read(TENSOR_DICT, GRAD, tensor)
    return gradient


def _tensor_edges(tensor: Any) -> Iterator[NativeEdge]:
    yield NativeEdge(EdgeKind.STORAGE, storage_of(tensor))
    yield NativeEdge(EdgeKind.GRAD, gradient_of(tensor))
    yield NativeEdge(EdgeKind.GRAD_FN, autograd_state(tensor, with_node=True).grad_fn)
    yield NativeEdge(EdgeKind.BASE, base_of(tensor))
    yield NativeEdge(EdgeKind.TENSOR_HOOKS, _read(TENSOR_DICT, BACKWARD_HOOKS, tensor), hidden=False)
    yield NativeEdge(EdgeKind.ACCUMULATE_HOOKS, _read(TENSOR_DICT, POST_GRAD_HOOKS, tensor), hidden=False)
    if is_sparse(tensor):
        yield from (NativeEdge(EdgeKind.SPARSE_PART, part, name) for name, part in sparse_parts(tensor))
    if is_wrapped(tensor):
        yield NativeEdge(EdgeKind.FUNCTORCH_VALUE, unwrapped(tensor))


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Return True for a tensor of a wrapper subclass, whose attributes are the inner tensors.

    The methods for sparse parts would run code of such a subclass.
    """
    return any("__tensor_flatten__" in type_dict(cls) for cls in mro_of(type(tensor)))


def is_sparse(tensor: torch.Tensor) -> bool:
    """Return True for a sparse tensor. Its memory is the memory of its parts, such as indices and values."""
    return layout_of(tensor) in _SPARSE and not _is_wrapper(tensor)


def sparse_parts(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor | None]]:
    """Return the parts of a sparse tensor, each with its name, without calling the program's dispatch modes."""
    names = (
        INDICES,
        VALUES,
        "crow_indices",
        "col_indices",
        "ccol_indices",
        "row_indices",
        "values",
    )
    found = []
    with disable_torch_dispatch():
        for name in names:
            method = getattr(TensorBase, name, None)
            try:
                found.append((name.lstrip("_"), None if method is None else method(tensor)))
            except _REFUSED as error:
                pass_on(error)
                continue
    return found


def _node_edges(node: Any, *, hooks: bool) -> Iterator[NativeEdge]:
    is_python = is_python_node(node)
    namespace = _PYTHON_NODE if is_python else type_dict(type(node))
    for position, entry in enumerate(_read(namespace, "next_functions", node) or ()):
        yield NativeEdge(EdgeKind.NEXT_FUNCTION, entry[0], position=position)
    yield NativeEdge(EdgeKind.VARIABLE, _read(namespace, "variable", node))
    metadata = _read(namespace, "metadata", node)
    # torch makes an empty dictionary when `metadata` is first read
    yield NativeEdge(EdgeKind.METADATA, metadata or None)
    for name in _saved_names(node, is_python=is_python):
        yield from _saved(namespace, name, node)
    if is_python:
        for name in ("to_save", "saved_for_forward"):
            yield NativeEdge(EdgeKind.CTX_SAVED, _read(_PYTHON_NODE, name, node), name)
    for kind, table in node_hooks(node) if hooks else ():
        yield NativeEdge(kind, table)


def _saved_names(node: object, *, is_python: bool) -> tuple[str, ...]:
    if is_python:
        return (RAW_SAVED_TENSORS,)
    return tuple(name for name in type_dict(mro_of(type(node))[0]) if name.startswith(RAW_SAVED_PREFIX))


def _saved(namespace: Any, name: str, node: object) -> Iterator[NativeEdge]:
    raw = _read(namespace, name, node)
    if raw is None:
        return
    name = name.removeprefix(RAW_SAVED_PREFIX)
    many = isinstance(raw, (tuple, list))
    for number, saved in enumerate(raw if many else (raw,)):
        position = number if many else None
        try:
            hook = saved.unpack_hook
            kind = EdgeKind.SAVED if hook is None else EdgeKind.PACKED
            yield NativeEdge(kind, saved.data, name, position)
            yield NativeEdge(EdgeKind.UNPACK_HOOK, hook, name, position)
        except _REFUSED as error:
            pass_on(error)
            continue


_OPENERS: Final[dict[int, Callable[[Any], tuple[Any, Any] | None]]] = {}
"""The function that opens the packs of a class, by the `id` of the class. The classes live until the process ends."""


def look_through(kind: type, open_pack: Callable[[Any], tuple[Any, Any] | None]) -> None:
    """Let all later searches find the tensors in the packs of a class.

    A pack is the object that memwatch's own pack hook stores in a node in place of a tensor. It may outlive the
    profile that made it, so the class stays registered.

    Args:
        kind: the class of the packs.
        open_pack: takes an object. For a pack, it returns the content and the program's unpack hook. The program may
            have none: then the hook is None. For any other object, it returns None.
    """
    _OPENERS[id(kind)] = open_pack


def seen_through(edges: Iterable[NativeEdge]) -> Iterator[NativeEdge]:
    """Yield the references of an autograd node, with memwatch's packs replaced by their contents."""
    opened: set[tuple[str | None, int | None]] = set()
    for edge in edges:
        at = edge.name, edge.position
        open_pack = _OPENERS.get(id(type(edge.target))) if edge.kind is EdgeKind.PACKED else None
        content = None if open_pack is None else open_pack(edge.target)
        if content is not None:
            opened.add(at)
            kept, unpack = content
            if kept is not None:
                yield edge._replace(kind=EdgeKind.SAVED if unpack is None else EdgeKind.PACKED, target=kept)
            if unpack is not None:
                yield edge._replace(kind=EdgeKind.UNPACK_HOOK, target=unpack)
        elif edge.kind is not EdgeKind.UNPACK_HOOK or at not in opened:
            yield edge  # of an opened pack, the unpack hook is left out: it is memwatch's
