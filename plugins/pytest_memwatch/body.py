"""Put an examination around the body of a test: the function itself, without fixtures, setUp and tearDown."""

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
    """Say whether a test is a method of a unittest.TestCase."""
    return isinstance(item, pytest.Function) and isinstance(item.instance, unittest.TestCase)


@contextmanager
def examined(item: pytest.Function, examination: Examination) -> Iterator[None]:
    """Let the examination call the body of a test for as long as the block lasts."""
    body = item.obj
    wrapped = _around(body, examination)
    item.obj = wrapped
    # unittest calls an async method by name and never asks pytest for it
    by_name = is_unittest(item) and inspect.iscoroutinefunction(body)
    if by_name:
        setattr(item.instance, item.name, wrapped)
    try:
        yield
    finally:
        item.obj = body
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
