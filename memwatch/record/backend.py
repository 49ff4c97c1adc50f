"""Which recorder and which interceptor a block gets: the fastest that works here and does what is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memwatch.errors import MemwatchError
from memwatch.record.interception.key import KeyInterceptor
from memwatch.record.interception.mode import ModeInterceptor
from memwatch.record.native import library as native
from memwatch.record.native.allocator import NativeAllocatorChannel
from memwatch.record.native.recorder import NativeKeyInterceptor, NativeModeInterceptor, NativeOpRecorder
from memwatch.record.native.saved import NativeSavedTensorRecorder
from memwatch.record.native.stacks import NativeStacks
from memwatch.record.native.storages import NativeStorages
from memwatch.record.python.allocator import AllocatorChannel
from memwatch.record.python.ops import OpRecorder
from memwatch.record.python.saved import SavedTensorRecorder
from memwatch.record.tables.stacks import Stacks
from memwatch.record.tables.storages import Storages

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from memwatch.record.clock import Clock
    from memwatch.record.context import Context
    from memwatch.record.interception.interceptor import Interceptor
    from memwatch.record.options import Options
    from memwatch.record.tables.strings import Strings


class Choice:
    """What a block is recorded by, decided before anything of it is recorded.

    A block that is entered under a FakeTensorMode is an estimate: of what its tensors would take, were they real.
    The ops that a fake mode runs within an op make tensors too, which only a dispatch mode does not see.

    Raises:
        MemwatchError: `options.intercept` is none of auto, mode and key, or asks for a key that does not work.
    """

    def __init__(self, options: Options) -> None:
        intercept = options.intercept
        if intercept not in {"auto", "mode", "key"}:
            raise MemwatchError(f"intercept={intercept!r} is unknown; use 'auto', 'mode' or 'key'")
        # a replay needs the arguments as Python objects: the native recorder has nothing to save there
        self.library: Any = None if options.replay else native.load()
        self.estimate = _is_faking()
        self.by_mode = intercept == "mode" or not self._key_works() or (intercept == "auto" and self.estimate)
        if self.by_mode and intercept == "key":
            raise MemwatchError("the dispatch key does not work in this torch; use profile(intercept='mode')")

    def _key_works(self) -> bool:
        if self.library is not None:
            return NativeKeyInterceptor.works_with(self.library)
        return KeyInterceptor.works()

    def storages(self, strings: Strings, ops_started: list[int]) -> Storages:
        """Make the table of storages."""
        if self.library is None:
            return Storages(strings, ops_started, estimate=self.estimate)
        return NativeStorages(strings, ops_started, estimate=self.estimate, library=self.library)

    def stacks(self, strings: Strings, boundary: CodeType, *, enabled: bool) -> Stacks:
        """Make what captures call stacks, up to the code of `boundary`."""
        if self.library is None:
            return Stacks(strings, boundary, enabled=enabled)
        return NativeStacks(strings, boundary, enabled=enabled, library=self.library)

    def recorder(
        self, storages: Storages, stacks: Stacks, context: Context, strings: Strings, ops_started: list[int]
    ) -> OpRecorder:
        """Make the recorder of ops."""
        if isinstance(storages, NativeStorages) and isinstance(stacks, NativeStacks):
            return NativeOpRecorder(storages, stacks, context, strings, ops_started, library=self.library)
        return OpRecorder(storages, stacks, context, strings, ops_started)

    def saved(self, storages: Storages, context: Context, ops_started: list[int]) -> SavedTensorRecorder:
        """Make the recorder of saved tensors."""
        if isinstance(storages, NativeStorages):
            return NativeSavedTensorRecorder(self.library, storages, context, ops_started)
        return SavedTensorRecorder(storages, context, ops_started)

    def allocator(
        self, strings: Strings, clock: Clock, ops_started: list[int], note: Callable[[str, str], None]
    ) -> AllocatorChannel:
        """Make the channel of the allocator's events."""
        if self.library is None:
            return AllocatorChannel(strings, clock, ops_started, note)
        return NativeAllocatorChannel(self.library, strings, clock, ops_started, note)

    def interceptor(self, recorder: OpRecorder) -> Interceptor:
        """Make what hands it the ops."""
        if not isinstance(recorder, NativeOpRecorder):
            return ModeInterceptor() if self.by_mode else KeyInterceptor()
        if self.by_mode:
            return NativeModeInterceptor(recorder)
        return NativeKeyInterceptor(self.library, recorder)


def _is_faking() -> bool:
    """Tell whether a FakeTensorMode is on."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
