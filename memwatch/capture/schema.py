"""Describe the tables of a capture, in one place.

The recorder and the file use this description. `memwatch.capture.docs` generates the header of the C++ sources and a
page of the documentation from it.

- *Recorded* tables: the recorder appends rows to them, and the file stores them. No row changes later. `RECORDED` has
  all these tables. Two groups of them are defined before it: `IMPORTED`, which only an imported memory snapshot fills,
  and `OF_HOLDERS`, the holders that samples saw.
- *Derived* tables: users read them. `memwatch.analysis` computes them, and `memwatch.capture.derived` lists their
  columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from memwatch.kinds.roles import ROLES
from memwatch.own_code import CodeOwner

Kind = Literal["int", "text", "float", "bool"]


@dataclass(frozen=True, slots=True)
class Reference:
    """The values that the integers of a column may have.

    Attributes:
        to: the table that the integer is a row number of. For `strings` it is the id of a text.
        choices: the number of choices, if the column does not refer to a table. The integer is below it.
        or_none: whether the integer may also be -1, which means none.
        is_count: whether the integer counts rows. If it does, it may be as large as the number of all rows.
        is_json: whether the text is JSON, which may be long. Other texts are names.
    """

    to: str = ""
    choices: int = 0
    or_none: bool = False
    is_count: bool = False
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name (with its unit), its kind, its meaning, and the values that its integers may have."""

    name: str
    kind: Kind
    doc: str
    refers: Reference | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its columns in order, their names, and the meaning of a row."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the names once, because a long recording reads them for each chunk."""
        object.__setattr__(self, "names", tuple(column.name for column in self.columns))

    @classmethod
    def of(
        cls, name: str, doc: str, *columns: tuple[str, Kind, str] | tuple[str, Kind, str, Reference]
    ) -> Table:
        """Return a table, given the arguments of each of its columns."""
        return cls(name, doc, tuple(Column(*column) for column in columns))


OP: Final = Reference("ops")
OP_OR_NONE: Final = Reference("ops", or_none=True)
OPS_STARTED: Final = Reference("ops", is_count=True)
OPS_STARTED_OR_NONE: Final = Reference("ops", is_count=True, or_none=True)
STORAGE: Final = Reference("births")
STORAGE_OR_NONE: Final = Reference("births", or_none=True)
PACK: Final = Reference("packs")
MODULE: Final = Reference("modules")
MODULE_OR_NONE: Final = Reference("modules", or_none=True)
STACK: Final = Reference("stacks")
STACK_OR_NONE: Final = Reference("stacks", or_none=True)
PATH: Final = Reference("edges")
VERTEX: Final = Reference("vertices")
VERTEX_OR_NONE: Final = Reference("vertices", or_none=True)
TEXT: Final = Reference("strings")
TEXT_OR_NONE: Final = Reference("strings", or_none=True)
JSON_TEXT: Final = Reference("strings", is_json=True)
JSON_TEXT_OR_NONE: Final = Reference("strings", or_none=True, is_json=True)
CODE: Final = Reference(choices=len(CodeOwner))
CODE_OR_NONE: Final = Reference(choices=len(CodeOwner), or_none=True)
FLAG: Final = Reference(choices=2)  # 0 or 1


