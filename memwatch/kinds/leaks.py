"""Kinds of leaks and the remedies that end them: one row for each, with its words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class RoundPlace(NamedTuple):
    """Where the rounds of a program's work come from.

    Attributes:
        file: the file.
        line: the line at which the loop begins, or the first line of the function of the task.
        function: the function with the loop, or of the task.
        is_task: True if a thread pool runs each round as a task of its own.
    """

    file: str
    line: int
    function: str
    is_task: bool = False


@dataclass(frozen=True, slots=True)
class LeakRow:
    """The properties of one kind of leak.

    Attributes:
        text: the kind in tables and JSON.
        label: the kind in a few words, for the page.
        held_by: the words between a leak and its holder.
        held_by_short: the same for the summary line of a test; None if they are equal.
        meaning: the kind in one sentence, for a legend.
        is_reached: True if a live root reaches it: its path is a way from there, and no cycle.
        amount: a template for how much leaked: hooks have no bytes of their own, and the bytes of nodes are estimated
            from their number.
        has_bytes: False if no size is too small to count: hooks leak, and may keep no tensor at all.
        one: the word for one of the leaked things.
        many: the word for several of them.
    """

    text: str
    label: str
    held_by: str
    meaning: str
    held_by_short: str | None = None
    is_reached: bool = False
    amount: str = "{size} in {counted}"
    has_bytes: bool = True
    one: str = "tensor"
    many: str = "tensors"


class LeakKind(str, Enum):
    """Why tensors outlive the code that made them; equal to its name as text, such as ``"cycle"``."""

    _value_: str
    row: LeakRow

    def __new__(cls, row: LeakRow) -> LeakKind:  # noqa: D102
        kind = str.__new__(cls, row.text)
        kind._value_ = row.text
        kind.row = row
        return kind

    # garbage that only gc frees
    CYCLE = LeakRow(
        "cycle",
        label="reference cycle",
        held_by="freed only by gc: a reference cycle through",
        held_by_short="freed only by gc: cycle through",
        meaning="a reference cycle: only the garbage collector frees it, some time later",
    )
    # a loop through autograd's C++, which gc cannot see
    UNCOLLECTABLE = LeakRow(
        "uncollectable",
        label="never freed",
        held_by="gc cannot free it: a loop through",
        held_by_short="never freed: loop through",
        meaning="a loop through autograd that the garbage collector cannot see: it is never freed",
    )
    # a live root reaches it
    RETAINED = LeakRow(
        "retained",
        label="kept alive",
        held_by="kept alive by",
        meaning="a live object holds it, so it is freed only with that object",
        is_reached=True,
    )
    # the nodes of an autograd graph, which a live root reaches; no tensor's memory
    GRAPH = LeakRow(
        "graph",
        label="growing graph",
        held_by="kept alive by",
        meaning=(
            "the graph of a value that each step adds to: its nodes stay, though backward has freed their "
            "tensors"
        ),
        is_reached=True,
        amount="about {size} in {counted}",
        one="autograd node",
        many="autograd nodes",
    )
    # hooks that each call registers, which a live root reaches; no tensor's memory
    HOOKS = LeakRow(
        "hooks",
        label="hooks of each call",
        held_by="registered on",
        meaning=(
            "hooks that each call registers and none removes; they hold no tensor, but each call runs all of "
            "them"
        ),
        is_reached=True,
        amount="{counted}",
        has_bytes=False,
        one="hook",
        many="hooks",
    )

    __str__ = str.__str__
    __repr__ = str.__repr__

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)

    @property
    def is_reached(self) -> bool:
        """Whether a live root reaches it: its path is a way from there, and no cycle."""
        return self.row.is_reached

    @property
    def is_of_tensors(self) -> bool:
        """Whether tensors leak, and not hooks or nodes of autograd."""
        return self not in (LeakKind.GRAPH, LeakKind.HOOKS)

    def is_below(self, nbytes: int, least_bytes: int) -> bool:
        """Return True if a leak of so many bytes is too small to count. Hooks always count, whatever they keep."""
        return self.row.has_bytes and nbytes < least_bytes

    @property
    def held_by(self) -> str:
        """The verb phrase of a leak of this kind, which comes before the words for its holder."""
        return self.row.held_by

    @property
    def held_by_short(self) -> str:
        """The same phrase for the summary line of a test."""
        return self.row.held_by_short or self.row.held_by


@dataclass(frozen=True, slots=True)
class RemedyRow:
    """The properties of one remedy.

    Attributes:
        advice: the sentence for the user; ``{name}`` is the name of a variable or an attribute.
        of_objects: the sentence where the kept values are no tensors, if it differs: an object has no ``.item()``.
        is_of_function: True for advice about a function, or about a hook in a loop. For a hook that a live object
            keeps, the user has to use its handle instead.
        is_of_entry: True for advice about the entries of a container.
        is_of_container: True for advice about the entries of a list, dictionary or set.
        is_of_name: True for advice about a name with one value: a variable, an attribute.
        is_of_attribute: True for advice about an attribute, behind which a container may grow.
        is_of_reference_in_cycle: True for advice about a plain reference of a cycle, which its target may rule out.
        ends_every_cycle: True for advice that frees all objects of the leak, however many cycles they are in.
        detaches: True if the advice already says to detach the tensor.
        has_value: False for references that no line of the program stores.
        is_of_chain: True for advice about objects of which each keeps the one before.
        for_each_call: the name of the remedy if each call makes the function and puts it into a container.
        is_weak: True for advice to refer to the kept object weakly, which its class must allow.
    """

    advice: str
    of_objects: str = ""
    is_of_function: bool = False
    is_of_entry: bool = False
    is_of_container: bool = False
    is_of_name: bool = False
    is_of_attribute: bool = False
    is_of_reference_in_cycle: bool = False
    ends_every_cycle: bool = False
    detaches: bool = False
    has_value: bool = True
    is_of_chain: bool = False
    for_each_call: str | None = None
    is_weak: bool = False


class Remedy(Enum):
    """The change that ends a leak, chosen by its references. The most specific remedy comes first."""

    _value_: int
    row: RemedyRow

    def __new__(cls, row: RemedyRow) -> Remedy:  # noqa: D102
        remedy = object.__new__(cls)
        remedy._value_ = len(cls.__members__) + 1
        remedy.row = row
        return remedy

    VIEW = RemedyRow(
        "the kept tensor is a view, so the whole of a much larger storage stays: keep `.clone()` of it (of an array "
        "`.copy()`), or a number (`.item()`)"
    )
    VIEW_WITH_GRAPH = RemedyRow(
        (
            "the kept tensor is a view, so its graph and the whole of a much larger storage stay: keep "
            "`.detach().clone()` of it, or a number (`.item()`)"
        ),
        detaches=True,
    )
    GROWING_TENSOR = RemedyRow(
        "one tensor becomes larger and larger (`torch.cat`, `resize_`): keep its newest part "
        "(`value[-100:].clone()`), or reset it after use"
    )
    UNFINISHED_RESULT = RemedyRow(
        "a call that is still running collects these values (a comprehension, `list(map(...))`): let it collect "
        "numbers (`.item()`), or use a loop that drops each value",
        of_objects="a call that is still running collects these objects (a comprehension, `list(map(...))`): let it "
        "collect only the values that you need of each, or use a loop that drops each object",
    )
    HOOK_PER_CALL = RemedyRow(
        "each call registers this hook once more, and none of them is removed: call `handle.remove()` after "
        "use, or register the hook once"
    )
    OPEN_CONTEXT = RemedyRow(
        (
            "a mode, or a context of hooks on saved tensors, was entered and is still open: enter it by `with`,"
            " or call `__exit__` after use"
        ),
        has_value=False,
    )
    HOOK_OF_SELF = RemedyRow(
        "the hook is a bound method, and its object leads back to the hook: give it a function that uses "
        "the module it is called with, hold `self` by `weakref.ref`, or call `handle.remove()`",
        is_weak=True,
    )
    NODE_HOOK = RemedyRow(
        (
            "a hook on `grad_fn` that refers to the tensor keeps both for ever: call `handle.remove()`, or let "
            "the hook use only its arguments"
        ),
        is_of_function=True,
    )
    NODE_PREHOOK = RemedyRow(
        (
            "a pre-hook on an autograd node that refers to the node's graph keeps both for ever: call "
            "`handle.remove()`, or delete the entry it reads (`del group[...]`) after backward"
        ),
        is_of_function=True,
    )
    ACCUMULATE_HOOK = RemedyRow(
        (
            "a post-accumulate hook must not refer to its own parameter: use the parameter it is called with, "
            "or `weakref.ref`"
        ),
        is_of_function=True,
    )
    TENSOR_HOOK = RemedyRow(
        (
            "a tensor hook must not refer to its own tensor: use the gradient it is called with, a "
            "`weakref.ref`, or `handle.remove()` after backward"
        ),
        is_of_function=True,
    )
    METADATA = RemedyRow(
        ("`grad_fn.metadata` must not refer to the tensor itself: store a weak reference or a detached copy"),
        detaches=True,
    )
    PACK_HOOK = RemedyRow(
        "the pack hook keeps the output with its graph: return `tensor.detach()` from it", detaches=True
    )
    SAVED_VIEW = RemedyRow(
        ("save the output itself, not a view of it, with `ctx.save_for_backward`; or detach what is saved"),
        detaches=True,
    )
    NUMPY = RemedyRow(
        "a numpy array shares the tensor's memory and keeps the tensor: limit the container of the arrays, "
        "store numbers (`.item()`), or copies (`.copy()`) of the part that is needed"
    )
    SHARED_MEMORY = RemedyRow(
        "an object made by DLPack or the buffer protocol shares the tensor's memory: drop it after use, or "
        "store numbers (`.item()`)"
    )
    FUNCTORCH = RemedyRow(
        "a tensor from inside a torch.func transform keeps the tensor that it wraps: return it from the "
        "function instead"
    )
    ENDLESS_LOOP = RemedyRow(
        "`itertools.cycle` keeps every item of its iterator: loop over the loader anew for each epoch "
        "(`while True: yield from loader`)"
    )
    CTX_ATTRIBUTE = RemedyRow(
        "use `ctx.save_for_backward(y)` for inputs and outputs, in place of attributes of `ctx`; a tensor that "
        "forward only uses inside itself may stay an attribute"
    )
    CTX_OBJECT = RemedyRow(
        "`ctx` keeps this object, and the object leads back to the output: give inputs and outputs to "
        "`ctx.save_for_backward(y)` and keep only other values in the object, or delete the attribute after backward"
    )
    EXCEPTION_ARGS = RemedyRow(
        "the exception keeps its arguments: give it text (`str(tensor.shape)`), not tensors"
    )
    EXCEPTION = RemedyRow(
        "the exception keeps its traceback, and so every local variable of the failed calls: drop it (`del "
        "err`), clear it (`err.with_traceback(None)`), or keep `str(err)`"
    )
    LAST_EXCEPTION = RemedyRow(
        "the interactive shell keeps the last exception with all its local variables: `del sys.last_value, "
        "sys.last_traceback`"
    )
    TRACEBACK = RemedyRow(
        "the traceback keeps every local variable of the failed calls: keep its text, not the object"
    )
    FRAME = RemedyRow(
        "a frame keeps every local variable of its call and of those around it: keep its text "
        "(`traceback.extract_stack()`), not the object"
    )
    OUTPUT_HISTORY = RemedyRow(
        "IPython's output history keeps every displayed value: `%reset out`, or end the line with `;`"
    )
    SHELL_RESULT = RemedyRow(
        "the interpreter keeps the last displayed value: evaluate something else, or assign the value to a name"
    )
    IPYTHON_RESULT = RemedyRow(
        "IPython keeps the last displayed values: evaluate something else, or end the line with `;`"
    )
    CACHED_METHOD = RemedyRow(
        "the cache of a method keeps every `self` and every argument: give it a small `maxsize`, or call "
        "`cache_clear()`; a method without arguments can be a `functools.cached_property` instead"
    )
    CACHE = RemedyRow(
        "the cache keeps its arguments and results: give it a small `maxsize`, call `cache_clear()`, or key"
        " it by plain values"
    )
    KEPT_CONTEXT = RemedyRow(
        "a `contextvars.Context` keeps the value that every variable had when it was copied: drop the copy after use, "
        "or limit the container that keeps the copies (`deque(maxlen=...)`)"
    )
    CONTEXT_VARIABLE = RemedyRow(
        "reset the variable after use: `token = var.set(...)` ... `var.reset(token)`"
    )
    THREAD_LOCAL = RemedyRow("a thread local lives as long as its thread: delete the attribute after use")
    EXECUTOR = RemedyRow(
        "a call that waits in an executor keeps its arguments until it has run: wait for its future, cancel"
        " it (`future.cancel()`), or leave the executor by `with`"
    )
    THREAD = RemedyRow(
        "a running thread keeps its arguments and local variables: end it, or drop the tensor inside it"
    )
    SIGNAL_HANDLER = RemedyRow(
        "a signal handler lives until another one replaces it: let it refer to no tensors"
    )
    ATEXIT = RemedyRow(
        "a function registered with atexit lives until the program ends: unregister it, or give it a weak "
        "reference",
        is_weak=True,
    )
    ARGUMENTS_IN_C = RemedyRow(
        "only C code keeps these arguments, for example of `atexit.register(f, x)`: unregister the function"
        " after use (`atexit.unregister`), or give it a weak reference",
        is_weak=True,
    )
    FUNCTION_IN_C = RemedyRow(
        "only C code keeps this function, as it does a callback, or a hook of a context that is still open "
        "(`saved_tensors_hooks`): unregister it after use, or enter the context by `with`"
    )
    FINALIZER_OF_OBJECT = RemedyRow(
        "a finalizer keeps its function and its arguments until its object dies, and the object never dies if they "
        "lead to it: give it a static method or a module function, and as argument the resource itself and not the "
        "object"
    )
    FINALIZER = RemedyRow("a finalizer keeps its arguments until its object dies: do not hand it the tensor")
    TASK = RemedyRow(
        "a task that waits keeps the local variables of its coroutine: cancel the task (`task.cancel()`), or set what "
        "it waits for",
        ends_every_cycle=True,
    )
    GENERATOR = RemedyRow(
        "a suspended generator or coroutine keeps its local variables: exhaust it, await it, or call `close()`"
    )
    PARTIAL = RemedyRow(
        "the partial keeps its arguments: drop the partial after use, or bind a weak reference and keep the object "
        "elsewhere while you need it",
        is_weak=True,
        for_each_call="PARTIAL_PER_CALL",
    )
    EXIT_STACK = RemedyRow(
        "the stack keeps each callback, and what the callback refers to, until the stack is closed: enter it by "
        "`with`, or call `close()` after use"
    )
    LOG_RECORD = RemedyRow("a log record keeps its arguments: log numbers (`.item()`), not tensors")
    MOCK = RemedyRow(
        "a mock keeps the arguments of its calls in several lists, and refers to itself: call `reset_mock()` "
        "after use"
    )
    DEFAULT_ARGUMENT = RemedyRow(
        "a default argument lives as long as its function: use None and make the value inside"
    )
    CLOSURE_CELL = RemedyRow(
        (
            "the inner function keeps the variables that it captures: pass the tensor as an argument, or delete"
            " the name after use"
        ),
        is_of_function=True,
        is_of_name=True,
        for_each_call="FUNCTION_PER_CALL",
    )
    CLOSURE_CELL_IN_CYCLE = RemedyRow(
        "the inner function captures an object that leads back to it: pass that object as an argument, or "
        "delete the name after use"
    )
    CLOSURE_OF_OBJECT = RemedyRow(
        "the inner function closes over `{name}` and keeps that object: let it close over `weakref.ref({name})` and "
        "keep the object elsewhere while you need it, or drop the function after use",
        is_of_name=True,
        is_weak=True,
    )
    GRAPH = RemedyRow(
        (
            "the tensor keeps its autograd graph, and until its backward has run, the graph keeps activations: "
            "`value.detach()` frees the graph but not the tensor, and a number (`value.mean().item()`) frees both"
        ),
        detaches=True,
    )
    GRADIENT = RemedyRow(
        "with `create_graph=True` the gradient refers back to the parameter: use `torch.autograd.grad`, or "
        "set `.grad = None` after use"
    )
    BOUND_METHOD = RemedyRow(
        (
            "the bound method keeps its object: store a `weakref.WeakMethod` (a `weakref.ref` of it is dead at "
            "once) and keep the object elsewhere while you need it, store a plain function that is given the object, "
            "or drop the method after use"
        ),
        is_of_function=True,
        is_weak=True,
    )
    MODULE_HOOK = RemedyRow(
        "a registered hook keeps the objects that it refers to, with everything that it collects: call "
        "`handle.remove()` when done, or clear the container that the hook fills"
    )
    OPTIMIZER_STATE = RemedyRow(
        "the optimizer keeps each parameter that was replaced, with its state: remove the old parameter from "
        "`optimizer.param_groups`, and delete its state (`del optimizer.state[old]`)"
    )
    CLASS_ATTRIBUTE = RemedyRow(
        (
            "a class attribute lives as long as the class: keep the value on an instance, or delete it after "
            "use"
        ),
        is_of_attribute=True,
        is_of_name=True,
    )
    FUNCTION_PER_CALL = RemedyRow(
        "the container grows and keeps each function with the variables that it captures: remove each function after "
        "use, empty the container or limit its size (`deque(maxlen=...)`), or pass the tensor as an argument"
    )
    PARTIAL_PER_CALL = RemedyRow(
        "the container grows and keeps each partial with its arguments: remove each partial after it has run, empty "
        "the container, or limit its size (`deque(maxlen=...)`)"
    )
    CLASS_PER_CALL = RemedyRow(
        "each call makes a class, and the container keeps every one: define the class once, outside the "
        "function"
    )
    REGISTRY = RemedyRow(
        "the container grows and keeps each object: hold them weakly (`weakref.WeakSet`), remove each after"
        " use, or limit its size (`deque(maxlen=...)`)",
        is_weak=True,
    )
    ITEM = RemedyRow(
        (
            "the container grows and keeps each entry: store numbers (`.mean().item()`), limit its size "
            "(`deque(maxlen=...)`), or clear it after use"
        ),
        of_objects="the container grows and keeps each entry: remove each entry after use, keep only the values that "
        "you need of it, or limit the container's size (`deque(maxlen=...)`)",
        is_of_entry=True,
        is_of_container=True,
    )
    WEAK_KEYS = RemedyRow(
        "a `WeakKeyDictionary` drops an entry once its key is gone, and something keeps the keys: if the value "
        "refers to its key, make that reference weak (`weakref.ref`)"
    )
    KEPT_KEYS = RemedyRow(
        "a `WeakKeyDictionary` drops an entry once its key is gone, and {name} keeps the keys: remove each key there "
        "after use, or limit how many it keeps"
    )
    VALUE = RemedyRow(
        "the dictionary keeps each entry: limit its size, or delete entries after use",
        is_of_entry=True,
        is_of_container=True,
    )
    VALUE_OF_OBJECTS = RemedyRow(
        "the dictionary keeps each entry: limit its size, delete entries after use, or use a `WeakKeyDictionary`, "
        "which drops each entry once nothing else keeps its key",
        is_of_entry=True,
        is_of_container=True,
    )
    # in a `WeakKeyDictionary` a lookup compares tensors, and their comparison is no `bool`
    VALUE_OF_TENSORS = RemedyRow(
        "the dictionary keeps each entry, and its keys are tensors: a lookup finds an entry only with the same tensor "
        "object. Use keys that come again (`tuple(x.shape)`, a name), limit its size, or delete entries after use",
        is_of_entry=True,
        is_of_container=True,
    )
    MEMBER = RemedyRow(
        "the set keeps each entry: discard it after use, or use a `weakref.WeakSet`",
        is_of_entry=True,
        is_of_container=True,
        is_weak=True,
    )
    BUFFER = RemedyRow(
        "the buffer keeps the assigned value: assign `value.detach()`", is_of_entry=True, detaches=True
    )
    ATTRIBUTE = RemedyRow(
        ("the object keeps the tensor: delete the attribute after use, or store a number (`.item()`)"),
        of_objects="the object keeps what its attribute refers to: delete the attribute after use, or store only the "
        "values that you need",
        is_of_attribute=True,
        is_of_name=True,
    )
    CHAIN = RemedyRow(
        "each object keeps the one before it by `.{name}`, so none is freed: make each object from the original one, "
        "or from the values that it needs. If nothing uses the older objects, delete that attribute of the older "
        "object",
        is_of_chain=True,
    )
    WRAPPERS = RemedyRow(
        "each call wraps the function of the call before, and the new function keeps the old one, so none is freed: "
        "wrap the original function once, or put it back after use",
        is_of_chain=True,
    )
    NESTED = RemedyRow(
        "each call puts the object of the call before into a new one, so none is freed: drop the old object after use, "
        "or keep the values in a container of limited size (`deque(maxlen=...)`)",
        is_of_chain=True,
    )
    SUBMODULE = RemedyRow(
        (
            "the module keeps each submodule, parameter and buffer that is registered with it: reuse one, or "
            "delete it after use (`del parent[name]`, `delattr(parent, name)`)"
        ),
        is_of_entry=True,
    )
    PICKLER = RemedyRow(
        "a pickler keeps every object that it has written: call its `clear_memo()` after each `dump`, or make a new "
        "pickler for each"
    )
    TEE = RemedyRow(
        "`itertools.tee` keeps each item until every branch has read it: read all branches at one pace, or delete the "
        "branch that is not read"
    )
    ITERATOR = RemedyRow("the iterator or container keeps its items: drop it after use")
    GLOBAL = RemedyRow(
        "the module keeps the tensor: delete the name after use, or store a number",
        of_objects="the module keeps the object: delete the name after use, or store only the values that you need",
        is_of_name=True,
    )
    ARGUMENT = RemedyRow(
        "the argument of a running call keeps it: delete the name after use, or set it to None",
        is_of_name=True,
    )
    LOCAL = RemedyRow(
        "the local variable keeps it: delete the name after use",
        is_of_name=True,
    )
    C_CODE = RemedyRow(
        (
            "C code alone holds it: look for an open context (autocast, graph capture), a C++ cache, or an "
            "extension that does not give back a reference"
        ),
        has_value=False,
    )
    CLASS_IN_CYCLE = RemedyRow(
        "every class refers to itself, so a class made per call is a cycle: define it once, outside the "
        "function"
    )
    LOCAL_IN_CYCLE = RemedyRow(
        "a local variable leads back to its own call: delete it before the function returns (`del frame`, "
        "`del err`)"
    )
    ATTRIBUTE_IN_CYCLE = RemedyRow(
        (
            "the object leads back to itself: delete this reference after use, or make it weak (`weakref.ref`) "
            "if something else keeps what it leads to"
        ),
        is_of_reference_in_cycle=True,
        is_weak=True,
    )
    ITEM_IN_CYCLE = RemedyRow(
        (
            "the container leads back to itself: hold the entry by `weakref.ref`, or clear the container after "
            "use"
        ),
        is_of_reference_in_cycle=True,
        is_weak=True,
    )
    VALUE_IN_CYCLE = RemedyRow(
        ("the dictionary leads back to itself: hold the entry by `weakref.ref`, or delete it after use"),
        is_of_reference_in_cycle=True,
        is_weak=True,
    )
    MEMBER_IN_CYCLE = RemedyRow(
        ("the set leads back to itself: use a `weakref.WeakSet`, or discard the member after use"),
        is_of_reference_in_cycle=True,
        is_weak=True,
    )
    SUBMODULE_IN_CYCLE = RemedyRow(
        "the module is registered, by others, in itself: give the inner one a weak reference "
        "(`weakref.ref(parent)`), or pass the outer one as an argument of `forward`"
    )
    GLOBAL_IN_CYCLE = RemedyRow(
        "the module leads back to itself: delete this name after use", is_of_reference_in_cycle=True
    )
    ANY = RemedyRow("cut this reference after the last use of the tensor", has_value=False)
