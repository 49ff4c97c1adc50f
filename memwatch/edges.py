"""References between the objects of a process, as typed values without a word of English.

An `Edge` has the kind of the reference from its owner to its target. It also has the identifiers that the program
itself uses: names of variables, attributes and classes, positions, files and lines. All decisions (which reference to
cut, which advice fits, how to draw) depend on these fields. `memwatch.words` makes the sentence for a reader last.

This module imports neither torch nor another part of memwatch, so recorder, heap, analysis and report may all use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique


@unique
class EdgeKind(Enum):
    """How one object refers to another.

    The capture file stores these integers: never change or reuse one. The comment of a kind has the meaning of
    `Edge.name` and `Edge.position`, if they are set.
    """

    __hash__ = object.__hash__  # in C: paths are looked up by their edges

    REFERENCE = 0  # of an unknown kind; also from the inside of a C type

    # variables
    LOCAL = 10  # name of the variable
    ARGUMENT = 11  # name of the argument, or its position where only that is known
    GLOBAL = 12  # name of the module's variable
    CONTEXT_VARIABLE = 13  # name of the ContextVar
    THREAD_LOCAL = 14  # name of the attribute of a threading.local
    TEMPORARY = 15  # a value of a call that has no variable
    CALLER = 16  # from a frame to the frame that called it
    EVALUATION_STACK = 17  # a value in the middle of an expression, a running `for`, or a C call's arguments
    CHECKED_FUNCTION = 18  # the function that find_leaks was given

    # objects and classes
    ATTRIBUTE = 30  # name of the attribute, in a dictionary or a slot
    INSTANCE_DICT = 31  # an object's own dictionary, where the path ends there
    CLASS_OF = 32  # from an object to its class
    CLASS_ATTRIBUTE = 33  # name of the attribute
    CLASS_ENTRY = 34  # name of an entry that the class's namespace no longer has
    CLASS_DESCRIPTOR = 35  # __dict__ or __weakref__, through which every class refers to itself
    CLASS_BASES = 36  # __mro__ or __bases__
    PARAMETER = 37  # name in the nn.Module
    BUFFER = 38  # name in the nn.Module
    SUBMODULE = 39  # name in the nn.Module

    # containers
    ITEM = 50  # position in a list, tuple, deque or array of objects
    VALUE = 51  # the key as Python writes it
    KEY = 52
    MEMBER = 53  # of a set
    FIELD = 54  # name of the field of a named tuple

    # functions
    CLOSURE_CELL = 70  # name of the variable that the function closes over
    CELL_CONTENTS = 71  # from a cell that no function on the path owns
    DEFAULT_ARGUMENT = 72  # name of the argument
    BOUND_SELF = 73  # from a bound method to its object
    BOUND_FUNCTION = 74  # from a bound method to its function
    PARTIAL_ARGUMENT = 75  # name of the keyword, or position
    CACHE_RESULT = 76  # kept by functools.lru_cache
    CACHE_ARGUMENT = 77  # kept by functools.lru_cache
    COROUTINE = 78  # from a task to its coroutine

    # exceptions
    EXCEPTION_FIELD = 90  # __traceback__, __context__ or __cause__
    EXCEPTION_ARGS = 91
    EXCEPTION_HANDLED = 92  # the exception of a running `except`
    TRACEBACK_CALL = 93  # from a traceback to the frame
    TRACEBACK_NEXT = 94
    LAST_EXCEPTION = 95  # sys.last_value and its like; name

    # kept by the interpreter, a shell or torch
    MODULE = 110  # from sys.modules; every path starts so, and texts leave it out
    ATEXIT_CALLBACK = 111
    FINALIZER_REGISTRY = 112  # of weakref.finalize
    SIGNAL_HANDLER = 113  # name of the signal
    TRACE_FUNCTION = 114
    PROFILE_FUNCTION = 115
    ASYNC_GENERATOR_HOOK = 116
    OUTPUT_HISTORY = 117  # IPython's `Out`; name
    SHELL_RESULT = 118  # `_`, `__` or `___` of an interactive shell; name
    DISPATCH_MODE = 119  # active TorchDispatchMode
    FUNCTION_MODE = 120  # active TorchFunctionMode
    DEFAULT_SAVED_HOOK = 121  # active saved_tensors_hooks

    # tensors, in C++
    STORAGE = 140
    GRAD = 141
    GRAD_FN = 142
    BASE = 143  # from a view to the tensor it views
    TENSOR_HOOKS = 144
    ACCUMULATE_HOOKS = 145  # register_post_accumulate_grad_hook
    SPARSE_PART = 146  # name of the method, such as `indices`
    FUNCTORCH_VALUE = 147  # wrapped by torch.func

    # autograd nodes, in C++
    NEXT_FUNCTION = 160  # position among next_functions
    VARIABLE = 161  # from AccumulateGrad to its leaf
    METADATA = 162
    SAVED = 163  # name of the saved tensor; position where several are saved under one name
    PACKED = 164  # the same, as a pack hook made it
    UNPACK_HOOK = 165  # of that saved tensor
    CTX_SAVED = 166  # to_save or saved_for_forward of a custom Function's ctx
    NODE_HOOKS = 167
    NODE_PREHOOKS = 168
    GRAPH = 169  # from a tensor to whatever the autograd graph behind it keeps

    # other C code that gc does not follow
    NUMPY_BASE = 180
    FUTURE_RESULT = 181  # of a torch.futures.Future
    SHARED_MEMORY = (
        183  # from a DLPack capsule, or a storage over the same memory, to the storage that owns it
    )
    C_CODE = 182  # nothing in Python refers to it


@unique
class VertexKind(Enum):
    """The kind of an object: each kind is described in its own way. The capture file stores these integers."""

    __hash__ = object.__hash__

    OBJECT = 0
    TENSOR = 1
    ARRAY = 2
    STORAGE = 3
    NODE = 4  # autograd node of C++
    CTX = 5  # autograd node of a custom Function
    CONTAINER = 6
    FUNCTION = 7
    BUILTIN = 8
    METHOD = 9
    PARTIAL = 10
    CACHE = 11  # function under functools.lru_cache
    CODE = 12
    CELL = 13
    FRAME = 14
    GENERATOR = 15
    COROUTINE = 16
    ASYNC_GENERATOR = 17
    TRACEBACK = 18
    EXCEPTION = 19
    CLASS = 20
    MODULE = 21
    NAMESPACE = 22  # of a file that runs as no module
    CONTEXT = 23  # contextvars.Context


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