IMPORTED: Final = (
    Table.of(
        "history",
        "One row per entry of the allocator's own history, in its order; only in an imported memory snapshot.",
        ("device", "int", "string id of the device", TEXT),
        ("action", "int", "string id, as `alloc`, `free_requested`, `segment_alloc` or `oom`", TEXT),
        ("address", "int", "address of the block or segment; for `oom` the free bytes of the device"),
        ("nbytes", "int", "bytes that the program asked for; for a segment its size"),
        ("stream", "int", "the stream, -1 if the snapshot does not say"),
        ("stack", "int", "stack id of the call, -1 if it was not recorded", STACK_OR_NONE),
        (
            "time_ns",
            "int",
            "unix time, nanoseconds; if the snapshot has no times, a number that keeps the order",
        ),
        ("storage", "int", "the storage that this entry allocates or frees, -1 if none", STORAGE_OR_NONE),
        ("extra", "int", "string id of its other fields, JSON", JSON_TEXT_OR_NONE),
    ),
    Table.of(
        "segments",
        "One row per segment that the allocator held at the end; only in an imported memory snapshot.",
        ("segment", "int", "number of the segment, from 0"),
        ("device", "int", "string id of the device", TEXT),
        ("address", "int", "its address"),
        ("nbytes", "int", "its size: the reserved bytes"),
        ("allocated_bytes", "int", "bytes of its allocated blocks, -1 if the snapshot does not say"),
        ("active_bytes", "int", "the same, plus freed blocks that another stream still uses; -1 if unknown"),
        ("requested_bytes", "int", "bytes that the program asked for in the active blocks, -1 if unknown"),
        ("stream", "int", "the stream, -1 if the snapshot does not say"),
        ("stack", "int", "stack id of the call that made it, -1 if it was not recorded", STACK_OR_NONE),
        ("extra", "int", "string id of its other fields, JSON", JSON_TEXT_OR_NONE),
    ),
    Table.of(
        "blocks",
        "One row per block of a segment, free ones included; only in an imported memory snapshot.",
        ("segment", "int", "the segment"),
        ("address", "int", "its address"),
        ("nbytes", "int", "its size in bytes, as the allocator rounded it"),
        ("requested_bytes", "int", "bytes that the program asked for, -1 if the snapshot does not say"),
        ("state", "int", "string id, as `active_allocated`, `active_pending_free` or `inactive`", TEXT),
        ("stack", "int", "stack id of the call that allocated it, -1 if it was not recorded", STACK_OR_NONE),
        ("storage", "int", "the storage that lies in it, -1 if none", STORAGE_OR_NONE),
    ),
    Table.of(
        "annotations",
        "One row per start or end of a `record_function`; only in an imported memory snapshot.",
        ("time_ns", "int", "unix time, nanoseconds"),
        ("device", "int", "string id of the device", TEXT),
        ("extra", "int", "string id of its fields, JSON: name and stage", JSON_TEXT_OR_NONE),
    ),
)


OF_HOLDERS: Final = (
    Table.of(
        "torch_runs",
        "One row per run of torch's own code in which a sample was taken: a backward, or the step of an optimizer.",
        ("start_op", "int", "number of ops started when the run began", OPS_STARTED),
        ("end_op", "int", "number of ops started when code of the program ran again", OPS_STARTED),
    ),
    Table.of(
        "holders",
        "One row per holder of a storage in a sample.",
        ("sample", "int", "number of the sample, from 0; -1 for a peek, which reads known places only"),
        ("op", "int", "number of ops started before the sample", OPS_STARTED),
        ("storage", "int", "the storage", STORAGE),
        ("path", "int", "the retention path: its rows in `edges`", PATH),
    ),
    Table.of(
        "edges",
        "One row per reference of a retention path, from the root on. Equal paths are stored once.",
        ("path", "int", "number of the path, from 0", PATH),
        ("depth", "int", "position in the path, 0 for the reference from the root"),
        ("kind", "int", "number of the `EdgeKind`"),
        ("name", "int", "string id of the variable, attribute, key or field", TEXT_OR_NONE),
        ("position", "int", "index of an item or argument"),
        ("owner", "int", "vertex that refers, -1 for a root that needs no owner", VERTEX_OR_NONE),
        ("reader", "int", "vertex of the function that reads the global", VERTEX_OR_NONE),
        ("file", "int", "string id of the file where the reference can be edited", TEXT_OR_NONE),
        ("line", "int", "line in that file"),
        ("code", "int", "index into OWNERS: whose code the file is", CODE_OR_NONE),
    ),
    Table.of(
        "vertices",
        "One row per description of an object that refers to another on a retention path.",
        ("vertex", "int", "number of the vertex, from 0", VERTEX),
        ("kind", "int", "number of the `VertexKind`"),
        (
            "name",
            "int",
            "string id of its own name (functions, classes, modules), else of its class",
            TEXT_OR_NONE,
        ),
        ("file", "int", "string id of the file of a function, call or traceback", TEXT_OR_NONE),
        ("line", "int", "line in that file"),
        ("count", "int", "entries of a container"),
        ("limit", "int", "the most entries that a deque takes"),
        ("nbytes", "int", "bytes of a storage"),
        ("shape", "int", "string id of the sizes of a tensor or array, as `8 16`", TEXT_OR_NONE),
        ("dtype", "int", "string id of its element type", TEXT_OR_NONE),
        (
            "thread",
            "int",
            "string id of the name of the thread of a call, if it is not the recorded thread",
            TEXT_OR_NONE,
        ),
        (
            "library",
            "int",
            "string id of the library, `torch` or `Python`, whose call runs the program's function",
            TEXT_OR_NONE,
        ),
        (
            "inner",
            "int",
            "vertex of the function inside: of a method, a partial, a cache or a library's call",
            VERTEX_OR_NONE,
        ),
    ),
)


