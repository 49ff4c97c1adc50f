"""The programs of these tests search the heap."""

from __future__ import annotations

import functools

import pytest


@pytest.fixture
def fresh_python(fresh_python):
    """Let gc list all objects of a program: a search of objects that it does not list takes twice as long."""
    return functools.partial(fresh_python, unfrozen=True)
