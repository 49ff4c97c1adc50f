"""Retention paths as rows: written paths are read back, each once."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from memwatch.capture.columns import Capture, as_rows
from memwatch.capture.paths import PathTables, read_paths
from memwatch.capture.schema import RECORDED_BY_NAME
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind

PROGRAM = Vertex(VertexKind.FRAME, "train", "/home/user/train.py", 12, thread="loader")
LIBRARY = Vertex(VertexKind.FRAME, "_call_impl", torch.__file__, 7, inner=PROGRAM, library="torch")


class Tables:
    """The tables that a recorder appends to, and the capture that they make."""

    def __init__(self):
        self.strings: list[str] = []
        self.edges: list[int] = []
        self.vertices: list[int] = []
        self.add = PathTables(self.intern, self.edges, self.vertices)

    def intern(self, text):
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)

    def read(self):
        columns = {
            name: list(as_rows(rows, len(RECORDED_BY_NAME[name].columns)).T)
            for name, rows in (("edges", self.edges), ("vertices", self.vertices))
        }
        return read_paths(Capture.from_columns(columns, self.strings, {}, []))


def test_every_kind_of_reference_and_object_is_read_as_it_was_written():
    """Names, positions, owners, places and all fields of an owner come back; targets are not stored."""
    owners = [
        Vertex(kind, f"name {kind.value}", "/x/y.py", 3, 4, 5, 6, (7, 8), "float32", "main", PROGRAM, "torch")
        for kind in VertexKind
    ]
    path = tuple(
        Edge(
            kind,
            f"n{kind.value}",
            kind.value,
            owner,
            None,
            "/home/user/train.py",
            9,
            reader=PROGRAM,
            is_own=True,
        )
        for kind, owner in zip(EdgeKind, itertools.cycle(owners))
    )
    bare = (
        Edge(EdgeKind.EVALUATION_STACK),
        Edge(EdgeKind.ITEM, position=0, owner=Vertex(VertexKind.TENSOR, shape=())),
    )
    tables = Tables()
    assert [tables.add(path), tables.add(bare)] == [0, 1]
    assert tables.read() == {0: path, 1: bare}


def test_equal_paths_are_stored_once():
    """The second one gets the number of the first, and no row."""
    tables = Tables()
    path = (Edge(EdgeKind.LOCAL, "x", owner=PROGRAM),)
    assert tables.add(path) == 0
    rows = len(tables.edges), len(tables.vertices)
    assert tables.add((dataclasses.replace(path[0]),)) == 0
    assert (len(tables.edges), len(tables.vertices)) == rows
    assert tables.add((Edge(EdgeKind.LOCAL, "y", owner=PROGRAM),)) == 1
    assert len(tables.vertices) == rows[1]


@pytest.mark.parametrize("texts_before", range(5))
def test_a_path_whose_rows_were_interrupted_gets_them_when_it_is_met_again(texts_before, monkeypatch):
    """The handler of a signal may raise between any two steps; no number is given out before its rows exist."""
    tables = Tables()
    path = (Edge(EdgeKind.LOCAL, "x", owner=LIBRARY, reader=PROGRAM, file="/home/user/train.py"),)
    texts = itertools.count()

    def intern(text):
        if next(texts) == texts_before:
            raise KeyboardInterrupt
        return tables.intern(text)

    monkeypatch.setattr(tables.add, "_strings", intern)
    with pytest.raises(KeyboardInterrupt):
        tables.add(path)
    number = tables.add(path)
    assert tables.read()[number][0].owner == LIBRARY


def test_whose_code_a_line_is_is_decided_when_it_is_written():
    """The program's own lines can be edited. The owner of an unknown file is unknown."""
    tables = Tables()
    tables.add(
        (
            Edge(EdgeKind.LOCAL, "x", owner=PROGRAM, file="/home/user/torch/train.py", line=1),
            Edge(EdgeKind.LOCAL, "input", owner=LIBRARY, file=torch.__file__, line=2),
            Edge(EdgeKind.ITEM, position=0),
        )
    )
    assert [edge.is_own for edge in tables.read()[0]] == [True, False, None]