FORMAT_VERSION: Final = 16
"""The format of new files. Every change of a recorded table raises it."""
OLDEST_FORMAT: Final = 9
"""The oldest format that memwatch reads. Its files lack the tables `views`, `compiled_nodes`, `lifts`, `torch_runs`,
`process_parts`, `mode_changes` and `numbers`."""

NONE: Final = -1
"""The value of an integer column that means none: no module, no stack, not dead."""

PHASES: Final = ("forward", "backward", "optimizer", "recompute")
FORWARD, BACKWARD, OPTIMIZER, RECOMPUTE = range(len(PHASES))
IN_BACKWARD: Final = (BACKWARD, RECOMPUTE)
"""The phases of ops that run inside a backward, as indices into `PHASES`."""
ACCESSES: Final = ("read", "write", "output")
OPERANDS: Final = ("read", "written", "result")
NUMBERS: Final = ("dimension", "reduction")
"""The arguments of ops whose numbers are recorded."""
OF_DIMENSION, OF_REDUCTION = range(len(NUMBERS))
OWNERS: Final = tuple(owner.name.lower() for owner in CodeOwner)
"""The owners of source code."""
ORIGINS: Final = ("op", "baseline", "external", "unobserved", "thread")
PLACES_OF_MODULES: Final = ("known", "moved", "former")
"""The meaning of a row of `modules`: the place where a module was first seen, its new place from this row on, or the
place from which the program has removed it."""
GRADIENT_PREFIX: Final = "grad of "
"""The beginning of a gradient's name in `roles`. The name of its parameter follows."""
EVIDENCE: Final = ("seen", "structure", "inferred", "none")
"""How memwatch knows a holder: it saw the reference, read torch's own records, inferred the holder by a rule, or does
not know the holder."""

_table = Table.of
_NEWEST_NODE: Final = "autograd sequence number of the newest node when it started, as of a forward op"

