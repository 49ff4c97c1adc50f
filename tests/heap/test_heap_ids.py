"""Ids in bulk are the ids that Python gives."""

from __future__ import annotations

import pytest

from memwatch.heap.classes import ids_of


@pytest.mark.parametrize("objects", [[], [None], [object(), "text", (), []]], ids=len)
def test_ids_are_those_of_id(objects):
    assert ids_of(objects).tolist() == list(map(id, objects))


def test_an_iterator_will_do():
    """The objects may come from an iterator, and one object many times."""
    one = object()
    assert ids_of(one for _ in range(3)).tolist() == [id(one)] * 3
