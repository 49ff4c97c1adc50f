"""References between the objects of a process: one row per kind, with everything that depends on the kind.

An `Edge` has the kind of the reference from its owner to its target. It also has the identifiers that the program
itself uses: names of variables, attributes and classes, positions, files and lines. Decisions (which reference to
cut, which advice fits, how to draw) depend on these fields and on the row of the kind, and never on its words.
`memwatch.words` makes the sentence for a reader last.

This module imports neither torch nor any part of memwatch outside `memwatch.kinds`, so all other parts may use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Final

from memwatch.kinds.holders import HolderKind
from memwatch.kinds.leaks import Remedy


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """The properties of one kind of reference.

    Attributes:
        number: the number in the capture file.
        words: a template for the reference. `` of`` and the owner follow, unless the template has a
            place for the owner.
        words_by_position: a template for an edge with a position, where the kind may have a name instead.
        words_as_root: a template for the variable at the root of a path, if a reader is told of this kind as a
            variable. `{name}` includes the references that follow, in Python's notation.
        root_holder: the kind of holder that such a variable is.
        holder: the kind of holder that a reference of this kind on the way to the memory is.
        cut_rank: the lower, the more likely the reference is the one that the user wrote and can edit; None for
            references that are cut only if nothing else can be.
        is_plumbing: True if the reference follows from another one, which should be cut.
        mechanism: the advice that this kind decides wherever it stands on the path of a leak.
        retained: the advice where a live root holds the tensor through this reference.
        in_cycle: the advice where the reference leads back to itself.
        deleted_with: the name of the kind whose reference the same deletion ends.
        is_variable: True for a variable of a call or of a module.
        is_call_variable: True for a variable of a running or suspended call.
        is_attribute: True if an assignment to an attribute, as `module.weight = ...`, makes the reference.
        is_in_module: True for a part of an `nn.Module` that the module lists under a name.
        is_fixed_place: True if the reference names one place of its owner, and a sample at another time may compare it.
        is_rebound: True if programs assign this name again and again, so that the newest value replaces an older one.
        is_entry: True for the place of an object in a container.
        is_accessor: True if an expression can follow the reference, as `.cache` or `[3]`.
        is_kept_by_owner: True if the owner keeps the target whatever variable leads to the owner.
        is_silent: True if the words alone would not tell a reader what to edit.
        is_hook_table: True for a table of hooks that a tensor or an autograd node has.
        is_of_open_context: True for a reference that torch keeps of a context from `__enter__` to `__exit__`.
        is_of_any_code: True if any code may make the reference: the file of the class is the wrong place to edit it.
        is_named_per_object: True if each object of a series may have another name.
        has_one_value: True if one name has one value at a time, as a variable has.
        is_nameless: True if it is the same in any container: the way to the container tells one from another.
        is_filled: True for a place of a container or a cache, which may fill up or grow for ever.
        is_filled_on_first_use: True for a place that the first use fills, and later uses read, as of a cache.
        is_written_in_file: True if the reference stands in the code of the file that it names.
        keeps_results: True for an attribute or a captured variable: it keeps a result after the call that made it.
        outlives_iteration: True for a reference of an object that an iteration does not make anew, as it makes a
            model's output.
    """

    number: int
    words: str
    words_by_position: str | None = None
    words_as_root: str | None = None
    root_holder: HolderKind | None = None
    holder: HolderKind | None = None
    cut_rank: int | None = None
    is_plumbing: bool = False
    mechanism: Remedy | None = None
    retained: Remedy | None = None
    in_cycle: Remedy | None = None
    deleted_with: str | None = None
    is_variable: bool = False
    is_call_variable: bool = False
    is_attribute: bool = False
    is_in_module: bool = False
    is_fixed_place: bool = False
    is_rebound: bool = False
    is_entry: bool = False
    is_accessor: bool = False
    is_kept_by_owner: bool = False
    is_silent: bool = False
    is_hook_table: bool = False
    is_of_open_context: bool = False
    is_of_any_code: bool = False
    is_named_per_object: bool = False
    has_one_value: bool = False
    is_nameless: bool = False
    is_filled: bool = False
    is_filled_on_first_use: bool = False
    is_written_in_file: bool = False
    keeps_results: bool = False
    outlives_iteration: bool = False


@unique
class EdgeKind(Enum):
    """How one object refers to another.

    The capture file stores the number of a kind: never change or reuse one. The comment of a kind has the meaning of
    `Edge.name` and `Edge.position`, if they are set.
    """

    _value_: int
    row: EdgeRow

    __hash__ = object.__hash__  # in C: paths are looked up by their edges

    def __new__(cls, row: EdgeRow) -> EdgeKind:  # noqa: D102
        kind = object.__new__(cls)
        kind._value_ = row.number
        kind.row = row
        return kind

    # of an unknown kind; also from the inside of a C type
    REFERENCE = EdgeRow(
        0,
        "reference from {owner}",
        is_plumbing=True,
        retained=Remedy.ITERATOR,
        is_silent=True,
        is_nameless=True,
        is_filled=True,
    )

    # variables
    # name of the variable
    LOCAL = EdgeRow(
        10,
        "local `{name}`",
        words_as_root="`{name}`, local variable of `{owner}`{library}{thread}",
        root_holder=HolderKind.LOCAL,
        cut_rank=5,
        retained=Remedy.LOCAL,
        in_cycle=Remedy.LOCAL_IN_CYCLE,
        is_call_variable=True,
        has_one_value=True,
        is_variable=True,
        is_rebound=True,
        is_written_in_file=True,
    )
    # name of the argument, or its position where only that is known
    ARGUMENT = EdgeRow(
        11,
        "argument `{name}`",
        words_by_position="argument [{position}]",
        words_as_root="`{name}`, argument of `{owner}`{library}{thread}",
        root_holder=HolderKind.ARGUMENT,
        cut_rank=10,
        retained=Remedy.ARGUMENT,
        is_call_variable=True,
        has_one_value=True,
        is_variable=True,
    )
    # name of the module's variable
    GLOBAL = EdgeRow(
        12,
        "global `{name}`",
        words_as_root="global `{name}` of module `{owner}`",
        root_holder=HolderKind.GLOBAL,
        cut_rank=17,
        retained=Remedy.GLOBAL,
        in_cycle=Remedy.GLOBAL_IN_CYCLE,
        has_one_value=True,
        is_variable=True,
        is_rebound=True,
    )
    # name of the ContextVar
    CONTEXT_VARIABLE = EdgeRow(
        13,
        "ContextVar {quoted}",
        words_as_root="context variable `{name}`",
        root_holder=HolderKind.GLOBAL,
        cut_rank=11,
        mechanism=Remedy.CONTEXT_VARIABLE,
        is_named_per_object=True,
        outlives_iteration=True,
        has_one_value=True,
        is_rebound=True,
    )
    # name of the attribute of a threading.local
    THREAD_LOCAL = EdgeRow(
        14,
        "thread local attribute .{name}",
        cut_rank=4,
        mechanism=Remedy.THREAD_LOCAL,
        outlives_iteration=True,
        has_one_value=True,
        is_rebound=True,
    )
    # a value of a call that has no variable
    TEMPORARY = EdgeRow(15, "a temporary")
    # from a frame to the frame that called it
    CALLER = EdgeRow(16, "caller", is_written_in_file=True)
    # a value in the middle of an expression, a running `for`, or a C call's arguments
    EVALUATION_STACK = EdgeRow(17, "a value that no variable names")
    # the function that find_leaks was given
    CHECKED_FUNCTION = EdgeRow(18, "the function")

    # objects and classes
    # name of the attribute, in a dictionary or a slot
    ATTRIBUTE = EdgeRow(
        30,
        "attribute .{name}",
        cut_rank=4,
        retained=Remedy.ATTRIBUTE,
        in_cycle=Remedy.ATTRIBUTE_IN_CYCLE,
        is_accessor=True,
        is_kept_by_owner=True,
        is_of_any_code=True,
        has_one_value=True,
        is_attribute=True,
        is_fixed_place=True,
        is_rebound=True,
        keeps_results=True,
    )
    # an object's own dictionary, where the path ends there
    INSTANCE_DICT = EdgeRow(31, "__dict__", is_plumbing=True, is_of_any_code=True, is_nameless=True)
    # from an object to its class
    CLASS_OF = EdgeRow(32, "class of {owner} object", is_plumbing=True)
    # name of the attribute
    CLASS_ATTRIBUTE = EdgeRow(
        33,
        "class attribute .{name}",
        cut_rank=4,
        retained=Remedy.CLASS_ATTRIBUTE,
        in_cycle=Remedy.CLASS_IN_CYCLE,
        is_accessor=True,
        is_kept_by_owner=True,
        outlives_iteration=True,
        has_one_value=True,
        is_attribute=True,
        is_fixed_place=True,
        is_rebound=True,
        is_written_in_file=True,
        keeps_results=True,
    )
    # name of an entry that the class's namespace no longer has
    CLASS_ENTRY = EdgeRow(34, "class entry .{name}", in_cycle=Remedy.CLASS_IN_CYCLE)
    # __dict__ or __weakref__, through which every class refers to itself
    CLASS_DESCRIPTOR = EdgeRow(
        35, "{name} descriptor", in_cycle=Remedy.CLASS_IN_CYCLE, is_written_in_file=True
    )
    # __mro__ or __bases__
    CLASS_BASES = EdgeRow(36, "__mro__ or bases", in_cycle=Remedy.CLASS_IN_CYCLE, is_written_in_file=True)
    # name in the nn.Module
    PARAMETER = EdgeRow(
        37,
        "parameter {quoted}",
        cut_rank=11,
        retained=Remedy.SUBMODULE,
        is_accessor=True,
        is_kept_by_owner=True,
        is_of_any_code=True,
        is_named_per_object=True,
        has_one_value=True,
        is_attribute=True,
        is_in_module=True,
    )
    # name in the nn.Module
    BUFFER = EdgeRow(
        38,
        "buffer {quoted}",
        cut_rank=11,
        retained=Remedy.BUFFER,
        is_accessor=True,
        is_kept_by_owner=True,
        is_of_any_code=True,
        is_named_per_object=True,
        has_one_value=True,
        is_attribute=True,
        is_in_module=True,
        is_fixed_place=True,
        is_rebound=True,
    )
    # name in the nn.Module
    SUBMODULE = EdgeRow(
        39,
        "submodule {quoted}",
        cut_rank=11,
        retained=Remedy.SUBMODULE,
        in_cycle=Remedy.SUBMODULE_IN_CYCLE,
        is_accessor=True,
        is_of_any_code=True,
        is_named_per_object=True,
        is_attribute=True,
        is_in_module=True,
        is_fixed_place=True,
    )

    # containers
    # position in a list, tuple, deque or array of objects; None if the container grows, and the item is one of many
    ITEM = EdgeRow(
        50,
        "an item of a {owner}",
        words_by_position="item [{position}]",
        cut_rank=12,
        retained=Remedy.ITEM,
        in_cycle=Remedy.ITEM_IN_CYCLE,
        is_entry=True,
        is_accessor=True,
        is_silent=True,
        is_nameless=True,
        is_filled=True,
    )
    # the key as Python writes it
    VALUE = EdgeRow(
        51,
        "value of key {name}",
        cut_rank=11,
        retained=Remedy.VALUE,
        in_cycle=Remedy.VALUE_IN_CYCLE,
        is_entry=True,
        is_accessor=True,
        is_silent=True,
        is_nameless=True,
        is_filled=True,
        is_filled_on_first_use=True,
    )
    KEY = EdgeRow(
        52,
        "a key",
        deleted_with="VALUE",
        cut_rank=16,
        retained=Remedy.VALUE,
        in_cycle=Remedy.VALUE_IN_CYCLE,
        is_entry=True,
        is_silent=True,
        is_nameless=True,
        is_filled=True,
    )
    # of a set
    MEMBER = EdgeRow(
        53,
        "member",
        cut_rank=13,
        retained=Remedy.MEMBER,
        in_cycle=Remedy.MEMBER_IN_CYCLE,
        is_entry=True,
        is_silent=True,
        is_nameless=True,
        is_filled=True,
    )
    # name of the field of a named tuple
    FIELD = EdgeRow(
        54, "field .{name}", is_accessor=True, is_kept_by_owner=True, is_nameless=True, is_fixed_place=True
    )

    # functions
    # name of the variable that the function closes over
    CLOSURE_CELL = EdgeRow(
        70,
        "closure cell `{name}`",
        holder=HolderKind.CLOSURE_CELL,
        cut_rank=1,
        retained=Remedy.CLOSURE_CELL,
        in_cycle=Remedy.CLOSURE_CELL_IN_CYCLE,
        outlives_iteration=True,
        has_one_value=True,
        is_rebound=True,
        is_written_in_file=True,
        keeps_results=True,
    )
    # from a cell that no function on the path owns
    CELL_CONTENTS = EdgeRow(
        71,
        "contents of a closure cell",
        holder=HolderKind.CLOSURE_CELL,
        is_plumbing=True,
        retained=Remedy.CLOSURE_CELL,
        in_cycle=Remedy.CLOSURE_CELL_IN_CYCLE,
        is_silent=True,
        outlives_iteration=True,
        is_nameless=True,
        keeps_results=True,
    )
    # name of the argument
    DEFAULT_ARGUMENT = EdgeRow(
        72,
        "default argument `{name}`",
        holder=HolderKind.DEFAULT_ARGUMENT,
        cut_rank=6,
        mechanism=Remedy.DEFAULT_ARGUMENT,
        outlives_iteration=True,
        is_written_in_file=True,
    )
    # from a bound method to its object
    BOUND_SELF = EdgeRow(73, "`self`", cut_rank=7, retained=Remedy.BOUND_METHOD, in_cycle=Remedy.BOUND_METHOD)
    # from a bound method to its function
    BOUND_FUNCTION = EdgeRow(74, "function", retained=Remedy.BOUND_METHOD, in_cycle=Remedy.BOUND_METHOD)
    # name of the keyword, or position
    PARTIAL_ARGUMENT = EdgeRow(
        75,
        "argument `{name}`",
        words_by_position="argument [{position}]",
        cut_rank=10,
        mechanism=Remedy.PARTIAL,
        is_accessor=True,
    )
    # kept by functools.lru_cache
    CACHE_RESULT = EdgeRow(
        76,
        "a result kept by lru_cache",
        holder=HolderKind.CACHE,
        mechanism=Remedy.CACHE,
        is_kept_by_owner=True,
        outlives_iteration=True,
        is_filled=True,
        is_filled_on_first_use=True,
    )
    # kept by functools.lru_cache
    CACHE_ARGUMENT = EdgeRow(
        77,
        "an argument kept by lru_cache",
        deleted_with="CACHE_RESULT",
        holder=HolderKind.CACHE,
        cut_rank=10,
        mechanism=Remedy.CACHE,
        is_kept_by_owner=True,
        outlives_iteration=True,
        is_filled=True,
        is_filled_on_first_use=True,
    )
    # from a task to its coroutine
    COROUTINE = EdgeRow(78, "coroutine")

    # exceptions
    # __traceback__, __context__ or __cause__
    EXCEPTION_FIELD = EdgeRow(
        90, "{name} of exception {owner}", holder=HolderKind.EXCEPTION, mechanism=Remedy.EXCEPTION
    )
    EXCEPTION_ARGS = EdgeRow(
        91, "args of exception {owner}", holder=HolderKind.EXCEPTION, mechanism=Remedy.EXCEPTION_ARGS
    )
    # the exception of a running `except`
    EXCEPTION_HANDLED = EdgeRow(
        92,
        "exception being handled",
        words_as_root="the {name} that is being handled",
        root_holder=HolderKind.EXCEPTION,
        mechanism=Remedy.EXCEPTION,
    )
    # from a traceback to the frame
    TRACEBACK_CALL = EdgeRow(
        93, "call", holder=HolderKind.EXCEPTION, mechanism=Remedy.TRACEBACK, is_silent=True
    )
    TRACEBACK_NEXT = EdgeRow(94, "next entry", holder=HolderKind.EXCEPTION, mechanism=Remedy.TRACEBACK)
    # sys.last_value and its like; name
    LAST_EXCEPTION = EdgeRow(
        95,
        "sys.{name} (the last uncaught exception, kept for the debugger)",
        words_as_root="`sys.{name}`, the last uncaught exception",
        root_holder=HolderKind.EXCEPTION,
        mechanism=Remedy.LAST_EXCEPTION,
    )

    # kept by the interpreter, a shell or torch
    # from sys.modules; every path starts so, and texts leave it out
    MODULE = EdgeRow(110, "module {name}")
    ATEXIT_CALLBACK = EdgeRow(111, "atexit callback", mechanism=Remedy.ATEXIT)
    # of weakref.finalize
    FINALIZER_REGISTRY = EdgeRow(
        112, "registry of weakref.finalize callbacks", mechanism=Remedy.FINALIZER, is_filled_on_first_use=True
    )
    # name of the signal
    SIGNAL_HANDLER = EdgeRow(113, "handler of {name}", mechanism=Remedy.SIGNAL_HANDLER)
    TRACE_FUNCTION = EdgeRow(114, "trace function (sys.settrace)")
    PROFILE_FUNCTION = EdgeRow(115, "profile function (sys.setprofile)")
    ASYNC_GENERATOR_HOOK = EdgeRow(116, "asynchronous generator hook (sys.set_asyncgen_hooks)")
    # IPython's `Out`; name
    OUTPUT_HISTORY = EdgeRow(117, "IPython's output history `{name}`", mechanism=Remedy.OUTPUT_HISTORY)
    # `_`, `__` or `___` of an interactive shell; name
    SHELL_RESULT = EdgeRow(118, "the interactive shell's {result} `{name}`", mechanism=Remedy.SHELL_RESULT)
    # active TorchDispatchMode
    DISPATCH_MODE = EdgeRow(119, "active dispatch mode", is_of_open_context=True)
    # active TorchFunctionMode
    FUNCTION_MODE = EdgeRow(120, "active function mode", is_of_open_context=True)
    # active saved_tensors_hooks
    DEFAULT_SAVED_HOOK = EdgeRow(121, "active saved-tensor hook", is_of_open_context=True)

    # tensors, in C++
    STORAGE = EdgeRow(140, "storage")
    GRAD = EdgeRow(
        141,
        ".grad",
        cut_rank=9,
        retained=Remedy.GRADIENT,
        in_cycle=Remedy.GRADIENT,
        is_accessor=True,
        has_one_value=True,
    )
    GRAD_FN = EdgeRow(142, ".grad_fn", retained=Remedy.GRAPH)
    # from a view to the tensor it views
    BASE = EdgeRow(143, "._base")
    TENSOR_HOOKS = EdgeRow(
        144,
        "tensor hooks (._backward_hooks)",
        cut_rank=14,
        mechanism=Remedy.TENSOR_HOOK,
        is_hook_table=True,
        is_nameless=True,
    )
    # register_post_accumulate_grad_hook
    ACCUMULATE_HOOKS = EdgeRow(
        145,
        "post-accumulate-grad hooks",
        cut_rank=15,
        mechanism=Remedy.ACCUMULATE_HOOK,
        is_hook_table=True,
        is_nameless=True,
    )
    # name of the method, such as `indices`
    SPARSE_PART = EdgeRow(146, "sparse .{name}()")
    # wrapped by torch.func
    FUNCTORCH_VALUE = EdgeRow(147, "value wrapped by torch.func", mechanism=Remedy.FUNCTORCH)

    # autograd nodes, in C++
    # position among next_functions
    NEXT_FUNCTION = EdgeRow(160, "next_functions[{position}]", retained=Remedy.GRAPH)
    # from AccumulateGrad to its leaf
    VARIABLE = EdgeRow(161, ".variable")
    METADATA = EdgeRow(162, ".metadata", cut_rank=8, mechanism=Remedy.METADATA)
    # name of the saved tensor; position where several are saved under one name
    SAVED = EdgeRow(163, "saved `{name}`", words_by_position="saved {name}[{position}]", cut_rank=3)
    # the same, as a pack hook made it
    PACKED = EdgeRow(
        164,
        "saved `{name}`, packed by a saved-tensor hook",
        words_by_position="saved {name}[{position}], packed by a saved-tensor hook",
        cut_rank=2,
        mechanism=Remedy.PACK_HOOK,
    )
    # of that saved tensor
    UNPACK_HOOK = EdgeRow(
        165,
        "unpack hook of saved `{name}`",
        words_by_position="unpack hook of saved {name}[{position}]",
        mechanism=Remedy.PACK_HOOK,
    )
    # to_save or saved_for_forward of a custom Function's ctx
    CTX_SAVED = EdgeRow(166, "ctx.{name}")
    NODE_HOOKS = EdgeRow(
        167,
        "node hooks (register_hook)",
        cut_rank=14,
        mechanism=Remedy.NODE_HOOK,
        is_hook_table=True,
        is_nameless=True,
    )
    NODE_PREHOOKS = EdgeRow(
        168,
        "node pre-hooks (register_prehook)",
        cut_rank=14,
        mechanism=Remedy.NODE_PREHOOK,
        is_hook_table=True,
        is_nameless=True,
    )
    # from a tensor to whatever the autograd graph behind it keeps
    GRAPH = EdgeRow(169, ".grad_fn and the graph behind it")

    # other C code that gc does not follow
    NUMPY_BASE = EdgeRow(180, "numpy .base", mechanism=Remedy.NUMPY)
    # of a torch.futures.Future
    FUTURE_RESULT = EdgeRow(181, "result")
    # from a DLPack capsule, or a storage over the same memory, to the storage that owns it
    SHARED_MEMORY = EdgeRow(183, "memory that {owner} shares", mechanism=Remedy.SHARED_MEMORY)
    # nothing in Python refers to it
    C_CODE = EdgeRow(
        182,
        "C code (no Python reference)",
        words_as_root="C++, and Python shows no reference to it",
        retained=Remedy.C_CODE,
    )


@dataclass(frozen=True, slots=True)
class VertexRow:
    """The properties of one kind of object.

    Attributes:
        number: the number in the capture file.
        words: a template for the object.
        suspended: a template for it while its call is suspended.
        holder: the kind of holder that its variables and attributes are.
        is_expression: False if nobody would edit its attributes through an expression.
        is_named: True if its plain name identifies it.
        is_around: True if it only wraps others: a weak reference to it is impossible, or is dead at once.
        is_store: True if a program stores tensors in it as its items.
        comes_with_tensors: True if the program got the object with its tensors, and did not store them in it.
        is_handle: True if it only leads to other objects, and is not itself what a program meant to keep.
    """

    number: int
    words: str
    suspended: str | None = None
    holder: HolderKind | None = None
    is_expression: bool = True
    is_named: bool = False
    is_around: bool = False
    is_store: bool = False
    comes_with_tensors: bool = False
    is_handle: bool = False


@unique
class VertexKind(Enum):
    """The kind of an object: each kind is described in its own way. The capture file stores these numbers."""

    _value_: int
    row: VertexRow

    __hash__ = object.__hash__

    def __new__(cls, row: VertexRow) -> VertexKind:  # noqa: D102
        kind = object.__new__(cls)
        kind._value_ = row.number
        kind.row = row
        return kind

    OBJECT = VertexRow(0, "{name}", is_named=True)
    TENSOR = VertexRow(1, "{name}")
    ARRAY = VertexRow(2, "{name}", is_store=True)
    STORAGE = VertexRow(3, "storage of {size}")
    # autograd node of C++
    NODE = VertexRow(4, "{name}", comes_with_tensors=True)
    # autograd node of a custom Function
    CTX = VertexRow(
        5,
        "{name}",
        holder=HolderKind.AUTOGRAD_CTX,
        is_expression=False,
        is_named=True,
        comes_with_tensors=True,
    )
    CONTAINER = VertexRow(6, "{name} of {count}", is_around=True, is_store=True, is_handle=True)
    FUNCTION = VertexRow(7, "{name}{at}", is_expression=False, is_named=True, is_handle=True)
    BUILTIN = VertexRow(8, "built-in {name}")
    METHOD = VertexRow(9, "bound method {inner}", is_expression=False, is_handle=True)
    PARTIAL = VertexRow(10, "functools.partial", is_handle=True)
    # function under functools.lru_cache
    CACHE = VertexRow(11, "{name}", is_around=True)
    CODE = VertexRow(12, "code of {name}{at}")
    CELL = VertexRow(13, "closure cell", is_expression=False, is_handle=True)
    FRAME = VertexRow(14, "call of {name}{at}", is_expression=False, is_named=True, comes_with_tensors=True)
    GENERATOR = VertexRow(
        15,
        "generator {name}{at}",
        suspended="suspended generator `{name}`",
        holder=HolderKind.GENERATOR,
        comes_with_tensors=True,
    )
    COROUTINE = VertexRow(
        16,
        "coroutine {name}{at}",
        suspended="suspended coroutine `{name}`",
        holder=HolderKind.GENERATOR,
        comes_with_tensors=True,
    )
    ASYNC_GENERATOR = VertexRow(
        17,
        "async generator {name}{at}",
        suspended="suspended async generator `{name}`",
        holder=HolderKind.GENERATOR,
        comes_with_tensors=True,
    )
    TRACEBACK = VertexRow(18, "traceback at {place}")
    EXCEPTION = VertexRow(19, "{name}", is_expression=False, is_named=True, comes_with_tensors=True)
    CLASS = VertexRow(20, "class {name}")
    MODULE = VertexRow(21, "module {name}")
    # of a file that runs as no module
    NAMESPACE = VertexRow(22, "{place}")
    # contextvars.Context
    CONTEXT = VertexRow(23, "{name}")

    @property
    def is_suspended_call(self) -> bool:
        """Whether it is a call that may be suspended: a generator or a coroutine."""
        return self.row.suspended is not None


_CALLS: Final = (EdgeKind.LOCAL, EdgeKind.ARGUMENT, EdgeKind.TEMPORARY, EdgeKind.CALLER)
OWNERS: Final[dict[tuple[EdgeKind, VertexKind], str]] = {
    **{(kind, VertexKind.FRAME): "{name}{thread}{at}" for kind in _CALLS},
    **{
        (kind, vertex): "suspended {owner}"
        for kind in _CALLS
        for vertex in VertexKind
        if vertex.is_suspended_call
    },
    (EdgeKind.EVALUATION_STACK, VertexKind.FRAME): "{name}{at}",
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
"""Templates for the owner of a reference. The words for the same object as a target differ."""


@dataclass(frozen=True, slots=True)
class Vertex:
    """The description of one object at the end of a reference. It holds no object of the program.

    Attributes:
        kind: its kind.
        name: its own name (functions, classes, modules, frames), or else the name of its class.
        file: source file of a function, class, frame or traceback.
        line: line in that file.
        count: entries of a container.
        limit: the largest number of entries, of a `deque` with maxlen.
        nbytes: bytes of a storage.
        shape: sizes of a tensor or an array; None if they cannot be read.
        dtype: element type of a tensor or an array.
        thread: name of a frame's thread, unless that is the main thread.
        inner: the function inside a bound method, a partial or a cache; the program's function that a call of
            torch or Python runs.
        library: the owner, ``torch`` or ``Python``, of a call that runs a function of the program.
        name_in_code: the class's name in the code, if a function made the class and then renamed it.
        is_strong: True for an object that no weak reference can refer to, because its class has `__slots__` without
            `__weakref__`. A capture does not keep this.
        is_weak_key: of the key of a dictionary, True if a `WeakKeyDictionary` can keep the key and only the key itself
            equals it. A capture does not keep this.
        bases: of an owner of attributes, the base classes of its class: the name of each, and the file of its methods.
            A capture does not keep them.
    """

    kind: VertexKind
    name: str = ""
    file: str | None = None
    line: int | None = None
    count: int | None = None
    limit: int | None = None
    nbytes: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    thread: str = ""
    inner: Vertex | None = None
    library: str = ""
    name_in_code: str = ""
    is_strong: bool = field(default=False, compare=False)
    is_weak_key: bool = field(default=False, compare=False)
    bases: tuple[tuple[str, str | None], ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Edge:
    """One reference from an owner to a target, as a person would point at it. It holds no object of the program.

    It may cover several references of the interpreter: an instance, its dictionary and a value are one
    attribute.

    Attributes:
        kind: how the owner refers to the target.
        name: identifier of the variable, attribute, key or field; None for kinds without names.
        position: index of an item or argument; None for other kinds.
        owner: the object that refers; None for a root without an owner, such as a signal handler.
        target: the object that it refers to; None while only the reference itself was named.
        file: source file where the reference can be edited, if known.
        line: line in that file.
        hidden: True if C++ holds the reference and gc cannot see it.
        reader: the function that reads the global, where the path goes through it.
        is_own: True if `file` is the program's own code, False if it is torch's, Python's or a package's; None if it
            was not determined. It is decided from the real path when the edge is recorded.
        is_torchs: True if `file` is torch's; read from a capture only.
        of_argument: True if the line stores an argument of its function, which the caller has as well.
        key: of a dictionary's value, the key, unless the key is a number, a text or another constant. A capture does
            not keep it.
    """

    kind: EdgeKind
    name: str | None = None
    position: int | None = None
    owner: Vertex | None = None
    target: Vertex | None = None
    file: str | None = None
    line: int | None = None
    hidden: bool = False
    reader: Vertex | None = None
    is_own: bool | None = None
    is_torchs: bool = False
    of_argument: bool = False
    key: Vertex | None = field(default=None, compare=False)