RECORDED: Final = (
    _table(
        "ops",
        "One row per ATen call below autograd, in the order in which they started.",
        ("op", "int", "number of the op, from 0", OP),
        ("name", "int", "string id of the overload, as `aten.mm.default`", TEXT),
        ("stack", "int", "stack id of the Python call stack, -1 without stacks", STACK_OR_NONE),
        ("module", "int", "module id of the innermost running nn.Module, -1 outside any", MODULE_OR_NONE),
        ("phase", "int", "index into PHASES", Reference(choices=len(PHASES))),
        (
            "sequence",
            "int",
            "autograd sequence number: of the node being made (forward, recompute) or run (backward), -1 if none",
        ),
        ("start_ns", "int", "unix time at which the op started, nanoseconds"),
        ("end_ns", "int", "unix time at which the op returned, nanoseconds"),
        ("failed", "int", "1 if the op raised", FLAG),
    ),
    _table(
        "nodes",
        "One row per op of a backward with `create_graph=True`, which makes a graph of its own.",
        ("op", "int", "the op", OP),
        ("sequence", "int", _NEWEST_NODE),
    ),
    _table(
        "views",
        "One row per node that a view made; the first row covers nodes from before the block.",
        ("op", "int", "number of ops started before the view", OPS_STARTED),
        ("sequence", "int", _NEWEST_NODE),
        ("stack", "int", "stack id of the Python call stack, -1 without stacks", STACK_OR_NONE),
        ("module", "int", "module id of the innermost running nn.Module, -1 outside any", MODULE_OR_NONE),
        (
            "node",
            "int",
            "sequence number of the node whose backward made the view, with `create_graph=True`; -1 for others",
        ),
    ),
    _table(
        "lifts",
        "One row per storage that torch made from Python's data (`torch.tensor`) or around another library's memory.",
        ("storage", "int", "the storage", STORAGE),
        ("stack", "int", "stack id of the Python call stack, -1 without stacks", STACK_OR_NONE),
        ("module", "int", "module id of the innermost running nn.Module, -1 outside any", MODULE_OR_NONE),
    ),
    _table(
        "uses",
        "One row per storage that an op touched.",
        ("op", "int", "the op", OP),
        ("storage", "int", "the storage", STORAGE),
        ("access", "int", "index into ACCESSES", Reference(choices=len(ACCESSES))),
    ),
    _table(
        "numbers",
        "One row per number among some arguments of an op of a forward: the dimensions along which it combines values, "
        "and whether a loss of torch is a sum or a mean.",
        ("op", "int", "the op", OP),
        ("argument", "int", "index into NUMBERS", Reference(choices=len(NUMBERS))),
        ("value", "int", "the dimension, from 0; or torch's number of the reduction: 0 none, 1 mean, 2 sum"),
        ("dimensions", "int", "number of dimensions of the op's first tensor, -1 for a reduction"),
        ("size", "int", "size of the tensor in the dimension, -1 for a reduction"),
        ("stride", "int", "stride of the tensor in the dimension, in elements; -1 for a reduction"),
    ),
    _table(
        "births",
        "One row per storage, appended when memwatch first saw it.",
        ("storage", "int", "number of the storage, from 0; no other storage gets it", STORAGE),
        ("op", "int", "op that made it, -1 if it was alive before or no recorded op made it", OP_OR_NONE),
        ("time_ns", "int", "unix time at which memwatch first saw it, nanoseconds"),
        ("address", "int", "data pointer, 0 for meta and fake storages"),
        ("nbytes", "int", "size of the storage in bytes"),
        ("device", "int", "string id of the device, as `cpu` or `cuda:0`", TEXT),
        ("origin", "int", "index into ORIGINS", Reference(choices=len(ORIGINS))),
        (
            "shape",
            "int",
            "string id of dtype and shape of the first tensor seen on it, as `float32[64, 64]`",
            TEXT_OR_NONE,
        ),
    ),
    _table(
        "deaths",
        "One row per storage that died while recording.",
        ("storage", "int", "the storage", STORAGE),
        ("op", "int", "number of ops started before the death", OPS_STARTED),
        ("time_ns", "int", "unix time of the death, nanoseconds"),
    ),
    _table(
        "resizes",
        "One row per change of a storage's size after its birth (`resize_`, `set_`).",
        ("storage", "int", "the storage", STORAGE),
        ("op", "int", "number of ops started before the change", OPS_STARTED),
        ("time_ns", "int", "unix time, nanoseconds"),
        ("nbytes", "int", "new size in bytes"),
        ("address", "int", "new data pointer"),
    ),
    _table(
        "packs",
        "One row per tensor that autograd saved for backward.",
        ("pack", "int", "number of the saved tensor, from 0", PACK),
        ("storage", "int", "storage it lies in, -1 if unknown", STORAGE_OR_NONE),
        ("op", "int", "number of ops started before the save", OPS_STARTED),
        ("sequence", "int", "autograd sequence number of the node that keeps it, -1 if a checkpoint does"),
        (
            "module",
            "int",
            "module id of the innermost nn.Module that ran at the save, -1 outside any",
            MODULE_OR_NONE,
        ),
        ("nbytes", "int", "bytes that the saved tensor itself spans (a view may span less than its storage)"),
        ("shape", "int", "string id of dtype and shape", TEXT_OR_NONE),
        ("time_ns", "int", "unix time of the save, nanoseconds"),
    ),
    _table(
        "unpacks",
        "One row per use, release or loss of a saved tensor.",
        ("pack", "int", "the saved tensor", PACK),
        ("op", "int", "number of ops started before the use or release", OPS_STARTED),
        ("time_ns", "int", "unix time, nanoseconds"),
        ("released", "int", "1 if autograd dropped it, 0 if backward read it", FLAG),
    ),
    _table(
        "roles",
        "One row per role in which memwatch saw a storage.",
        ("storage", "int", "the storage", STORAGE),
        ("role", "int", "index into ROLES", Reference(choices=len(ROLES))),
        (
            "name",
            "int",
            "string id of the name in its module: `weight`, `grad of weight`, `adamw.exp_avg[weight]`",
            TEXT_OR_NONE,
        ),
        (
            "op",
            "int",
            "number of ops started before memwatch saw the role; for gradients at the end of an op, without that op",
            OPS_STARTED,
        ),
        (
            "module",
            "int",
            "module id of the owner of the parameter or buffer that the role belongs to, -1 if none",
            MODULE_OR_NONE,
        ),
    ),
    _table(
        "role_ends",
        "One row per role that a living storage has lost. It may get the role again later.",
        ("storage", "int", "the storage", STORAGE),
        ("role", "int", "index into ROLES", Reference(choices=len(ROLES))),
        (
            "last_op",
            "int",
            "the last op at which torch's own records show the role; -1 if only `role_looks` can show that",
            OPS_STARTED_OR_NONE,
        ),
        (
            "op",
            "int",
            "number of ops started before memwatch noticed the loss, without an op that was still running",
            OPS_STARTED,
        ),
    ),
    _table(
        "role_looks",
        "One row per comparison of the known roles with the present ones. A storage still had its role then, if it was "
        "alive, not smaller than `least_bytes`, and `role_ends` has no earlier row for it.",
        (
            "op",
            "int",
            "number of ops started before the comparison, without an op that was still running",
            OPS_STARTED,
        ),
        ("in_op", "int", "1 if an op was running, so that references had not changed since its start", FLAG),
        ("time_ns", "int", "unix time, nanoseconds"),
        ("least_bytes", "int", "smaller storages were not compared"),
        ("roles", "int", "the compared roles: a bit for each index into ROLES"),
    ),
    _table(
        "modules",
        "One row per nn.Module that ran or has a parameter, and one more for each change of its place.",
        ("module", "int", "module id, from 0", MODULE),
        (
            "name",
            "int",
            "string id of its name in the module that holds it; for a root the variable, empty if unknown",
            TEXT_OR_NONE,
        ),
        ("class_name", "int", "string id of its class", TEXT_OR_NONE),
        ("parent", "int", "module id of the module that holds it, -1 for a root", MODULE_OR_NONE),
        ("op", "int", "number of ops started before this was seen", OPS_STARTED),
        ("state", "int", "index into PLACES_OF_MODULES", Reference(choices=len(PLACES_OF_MODULES))),
    ),
    _table(
        "calls",
        "One row per call of an nn.Module.",
        ("module", "int", "the module", MODULE),
        ("start_op", "int", "number of ops started before the call", OPS_STARTED),
        ("end_op", "int", "number of ops started when it returned", OPS_STARTED),
        ("depth", "int", "how many module calls were running above it"),
    ),
    _table(
        "mode_changes",
        "One row per change of an nn.Module's `training`, noticed at a call with grad mode on or as a backward began.",
        ("module", "int", "the module", MODULE),
        ("op", "int", "number of ops started before this was seen", OPS_STARTED),
        ("training", "int", "1 if it is in training mode from now on", FLAG),
    ),
    _table(
        "compiled_calls",
        "One row per outermost call of a function that `torch.compile` made.",
        ("start_ns", "int", "unix time at which it began, nanoseconds"),
        ("end_ns", "int", "unix time at which it returned, nanoseconds"),
        ("module", "int", "module id that called it, -1 outside any", MODULE_OR_NONE),
        ("stack", "int", "stack id of the call, -1 without stacks", STACK_OR_NONE),
    ),
    _table(
        "compiled_nodes",
        "One row per call of `compiled_calls` that made nodes of autograd's graph.",
        ("first", "int", "autograd sequence number of the first of these nodes"),
        ("last", "int", "autograd sequence number of the last of these nodes"),
        ("module", "int", "module id that called the function, -1 outside any", MODULE_OR_NONE),
        ("stack", "int", "stack id of the call, -1 without stacks", STACK_OR_NONE),
    ),
    _table(
        "recomputes",
        "One row per time that `torch.utils.checkpoint` ran a region again in backward.",
        ("start_op", "int", "number of ops started before the region began to run again", OPS_STARTED),
        (
            "end_op",
            "int",
            "number of ops started when it returned; for a reentrant region its nested backward is included",
            OPS_STARTED,
        ),
        ("sequence", "int", "autograd sequence number of the node of a reentrant region, -1 for others"),
        ("stack", "int", "stack id of the call of the region in forward, -1 if unknown", STACK_OR_NONE),
    ),
    _table(
        "recomputed",
        "One row per storage that a checkpoint kept for the backward when its region had run again.",
        ("storage", "int", "the storage", STORAGE),
    ),
    _table(
        "allocator",
        "One row per allocation or free of the allocator.",
        ("time_ns", "int", "unix time, nanoseconds"),
        ("address", "int", "address of the block"),
        ("nbytes", "int", "bytes, negative for a free"),
        ("device", "int", "string id of the device", TEXT),
        (
            "thread",
            "int",
            "string id of the name of the thread that allocated or freed, -1 for the recorded thread",
            TEXT_OR_NONE,
        ),
        (
            "reserved_bytes",
            "int",
            "bytes that the device's allocator reserved after this event, 0 without a caching allocator",
        ),
        (
            "window",
            "int",
            "number of the window, from 0. Frees of blocks that were allocated outside all windows are left out",
        ),
    ),
    _table(
        "windows",
        "One row per period with recorded allocator events.",
        ("window", "int", "number of the window, from 0"),
        ("start_ns", "int", "unix time, nanoseconds"),
        ("end_ns", "int", "unix time, nanoseconds"),
        ("start_op", "int", "number of ops started before it", OPS_STARTED),
        ("end_op", "int", "number of ops started when it closed", OPS_STARTED),
    ),
    _table(
        "steps",
        "One row per iteration mark (`prof.step()`) or optimizer step.",
        ("op", "int", "number of ops started before the mark", OPS_STARTED),
        ("time_ns", "int", "unix time, nanoseconds"),
        ("name", "int", "string id: `step` for a mark, `AdamW.step` for an optimizer's step", TEXT),
        ("end_op", "int", "number of ops started at its end (the same as `op` for a mark)", OPS_STARTED),
    ),
    _table(
        "step_curve",
        "One row per step and device, recorded or not; only if a schedule or `keep` chose the recorded steps.",
        ("step", "int", "number of the step, from 0"),
        ("device", "int", "string id of the device", TEXT),
        ("start_ns", "int", "unix time at which it began, nanoseconds"),
        ("end_ns", "int", "unix time of the mark that ended it, nanoseconds"),
        ("peak_bytes", "int", "most live bytes in it, from the allocator's own events"),
        ("floor_bytes", "int", "least live bytes in it"),
        ("end_live_bytes", "int", "live bytes when it ended"),
        ("recorded", "int", "1 if all its ops are in the capture", FLAG),
    ),
    _table(
        "process",
        "One row per sample of the process.",
        ("time_ns", "int", "unix time, nanoseconds"),
        ("rss_bytes", "int", "resident set size, bytes"),
        ("available_bytes", "int", "bytes that the machine has available for programs"),
    ),
    _table(
        "process_parts",
        "One row per reading of the kernel's and the allocators' figures of the process; only on Linux with glibc.",
        ("time_ns", "int", "unix time, nanoseconds"),
        ("rss_bytes", "int", "resident set size, bytes"),
        ("file_bytes", "int", "the part of RSS in pages of files: code, libraries and mapped files"),
        ("python_bytes", "int", "bytes of Python's own allocator in use, -1 if unknown"),
        ("python_free_bytes", "int", "free bytes that Python's own allocator keeps, -1 if unknown"),
        ("malloc_free_bytes", "int", "free bytes that malloc keeps"),
    ),
    *OF_HOLDERS,
    _table(
        "stacks",
        "One row per frame of a call stack.",
        ("stack", "int", "stack id", STACK),
        ("depth", "int", "0 is the innermost frame"),
        ("file", "int", "string id of the file", TEXT_OR_NONE),
        ("line", "int", "line number"),
        ("function", "int", "string id of the qualified function name", TEXT_OR_NONE),
        ("owner", "int", "index into OWNERS: whose code the frame is", CODE),
    ),
    _table("strings", "Interned text.", ("id", "int", "string id"), ("text", "text", "the text")),
    _table(
        "meta",
        "One row per fact about the whole recording, such as the version of torch.",
        ("key", "text", "key"),
        ("value", "text", "value, JSON"),
    ),
    _table(
        "notes",
        "One row per note: a limit of the recording.",
        ("op", "int", "number of ops started before the note"),
        ("kind", "text", "a short fixed word, as `allocator` or `compiled`"),
        ("text", "text", "one sentence for the user"),
    ),
    _table(
        "arguments",
        "One row per op that returned, with its arguments for a replay; only with `replay=True`.",
        ("op", "int", "the op", OP),
        (
            "call",
            "int",
            "string id of its arguments: JSON, a tensor as dtype, size, stride, offset, flags",
            JSON_TEXT,
        ),
        ("result", "int", "string id of its results, written in the same way", JSON_TEXT),
        ("grad", "int", "1 if grad mode was on; some kernels then keep more memory for backward", FLAG),
    ),
    _table(
        "operands",
        "One row per tensor of an op's arguments and results, in the JSON's order; only with `replay=True`.",
        ("op", "int", "the op", OP),
        ("slot", "int", "position among the op's tensors"),
        ("storage", "int", "the storage that it is a window on, -1 if none", STORAGE_OR_NONE),
        ("access", "int", "index into OPERANDS", Reference(choices=len(OPERANDS))),
        ("nbytes", "int", "size of the storage in bytes: before the op for arguments, after it for results"),
    ),
    *IMPORTED,
)

RECORDED_BY_NAME: Final = {table.name: table for table in RECORDED}
