"""Kinds of holders, and the rules that infer a holder: one row for each, with its words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique


@dataclass(frozen=True, slots=True)
class HolderRow:
    """The properties of one kind of holder.

    Attributes:
        text: the kind in tables and JSON.
        drop: how to cut the reference; None if that depends on the program.
        stale: the same for memory that an iteration leaves to the next; None if it is the same as `drop`.
        has_own_name: True if the program chose the name: its author can follow the advice "do not make it".
        is_of_call: True if the holder ends with the call, as its variables and its evaluation stack do.
        is_off_stack: True if the object keeps the memory for itself, and a value on an evaluation stack is only the way
            to the object.
    """

    text: str
    drop: str | None = None
    stale: str | None = None
    has_own_name: bool = False
    is_of_call: bool = False
    is_off_stack: bool = False


@unique
class HolderKind(Enum):
    """The kind of a holder; the values of the column `holder_kind`."""

    _value_: str
    row: HolderRow

    def __new__(cls, row: HolderRow) -> HolderKind:  # noqa: D102
        kind = object.__new__(cls)
        kind._value_ = row.text
        kind.row = row
        return kind

    # found by following references; see `paths.py`
    LOCAL = HolderRow("local", drop="`del` it after its last use", has_own_name=True, is_of_call=True)
    ARGUMENT = HolderRow(
        "argument",
        drop="pass a list and clear it, or drop the caller's reference",
        has_own_name=True,
        is_of_call=True,
    )
    GLOBAL = HolderRow(
        "global",
        drop="`del` or empty it after its last use",
        stale="set it to None once the iteration is done with it, or keep `.item()` or the shape",
        has_own_name=True,
    )
    ATTRIBUTE = HolderRow(
        "attribute",
        drop="set it to None after its last use",
        stale="set it to None once the iteration is done with it, or keep `.item()` or the shape",
        has_own_name=True,
    )
    CLOSURE_CELL = HolderRow(
        "closure cell", drop="do not capture it, or pass what is needed as an argument", is_off_stack=True
    )
    DEFAULT_ARGUMENT = HolderRow(
        "default argument", drop="do not make it a default argument", is_off_stack=True
    )
    GENERATOR = HolderRow(
        "generator",
        drop="`del` it in the generator before the yield",
    )
    EXCEPTION = HolderRow(
        "exception",
        drop=("keep the exception's text instead of the exception, and work after the `except` block"),
    )
    CACHE = HolderRow("cache", drop="call cache_clear(), or do not cache tensors")
    HOOK = HolderRow("hook", drop="let the hook keep less, or remove the hook")
    AUTOGRAD_CTX = HolderRow(
        "autograd ctx", drop="do not keep it on ctx, or use ctx.save_for_backward()", is_off_stack=True
    )
    EVALUATION_STACK = HolderRow(
        "evaluation stack",
        drop=("`del` cannot reach it: give the call a list that it empties, or take the items with next()"),
        is_of_call=True,
    )
    # a variable whose autograd graph keeps a saved tensor
    GRAPH = HolderRow("graph")

    # known by the role of the memory
    PARAMETER = HolderRow("module parameter")
    BUFFER = HolderRow("module buffer")
    GRADIENT = HolderRow("gradient")
    OPTIMIZER_STATE = HolderRow("optimizer state")
    UNSHARDED_PARAMETER = HolderRow("unsharded parameter")
    COMMUNICATION = HolderRow("communication")
    AUTOCAST_CACHE = HolderRow("autocast cache")
    AUTOGRAD_NODE = HolderRow("autograd node")
    # activation checkpointing: the input of a region, or recomputed tensors
    CHECKPOINT = HolderRow("checkpoint")
    OPTIMIZER = HolderRow("optimizer")
    KERNEL = HolderRow("kernel")
    RUNNING_OP = HolderRow("running op")

    # no reference was found
    CPP_ONLY = HolderRow("C++ only")
    # variables, an evaluation stack or C++, within the step: which is not known
    OPTIMIZER_STEP = HolderRow("optimizer step")
    NOT_SEEN = HolderRow("not seen")
    NOT_LOOKED_FOR = HolderRow("not looked for")


@unique
class Inference(Enum):
    """The rules that infer a holder."""

    _value_: str
    words: str

    def __new__(cls, text: str, words: str) -> Inference:  # noqa: D102
        rule = object.__new__(cls)
        rule._value_ = text
        rule.words = words
        return rule

    # an earlier sample saw it; the reference may have ended since
    EARLIER = "earlier", "an earlier search found this reference; it may be gone"
    # a later sample saw it; the reference may not have existed yet
    LATER = "later", "a later search found this reference"
    # an earlier and a later sample saw it, and none was taken at this op
    BETWEEN = "between", "found in the searches before and after the peak"
    # a sample saw this holder for another allocation of the same line
    TWIN = "twin", "found for another tensor that the same line made"
    # made when its region was recomputed, and no pack holds it while the backward runs
    WITHIN_REGION = "within region", "the checkpoint made it again, and the backward of its region is running"
    # born while torch built an object that is still alive; torch's own records do not list its parts
    MADE_WITH = "made with", "torch allocated it while it made this object, and it is still alive"
    # seen through a variable of a call that has returned; the object is still alive
    RETURNED = "returned", "found in a call that has returned; the object may live on"
    # on the evaluation stack of the innermost call that made it and still runs
    SAME_CALL = "same call", "the innermost running call made it"
    # a sample searched for it, or for its twin, and found no variable; a call that made it still runs
    NO_VARIABLE = (
        "no variable",
        "a search found no variable for it, and the call that made it is still running",
    )
    # the first sample that saw it in this role is later
    ROLE_LATER = "role later", "found in this role later"
    # an earlier sample saw it in this role, and the next one did not
    ROLE_EARLIER = "role earlier", "found in this role before, but not afterwards"
    # samples before and after saw it in this role, and none at this op
    ROLE_BETWEEN = "role between", "found in this role before and after"
    # an earlier sample saw it in this role; there was none since
    ROLE_UNCONFIRMED = "role unconfirmed", "last found in this role before this moment"
    # made in backward, and a later op of the same backward reads it
    IN_FLIGHT = "in flight", "a backward op made it, and a later op of the same backward reads it"
    # a forward op made it, no sample found a variable that refers to it, and a later backward op reads it
    AWAITED = "awaited", "a forward op made it, and backward reads it"
    # made by a node of backward that still runs
    WITHIN_NODE = "within node", "the running step of backward made it"
    # made and still needed by one call into C++
    WITHIN_CPP = "within C++", "the running line of Python made it"
    # made in a call of a compiled function, or in its backward, that still runs
    WITHIN_COMPILED = "within compiled", "the running call of compiled code made it"
    # made in a step of the optimizer, and dropped before it ends
    WITHIN_STEP = "within step", "the optimizer's step makes it and drops it"

    @property
    def is_of_one_sample(self) -> bool:
        """Whether the holder is that of one sample, of another allocation or at another time."""
        return self in (Inference.TWIN, Inference.EARLIER, Inference.LATER)


@unique
class HolderEvidence(Enum):
    """The source of the knowledge about a holder; the values of the column `holder_evidence`."""

    SEEN = (
        "seen"  # in that very op, or later in the same run of torch's code if it could not change meanwhile
    )
    STRUCTURE = (
        "structure"  # torch's own records: packs, parameters, `.grad`, optimizer state, allocator events
    )
    INFERRED = "inferred"  # by one of the rules of `Inference`
    NONE = "none"
