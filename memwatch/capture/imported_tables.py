"""The tables that only an imported memory snapshot fills: the allocator's own history, and what it held at the end."""

from __future__ import annotations

from typing import Final

from memwatch.capture.references import JSON_TEXT_OR_NONE, STACK_OR_NONE, STORAGE_OR_NONE, TEXT
from memwatch.capture.table import Table

IMPORTED: Final = (
    Table.of(
        "history",
        "One row per entry of the allocator's own history, in its order; only in an imported memory snapshot.",
        ("device", "int", "string id of the device", TEXT),
        ("action", "int", "string id, as `alloc`, `free_requested`, `segment_alloc` or `oom`", TEXT),
        ("address", "int", "address of the block or segment; of `oom` the bytes that the device had free"),
        ("nbytes", "int", "bytes that the program asked for; of a segment its size"),
        ("stream", "int", "the stream, -1 if the snapshot does not say"),
        ("stack", "int", "stack id of the call, -1 if it was not recorded", STACK_OR_NONE),
        (
            "time_ns",
            "int",
            "unix time, nanoseconds; where the snapshot has no times, a number that keeps the order",
        ),
        ("storage", "int", "the storage that begins or ends with it, -1 if none", STORAGE_OR_NONE),
        ("extra", "int", "string id of its other fields, JSON", JSON_TEXT_OR_NONE),
    ),
    Table.of(
        "segments",
        "One row per segment that the allocator held at the end; only in an imported memory snapshot.",
        ("segment", "int", "number of the segment, from 0"),
        ("device", "int", "string id of the device", TEXT),
        ("address", "int", "its address"),
        ("nbytes", "int", "its size in bytes: what is reserved"),
        ("allocated_bytes", "int", "bytes of its allocated blocks, -1 if the snapshot does not say"),
        ("active_bytes", "int", "the same and blocks that another stream still uses, -1 likewise"),
        ("requested_bytes", "int", "bytes that the program asked for in these, -1 likewise"),
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
