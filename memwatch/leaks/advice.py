"""One sentence of advice for a leak, chosen by the words of the references that hold it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

Rules = tuple[tuple[str, str], ...]
"""Words of a reference and the sentence for it; the first that fits counts."""

_MECHANISMS: Final[Rules] = (
    (
        "node hooks (register_hook)",
        (
            "a hook on `grad_fn` that refers to the tensor keeps both for ever: call `handle.remove()`, or let the "
            "hook use only its arguments"
        ),
    ),
    (
        "node pre-hooks",
        (
            "a pre-hook on an autograd node that refers to the node's graph keeps both for ever: call "
            "`handle.remove()`, or delete the entry it reads (`del group[...]`) after backward"
        ),
    ),
    (
        "post-accumulate-grad hooks",
        (
            "a post-accumulate hook must not refer to its own parameter: use the parameter it is called with, or "
            "`weakref.ref`"
        ),
    ),
    (
        "tensor hooks",
        (
            "a tensor hook must not refer to its own tensor: use the gradient it is called with, a `weakref.ref`, or "
            "`handle.remove()` after backward"
        ),
    ),
    (
        ".metadata",
        "`grad_fn.metadata` must not refer to the tensor itself: store a weak reference or a detached copy",
    ),
    (
        "packed by a saved-tensor hook",
        "the pack hook keeps the output with its graph: return `tensor.detach()` from it",
    ),
    ("unpack hook", "the pack hook keeps the output with its graph: return `tensor.detach()` from it"),
    (
        "saved tensors[",
        "save the output itself, not a view of it, with `ctx.save_for_backward`; or detach what is saved",
    ),
    (
        "numpy .base",
        "a numpy array shares the tensor's memory and keeps the tensor: store a copy (`.numpy().copy()`) or a number",
    ),
    (
        "wrapped by torch.func",
        "a tensor from inside a torch.func transform keeps what it wraps: return it from the function instead",
    ),
    ("(ctx)", "do not store tensors as attributes of `ctx`: use `ctx.save_for_backward`"),
    (
        "args of exception",
        "the exception keeps its arguments: give it text (`str(tensor.shape)`), not tensors",
    ),
    (
        "exception",
        (
            "the exception keeps its traceback, and so every local variable of the failed calls: clear it (`del err`, "
            "`err.__traceback__ = None`), or keep `str(err)`"
        ),
    ),
    (
        "sys.last_",
        (
            "the interactive shell keeps the last exception with all its local variables: "
            "`del sys.last_value, sys.last_traceback`"
        ),
    ),
    (
        "traceback",
        "the traceback keeps every local variable of the failed calls: keep its text, not the object",
    ),
    (
        "IPython",
        "IPython's output history keeps every displayed value: `%reset out`, or end the line with `;`",
    ),
    (
        "interactive shell",
        "the shell keeps the last displayed value: evaluate something else, or end the line with `;`",
    ),
    (
        "lru_cache",
        (
            "the cache keeps its arguments and results: give it a small `maxsize`, call `cache_clear()`, or key it by "
            "plain values"
        ),
    ),
    ("ContextVar", "reset the variable after use: `token = var.set(...)` ... `var.reset(token)`"),
    ("thread local", "a thread local lives as long as its thread: delete the attribute after use"),
    (
        "in thread",
        "a running thread keeps its arguments and local variables: end it, or drop the tensor inside it",
    ),
    ("handler of SIG", "a signal handler lives until another one replaces it: let it refer to no tensors"),
    (
        "atexit",
        "a function registered with atexit lives until the program ends: unregister it, or give it a weak reference",
    ),
    ("weakref.finalize", "a finalizer keeps its arguments until its object dies: do not hand it the tensor"),
    ("suspended", "a suspended generator keeps its local variables: exhaust it, or call `close()`"),
    ("functools.partial", "the partial keeps its arguments: drop the partial, or bind a weak reference"),
    ("LogRecord", "a log record keeps its arguments: log numbers (`.item()`), not tensors"),
    (
        "default argument",
        "a default argument lives as long as its function: use None and make the value inside",
    ),
)
"""How a reference works decides, wherever on the path it stands."""

_GRAPH: Final = (
    "a tensor with its graph is kept, and so every activation: store `value.detach()` or `value.item()`"
)
_RETAINED: Final[Rules] = (
    (
        "closure cell",
        "the inner function keeps what it closes over: pass it as an argument, or delete the name after use",
    ),
    ("next_functions", _GRAPH),
    (".grad_fn", _GRAPH),
    (
        ".grad of",
        (
            "with `create_graph=True` the gradient refers back to the parameter: use `torch.autograd.grad`, or set "
            "`.grad = None` after use"
        ),
    ),
    ("bound method", "the bound method keeps its object: store a `weakref.WeakMethod`, or drop it after use"),
    ("_hooks of", "the hook keeps what it refers to: call `handle.remove()` when done"),
    (
        "attribute .state of",
        "optimizer state that grows, or of a parameter that was replaced: delete it (`del optimizer.state[old]`)",
    ),
    (
        "class attribute",
        "a class attribute lives as long as the class: keep the value on an instance, or delete it after use",
    ),
    (
        "item [",
        "the container grows and keeps each entry: store `.item()` or `.detach()`, or bound it (`deque(maxlen=...)`)",
    ),
    (
        "key ",
        "the dictionary keeps each entry: bound it, delete entries after use, or key a `WeakKeyDictionary`",
    ),
    ("member of", "the set keeps each entry: discard it after use, or use a `weakref.WeakSet`"),
    ("buffer '", "the buffer keeps what it is assigned: assign `value.detach()`"),
    ("attribute", "the object keeps the tensor: delete the attribute after use, or store `.detach()`"),
    ("reference from", "the iterator or container keeps what it was given: drop it after use"),
    ("global", "the module keeps the tensor: delete the name after use, or store a number"),
    ("argument `", "the argument keeps it: drop the tensor when the call is over"),
    ("local `", "the local variable keeps it: delete the name after use"),
    (
        "C code",
        "no Python reference holds it: look for a C++ cache or an open context (autocast, graph capture)",
    ),
)
_CLASS: Final = (
    "every class refers to itself, so a class made per call is a cycle: define it once, outside the function"
)
_LOOPED: Final[Rules] = (
    (
        "closure cell",
        "the inner function closes over what leads back to it: pass that as an argument, or delete the name after use",
    ),
    *((words, advice) for words, advice in _RETAINED if words in {".grad of", "bound method", "_hooks of"}),
    (
        "`self` of bound",
        "the bound method keeps its object: store a `weakref.WeakMethod`, or drop it after use",
    ),
    (" of class ", _CLASS),
    (
        "local `",
        "a local variable leads back to its own call: delete it before the function returns (`del frame`, `del err`)",
    ),
    (
        "attribute",
        "the object leads back to itself: make this reference weak (`weakref.ref`), or delete it after use",
    ),
    (
        "item [",
        "the container leads back to itself: hold the entry by `weakref.ref`, or clear the container after use",
    ),
    ("key ", "the dictionary leads back to itself: hold the entry by `weakref.ref`, or delete it after use"),
    ("global", "the module leads back to itself: delete this name after use"),
)


def advice_for(
    kind: str, reference: str, holder: str, path: tuple[str, ...] = (), *, graph: bool = False
) -> str:
    """Choose the sentence for a leak.

    Args:
        kind: the leak's kind.
        reference: the words of the reference to cut.
        holder: the words of all references that matter.
        path: the whole path, asked where those say too little.
        graph: True if the tensor is kept together with its autograd graph.

    Returns:
        One sentence.
    """
    places = (holder, *path)
    if kind != "retained":
        return (
            _first(_MECHANISMS, places)
            or _first(_LOOPED, (reference, *places))
            or "cut this reference after the last use of the tensor"
        )
    found = _first(_MECHANISMS, (holder,)) or _first(_RETAINED, (holder,)) or _first(_MECHANISMS, path)
    if found is None:
        return "cut this reference after the last use of the tensor"
    return found if not graph or "detach" in found else f"{found}; {_GRAPH}"


def _first(rules: Rules, texts: Iterable[str]) -> str | None:
    for text in texts:
        for words, advice in rules:
            # an attribute that a user happened to call `grad` or `metadata` is another thing
            if re.search(f"(?<!attribute ){re.escape(words)}", text):
                return advice
    return None
