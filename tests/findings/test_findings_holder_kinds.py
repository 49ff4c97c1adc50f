"""The kinds of a holder's references decide its kind. Words never do."""

from __future__ import annotations

import pytest

from memwatch.analysis.holders import HolderKind
from memwatch.analysis.holders.holder import holder_of
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind

CALL = Vertex(VertexKind.FRAME, "train", "/home/user/train.py", 12)
SITE = "/home/user/train.py:12"
HOOKED = "/home/user/hooks.py"


def at(kind, name=None, owner=None, **more):
    return Edge(
        kind, name, owner=owner, file=owner and owner.file, line=owner and owner.line, is_own=True, **more
    )


LOCAL = at(EdgeKind.LOCAL, "state", CALL)
OF_LIST = Vertex(VertexKind.CONTAINER, "list", count=3)
OF_OBJECT = Vertex(VertexKind.OBJECT, "pkg.Trainer")
ITEM = Edge(EdgeKind.ITEM, position=2, owner=OF_LIST)
ATTRIBUTE = Edge(EdgeKind.ATTRIBUTE, "exception_cache", owner=OF_OBJECT, file=HOOKED, line=3, is_own=False)
FUNCTION = Vertex(VertexKind.FUNCTION, "make.hook", HOOKED, 7)
GENERATOR = Vertex(VertexKind.GENERATOR, "batches", HOOKED, 9)

PATHS = {
    "a variable": ([LOCAL], HolderKind.LOCAL, "`state`, local variable of `train`"),
    "an argument": (
        [at(EdgeKind.ARGUMENT, "*args", CALL)],
        HolderKind.ARGUMENT,
        "`*args`, argument of `train`",
    ),
    "an item": ([LOCAL, ITEM], HolderKind.LOCAL, "`state`, local variable of `train`"),
    "an attribute": (
        [LOCAL, ATTRIBUTE, ITEM],
        HolderKind.ATTRIBUTE,
        "`state.exception_cache`, local variable of `train`",
    ),
    "an attribute of what lies in a container": (
        [LOCAL, ITEM, Edge(EdgeKind.FIELD, "scores", owner=OF_OBJECT)],
        HolderKind.ATTRIBUTE,
        "`state[2].scores`, local variable of `train`",
    ),
    "a partial function": (
        [LOCAL, Edge(EdgeKind.PARTIAL_ARGUMENT, position=0, owner=Vertex(VertexKind.PARTIAL))],
        HolderKind.ATTRIBUTE,
        "`state.args`, local variable of `train`",
    ),
    "a set": (
        [LOCAL, Edge(EdgeKind.MEMBER, owner=Vertex(VertexKind.CONTAINER, "set", count=3))],
        HolderKind.ATTRIBUTE,
        "member of set of 3, reached from `state`, local variable of `train`",
    ),
    "a closure": (
        [LOCAL, at(EdgeKind.CLOSURE_CELL, "x", FUNCTION)],
        HolderKind.CLOSURE_CELL,
        "closure cell `x` of `hook`, reached from `state`, local variable of `train`",
    ),
    "a hook": (
        [
            LOCAL,
            Edge(EdgeKind.ATTRIBUTE, "_forward_hooks", owner=OF_OBJECT),
            at(EdgeKind.CLOSURE_CELL, "x", FUNCTION),
        ],
        HolderKind.HOOK,
        "closure cell `x` of `hook`, of a hook, reached from `state`, local variable of `train`",
    ),
    "a generator": (
        [LOCAL, at(EdgeKind.LOCAL, "batch", GENERATOR)],
        HolderKind.GENERATOR,
        "`batch`, local variable of suspended generator `batches`, reached from `state`, local variable of `train`",
    ),
    "an attribute of an exception": (
        [LOCAL, Edge(EdgeKind.ATTRIBUTE, "batch", owner=Vertex(VertexKind.EXCEPTION, "Failed"))],
        HolderKind.ATTRIBUTE,
        "attribute .batch of `Failed`, reached from `state`, local variable of `train`",
    ),
    "a graph": (
        [LOCAL, ATTRIBUTE, Edge(EdgeKind.GRAPH)],
        HolderKind.GRAPH,
        "`state.exception_cache`, local variable of `train`",
    ),
    "a list on the stack": (
        [Edge(EdgeKind.EVALUATION_STACK, "list"), ITEM],
        HolderKind.EVALUATION_STACK,
        "a list that no variable names",
    ),
    "an object on the stack": (
        [Edge(EdgeKind.EVALUATION_STACK, "Trainer"), ATTRIBUTE, ITEM],
        HolderKind.EVALUATION_STACK,
        "attribute .exception_cache of pkg.Trainer",
    ),
    "a ctx that only a node in C++ has": (
        [
            Edge(EdgeKind.EVALUATION_STACK, "CapBackward"),
            Edge(EdgeKind.ATTRIBUTE, "curve", owner=Vertex(VertexKind.CTX, "CapBackward")),
            ATTRIBUTE,
        ],
        HolderKind.AUTOGRAD_CTX,
        "attribute .exception_cache of `Trainer`",
    ),
    "a closure in a table of hooks whose tensor is old": (
        [
            Edge(EdgeKind.EVALUATION_STACK, "OrderedDict"),
            Edge(EdgeKind.VALUE, "4", owner=Vertex(VertexKind.CONTAINER, "OrderedDict", count=9)),
            at(EdgeKind.CLOSURE_CELL, "before", FUNCTION),
        ],
        HolderKind.CLOSURE_CELL,
        "closure cell `before` of `hook`",
    ),
    "a module of no running call": (
        [
            Edge(EdgeKind.MODULE, "lib"),
            Edge(EdgeKind.GLOBAL, "CACHE", owner=Vertex(VertexKind.MODULE, "lib")),
            ITEM,
        ],
        HolderKind.GLOBAL,
        "global `CACHE` of module lib",
    ),
}


@pytest.mark.words
@pytest.mark.parametrize("name", PATHS)
def test_a_path_tells_the_kind_and_the_words_of_its_holder(name):
    """An expression where Python can write one, else the last reference that tells something, and the variable."""
    path, kind, words = PATHS[name]
    holder = holder_of(tuple(path))
    assert (holder.kind, holder.words) == (kind, words)


@pytest.mark.parametrize(
    ("name", "site", "foreign"),
    [
        ("an attribute", SITE, False),
        ("a closure", f"{HOOKED}:7", False),
        ("an attribute of an exception", SITE, False),
        ("a list on the stack", "", False),
    ],
)
def test_the_line_to_edit_is_that_of_the_reference_that_is_told(name, site, foreign):
    """An expression is edited where its variable is, a closure where its function is defined."""
    holder = holder_of(tuple(PATHS[name][0]))
    assert (holder.site, holder.foreign) == (site, foreign)


def test_whose_code_a_line_is_was_decided_when_it_was_recorded():
    """A folder's name says nothing: a file in a folder named torch may be the program's, and the other way round."""
    own = Edge(EdgeKind.LOCAL, "x", owner=CALL, file="/home/user/torch/train.py", line=1, is_own=True)
    library = Edge(EdgeKind.LOCAL, "x", owner=CALL, file="/home/user/train.py", line=1, is_own=False)
    assert [holder_of((edge,)).foreign for edge in (own, library)] == [False, True]
