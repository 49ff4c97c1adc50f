"""The words of advice: one sentence for each way to end a leak."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


class Remedy(Enum):
    """The change that ends a leak, chosen by its references. The most specific remedy comes first."""

    VIEW = auto()
    VIEW_WITH_GRAPH = auto()
    GROWING_TENSOR = auto()
    HOOK_PER_CALL = auto()
    OPEN_CONTEXT = auto()
    HOOK_OF_SELF = auto()
    NODE_HOOK = auto()
    NODE_PREHOOK = auto()
    ACCUMULATE_HOOK = auto()
    TENSOR_HOOK = auto()
    METADATA = auto()
    PACK_HOOK = auto()
    SAVED_VIEW = auto()
    NUMPY = auto()
    SHARED_MEMORY = auto()
    FUNCTORCH = auto()
    ENDLESS_LOOP = auto()
    CTX_ATTRIBUTE = auto()
    CTX_OBJECT = auto()
    EXCEPTION_ARGS = auto()
    EXCEPTION = auto()
    LAST_EXCEPTION = auto()
    TRACEBACK = auto()
    FRAME = auto()
    OUTPUT_HISTORY = auto()
    SHELL_RESULT = auto()
    CACHED_METHOD = auto()
    CACHE = auto()
    CONTEXT_VARIABLE = auto()
    THREAD_LOCAL = auto()
    EXECUTOR = auto()
    THREAD = auto()
    SIGNAL_HANDLER = auto()
    ATEXIT = auto()
    ARGUMENTS_IN_C = auto()
    FUNCTION_IN_C = auto()
    FINALIZER = auto()
    GENERATOR = auto()
    PARTIAL = auto()
    LOG_RECORD = auto()
    MOCK = auto()
    DEFAULT_ARGUMENT = auto()
    CLOSURE_CELL = auto()
    CLOSURE_CELL_IN_CYCLE = auto()
    CLOSURE_OF_SELF = auto()
    GRAPH = auto()
    GRADIENT = auto()
    BOUND_METHOD = auto()
    MODULE_HOOK = auto()
    OPTIMIZER_STATE = auto()
    CLASS_ATTRIBUTE = auto()
    CLASS_PER_CALL = auto()
    REGISTRY = auto()
    ITEM = auto()
    VALUE = auto()
    MEMBER = auto()
    BUFFER = auto()
    ATTRIBUTE = auto()
    SUBMODULE = auto()
    ITERATOR = auto()
    GLOBAL = auto()
    ARGUMENT = auto()
    LOCAL = auto()
    C_CODE = auto()
    CLASS_IN_CYCLE = auto()
    LOCAL_IN_CYCLE = auto()
    ATTRIBUTE_IN_CYCLE = auto()
    ITEM_IN_CYCLE = auto()
    VALUE_IN_CYCLE = auto()
    MEMBER_IN_CYCLE = auto()
    SUBMODULE_IN_CYCLE = auto()
    GLOBAL_IN_CYCLE = auto()
    ANY = auto()


SENTENCES: Final[dict[Remedy, str]] = {
    Remedy.VIEW: (
        "the kept tensor is a view, so the whole of a much larger storage stays: keep `.clone()` of it, or a "
        "number (`.item()`)"
    ),
    Remedy.VIEW_WITH_GRAPH: (
        "the kept tensor is a view, so its graph and the whole of a much larger storage stay: keep "
        "`.detach().clone()` of it, or a number (`.item()`)"
    ),
    Remedy.GROWING_TENSOR: (
        "one tensor becomes larger and larger (`torch.cat`, `resize_`): keep its newest part "
        "(`value[-100:].clone()`), or reset it after use"
    ),
    Remedy.HOOK_PER_CALL: (
        "each call registers one more hook, and none is removed: call `handle.remove()` after use, or register "
        "the hook once"
    ),
    Remedy.OPEN_CONTEXT: (
        "a mode, or a context of hooks on saved tensors, was entered and is still open: enter it by `with`, or call "
        "`__exit__` after use"
    ),
    Remedy.HOOK_OF_SELF: (
        "the hook is a bound method, and its object leads back to the hook: give it a function that uses the module "
        "it is called with, hold `self` by `weakref.ref`, or call `handle.remove()`"
    ),
    Remedy.NODE_HOOK: (
        "a hook on `grad_fn` that refers to the tensor keeps both for ever: call "
        "`handle.remove()`, or let the hook use only its arguments"
    ),
    Remedy.NODE_PREHOOK: (
        "a pre-hook on an autograd node that refers to the node's graph keeps both for ever: call "
        "`handle.remove()`, or delete the entry it reads (`del group[...]`) after backward"
    ),
    Remedy.ACCUMULATE_HOOK: (
        "a post-accumulate hook must not refer to its own parameter: use the parameter it is "
        "called with, or `weakref.ref`"
    ),
    Remedy.TENSOR_HOOK: (
        "a tensor hook must not refer to its own tensor: use the gradient it is called with, a "
        "`weakref.ref`, or `handle.remove()` after backward"
    ),
    Remedy.METADATA: (
        "`grad_fn.metadata` must not refer to the tensor itself: store a weak reference or a detached copy"
    ),
    Remedy.PACK_HOOK: "the pack hook keeps the output with its graph: return `tensor.detach()` from it",
    Remedy.SAVED_VIEW: (
        "save the output itself, not a view of it, with `ctx.save_for_backward`; or detach what is saved"
    ),
    Remedy.NUMPY: (
        "a numpy array shares the tensor's memory and keeps the tensor: limit the container of the arrays, store "
        "numbers (`.item()`), or copies (`.copy()`) of the part that is needed"
    ),
    Remedy.SHARED_MEMORY: (
        "an object made by DLPack or the buffer protocol shares the tensor's memory: drop it after use, or "
        "store numbers (`.item()`)"
    ),
    Remedy.FUNCTORCH: (
        "a tensor from inside a torch.func transform keeps the tensor that it wraps: return it from the function "
        "instead"
    ),
    Remedy.ENDLESS_LOOP: (
        "`itertools.cycle` keeps every item of its iterator: loop over the loader anew for each epoch "
        "(`while True: yield from loader`)"
    ),
    Remedy.CTX_ATTRIBUTE: "do not store tensors as attributes of `ctx`: use `ctx.save_for_backward`",
    Remedy.CTX_OBJECT: (
        "`ctx` keeps this object, and the object leads back to the output: put only the values that backward needs on "
        "`ctx`, or delete the attribute after backward"
    ),
    Remedy.EXCEPTION_ARGS: (
        "the exception keeps its arguments: give it text (`str(tensor.shape)`), not tensors"
    ),
    Remedy.EXCEPTION: (
        "the exception keeps its traceback, and so every local variable of the failed calls: "
        "drop it (`del err`), clear it (`err.with_traceback(None)`), or keep `str(err)`"
    ),
    Remedy.LAST_EXCEPTION: (
        "the interactive shell keeps the last exception with all its local variables: `del "
        "sys.last_value, sys.last_traceback`"
    ),
    Remedy.TRACEBACK: (
        "the traceback keeps every local variable of the failed calls: keep its text, not the object"
    ),
    Remedy.FRAME: (
        "a frame keeps every local variable of its call and of those around it: keep its text "
        "(`traceback.extract_stack()`), not the object"
    ),
    Remedy.OUTPUT_HISTORY: (
        "IPython's output history keeps every displayed value: `%reset out`, or end the line with `;`"
    ),
    Remedy.SHELL_RESULT: (
        "the shell keeps the last displayed value: evaluate something else, or end the line with `;`"
    ),
    Remedy.CACHED_METHOD: (
        "the cache of a method keeps every `self` it was called on: cache on the object itself "
        "(`functools.cached_property`), or call `cache_clear()`"
    ),
    Remedy.CACHE: (
        "the cache keeps its arguments and results: give it a small `maxsize`, call "
        "`cache_clear()`, or key it by plain values"
    ),
    Remedy.CONTEXT_VARIABLE: "reset the variable after use: `token = var.set(...)` ... `var.reset(token)`",
    Remedy.THREAD_LOCAL: "a thread local lives as long as its thread: delete the attribute after use",
    Remedy.EXECUTOR: (
        "a call that waits in an executor keeps its arguments until it has run: wait for its future, cancel it "
        "(`future.cancel()`), or leave the executor by `with`"
    ),
    Remedy.THREAD: (
        "a running thread keeps its arguments and local variables: end it, or drop the tensor inside it"
    ),
    Remedy.SIGNAL_HANDLER: (
        "a signal handler lives until another one replaces it: let it refer to no tensors"
    ),
    Remedy.ATEXIT: (
        "a function registered with atexit lives until the program ends: unregister it, or give "
        "it a weak reference"
    ),
    Remedy.ARGUMENTS_IN_C: (
        "only C code keeps these arguments, for example of `atexit.register(f, x)`: unregister the function "
        "after use (`atexit.unregister`), or give it a weak reference"
    ),
    Remedy.FUNCTION_IN_C: (
        "only C code keeps this function, as it does a callback, or a hook of a context that is still open "
        "(`saved_tensors_hooks`): unregister it after use, or enter the context by `with`"
    ),
    Remedy.FINALIZER: ("a finalizer keeps its arguments until its object dies: do not hand it the tensor"),
    Remedy.GENERATOR: "a suspended generator keeps its local variables: exhaust it, or call `close()`",
    Remedy.PARTIAL: "the partial keeps its arguments: drop the partial, or bind a weak reference",
    Remedy.LOG_RECORD: "a log record keeps its arguments: log numbers (`.item()`), not tensors",
    Remedy.MOCK: (
        "a mock refers to itself, and keeps the arguments of its calls until gc runs: call `reset_mock()` after use"
    ),
    Remedy.DEFAULT_ARGUMENT: (
        "a default argument lives as long as its function: use None and make the value inside"
    ),
    Remedy.CLOSURE_CELL: (
        "the inner function keeps the variables that it captures: pass the tensor as an argument, or delete the name "
        "after use"
    ),
    Remedy.CLOSURE_OF_SELF: (
        "the inner function closes over `self`: let it close over `weakref.ref(self)`, or drop the function "
        "after use"
    ),
    Remedy.GRAPH: (
        "the tensor keeps its autograd graph, and the graph keeps activations: store `value.detach()` or `value.item()`"
    ),
    Remedy.GRADIENT: (
        "with `create_graph=True` the gradient refers back to the parameter: use "
        "`torch.autograd.grad`, or set `.grad = None` after use"
    ),
    Remedy.BOUND_METHOD: (
        "the bound method keeps its object: store a `weakref.WeakMethod` (a `weakref.ref` of it is dead at once) or a "
        "plain function that is given the object, or drop it after use"
    ),
    Remedy.MODULE_HOOK: (
        "a registered hook keeps the objects that it refers to, with everything that it collects: call "
        "`handle.remove()` when done, or clear the container that the hook fills"
    ),
    Remedy.OPTIMIZER_STATE: (
        "the optimizer keeps state that grows, or a parameter that was replaced: remove the old parameter from "
        "`optimizer.param_groups`, and delete its state (`del optimizer.state[old]`)"
    ),
    Remedy.CLASS_ATTRIBUTE: (
        "a class attribute lives as long as the class: keep the value on an instance, or delete it after use"
    ),
    Remedy.CLASS_PER_CALL: (
        "each call makes a class, and the container keeps every one: define the class once, outside the function"
    ),
    Remedy.REGISTRY: (
        "the container grows and keeps each object: hold them weakly (`weakref.WeakSet`), remove each after use, "
        "or limit its size (`deque(maxlen=...)`)"
    ),
    Remedy.ITEM: (
        "the container grows and keeps each entry: limit its size (`deque(maxlen=...)`), clear it after use, or store "
        "numbers (`.item()`)"
    ),
    Remedy.VALUE: (
        "the dictionary keeps each entry: limit its size, or delete entries after use; if its keys are objects, a "
        "`WeakKeyDictionary` drops each entry with its key"
    ),
    Remedy.MEMBER: "the set keeps each entry: discard it after use, or use a `weakref.WeakSet`",
    Remedy.BUFFER: "the buffer keeps the assigned value: assign `value.detach()`",
    Remedy.ATTRIBUTE: (
        "the object keeps the tensor: delete the attribute after use, or store a number (`.item()`)"
    ),
    Remedy.SUBMODULE: (
        "the module keeps each submodule, parameter and buffer that is registered with it: reuse one, or delete "
        "it after use (`del parent[name]`, `delattr(parent, name)`)"
    ),
    Remedy.ITERATOR: "the iterator or container keeps its items: drop it after use",
    Remedy.GLOBAL: "the module keeps the tensor: delete the name after use, or store a number",
    Remedy.ARGUMENT: "the argument of a running call keeps it: delete the name after use, or set it to None",
    Remedy.LOCAL: "the local variable keeps it: delete the name after use",
    Remedy.C_CODE: (
        "C code alone holds it: look for an open context (autocast, graph capture), a C++ cache, or an extension "
        "that does not give back a reference"
    ),
    Remedy.CLOSURE_CELL_IN_CYCLE: (
        "the inner function captures an object that leads back to it: pass that object as an argument, or "
        "delete the name after use"
    ),
    Remedy.CLASS_IN_CYCLE: (
        "every class refers to itself, so a class made per call is a cycle: define it once, "
        "outside the function"
    ),
    Remedy.LOCAL_IN_CYCLE: (
        "a local variable leads back to its own call: delete it before the function returns (`del "
        "frame`, `del err`)"
    ),
    Remedy.ATTRIBUTE_IN_CYCLE: (
        "the object leads back to itself: delete this reference after use, or make it weak (`weakref.ref`) if "
        "something else keeps what it leads to"
    ),
    Remedy.ITEM_IN_CYCLE: (
        "the container leads back to itself: hold the entry by `weakref.ref`, or clear the "
        "container after use"
    ),
    Remedy.VALUE_IN_CYCLE: (
        "the dictionary leads back to itself: hold the entry by `weakref.ref`, or delete it after use"
    ),
    Remedy.MEMBER_IN_CYCLE: (
        "the set leads back to itself: use a `weakref.WeakSet`, or discard the member after use"
    ),
    Remedy.SUBMODULE_IN_CYCLE: (
        "the module is registered, by others, in itself: give the inner one a weak reference "
        "(`weakref.ref(parent)`), or pass the outer one as an argument of `forward`"
    ),
    Remedy.GLOBAL_IN_CYCLE: "the module leads back to itself: delete this name after use",
    Remedy.ANY: "cut this reference after the last use of the tensor",
}
FURTHER_CUTS: Final = (
    "{advice}; this edit alone frees nothing, because other cycles keep the tensors too. "
    "Also remove {references}"
)
MORE_CUTS: Final = "{references} and {count} more"
MORE_CYCLES: Final = "{references}, and references in further cycles that memwatch did not search"
_MOST_CUTS: Final = 12
"""Lightning's trainer needs 9."""
AND_THE_GRAPH: Final = "{advice}; {graph}"

