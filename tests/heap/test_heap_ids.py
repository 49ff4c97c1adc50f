"""Ids and identities of many objects at once, and values that are computed once for each class."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from memwatch.heap.classes import ByClass, identities, ids_of, without_identities


@pytest.mark.parametrize("objects", [[], [None], [object(), "text", (), []]], ids=len)
def test_ids_are_those_of_id(objects):
    assert ids_of(objects).tolist() == list(map(id, objects))


def test_an_iterator_will_do():
    """The objects may come from an iterator, and one object many times."""
    one = object()
    assert ids_of(one for _ in range(3)).tolist() == [id(one)] * 3


def test_living_objects_have_different_identities():
    """`without_identities` and `Snapshot` depend on it: of two equal identities both would be lost."""
    objects = gc.get_objects()
    numbers = identities(objects)
    assert len(np.unique(numbers)) == len(objects) > 10_000
    assert len(without_identities(numbers, objects[:10])) == len(objects) - 10


def test_many_living_classes_are_not_searched_at_every_new_one(monkeypatch):
    """Dead classes are dropped when there are many entries. Living ones stay, and the next pass waits."""
    monkeypatch.setattr("memwatch.heap.classes._MAX_KNOWN", 8)
    find = ByClass(lambda cls: cls.__name__)
    classes = [type(f"C{number}", (), {}) for number in range(40)]
    tables = []
    for cls in classes:
        assert find(cls) == cls.__name__
        if not tables or find._known is not tables[-1]:
            tables.append(find._known)
    assert len(tables) == 4  # passes at 8, 16 and 32 entries
    del classes[:], cls
    gc.collect()
    for number in range(200):
        find(type(f"D{number}", (), {}))
        gc.collect(0)
    assert len(find._known) < 100
