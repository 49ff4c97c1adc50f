"""Autocast's cache: copies of parameters in a lower precision, kept in C++ until the outermost region ends.

The cache cannot be read. But what dies while a region is left was held by the cache and by nothing else: no code of
the program's runs then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memwatch.heap.pause import GcPause, pause_gc, resume_gc
from memwatch.record.harmless import Harmless
from memwatch.record.roles import AUTOCAST_COPY
from memwatch.record.tables.watched import Watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.context import Context
    from memwatch.record.patches import Patches
    from memwatch.record.tables.storages import Storages


class AutocastBook:
    """Note what the cache let go of when a region of autocast ended."""

    def __init__(self, storages: Storages, context: Context) -> None:
        self._storages, self._context = storages, context
        self._harmless = Harmless(context.could_not_record, "autocast's cache")
        self.functions = (self._leaving,)

    def open(self, patches: Patches) -> bool:
        """Begin to read; torch always has it."""
        patches.put(torch.autocast, "__exit__", self._leaving)
        return True

    def _leaving(self, leave: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        is_here = False
        with self._harmless:
            is_here = self._context.is_its_thread
        if not is_here:
            return leave(*args, **kwargs)
        try:
            with self._harmless:
                self._storages.record_deaths()
        finally:  # also at an interrupt: autocast must not stay switched on
            pause: GcPause | None = None
            with self._harmless:
                pause = pause_gc()  # what gc frees was not the cache's
            try:
                result = leave(*args, **kwargs)
            finally:
                if pause is not None:
                    with self._harmless:
                        resume_gc(pause)
        with self._harmless:
            for gone in tuple(self._storages.dead):
                if isinstance(gone, Watched):
                    self._context.roles.add(gone.number, AUTOCAST_COPY, "", lives=False)
        return result