_DETACHES: Final = frozenset(
    {
        Remedy.METADATA,
        Remedy.PACK_HOOK,
        Remedy.SAVED_VIEW,
        Remedy.VIEW_WITH_GRAPH,
        Remedy.GRAPH,
        Remedy.BUFFER,
    }
)
"""Remedies that already say to detach the tensor."""
_WITHOUT_A_VALUE: Final = frozenset({Remedy.ANY, Remedy.C_CODE, Remedy.OPEN_CONTEXT})
"""Remedies for references that no line of the program stores."""


def advice(
    remedy: Remedy, *, with_graph: bool = False, further: Sequence[str] = (), is_complete: bool = True
) -> str:
    """Return the sentence for a remedy.

    Args:
        remedy: the change.
        with_graph: True if the tensor is kept together with its autograd graph: then say that as well.
        further: the other references to cut, in words, where one alone frees nothing.
        is_complete: False if there may be more of these.
    """
    sentence = SENTENCES[remedy]
    if with_graph and remedy not in _DETACHES | _WITHOUT_A_VALUE:
        sentence = AND_THE_GRAPH.format(advice=sentence, graph=SENTENCES[Remedy.GRAPH])
    if not further:
        return sentence
    references = ", ".join(further[:_MOST_CUTS])
    if len(further) > _MOST_CUTS:
        references = MORE_CUTS.format(references=references, count=len(further) - _MOST_CUTS)
    if not is_complete:
        references = MORE_CYCLES.format(references=references)
    return FURTHER_CUTS.format(advice=sentence, references=references)
