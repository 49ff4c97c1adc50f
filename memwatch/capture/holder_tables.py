"""The tables of samples: who held a storage, by which path of references."""

from __future__ import annotations

from typing import Final

from memwatch.capture.references import (
    CODE_OR_NONE,
    OPS_STARTED,
    PATH,
    STORAGE,
    TEXT_OR_NONE,
    VERTEX,
    VERTEX_OR_NONE,
)
from memwatch.capture.table import Table

OF_HOLDERS: Final = (
    Table.of(
        "holders",
        "One row per holder of a storage in a sample.",
        ("sample", "int", "number of the sample, from 0"),
        ("op", "int", "number of ops started before the sample", OPS_STARTED),
        ("storage", "int", "the storage", STORAGE),
        ("path", "int", "the retention path: its rows in `edges`", PATH),
    ),
    Table.of(
        "edges",
        "One row per reference of a retention path, from the root on; paths that are equal are one.",
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
            "string id of `torch` or `Python`, whose call it is that runs the program's function",
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
