"""Run the body of a test under an examination. The body is the function alone, without fixtures and setUp."""

from __future__ import annotations

import functools
import inspect
import unittest
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_memwatch.examine import Examination


def is_unittest(item: pytest.Item) -> bool:
    """Return True if a test is a method of a unittest.TestCase."""
    return isinstance(item, pytest.Function) and isinstance(item.instance, unittest.TestCase)


def is_doctest(item: pytest.Item) -> bool:
    """Return True if a test is the examples of a docstring or a text file."""
    return isinstance(item, pytest.DoctestItem)


@contextmanager
def examined_doctest(item: pytest.Item, examination: Examination) -> Iterator[None]:
    """Examine the examples of a doctest, while the block lasts: once, for they leave their namespace empty."""
    item.runtest = functools.partial(examination.run, item.runtest, (), {})  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del item.runtest
        examination.is_over = True


@contextmanager
def examined(item: pytest.Function, examination: Examination) -> Iterator[None]:
    """Replace the body of a test, while the block lasts, by a function that examines it."""
    body = item.obj
    wrapped = _around(body, examination)
    item.obj = wrapped
    # unittest looks an async method up by its name on the instance and does not use `item.obj`
    by_name = is_unittest(item) and inspect.iscoroutinefunction(body)
    if by_name:
        setattr(item.instance, item.name, wrapped)
    try:
        yield
    finally:
        item.obj = body
        examination.is_over = True
        if by_name:
            delattr(item.instance, item.name)


def _around(body: Callable[..., Any], examination: Examination) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(body):

        @functools.wraps(body)
        async def run_async(*args: Any, **kwargs: Any) -> object:
            __tracebackhide__ = True
            return await examination.run_async(body, args, kwargs)

        return run_async

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> object:
        __tracebackhide__ = True
        return examination.run(body, args, kwargs)

    return run
