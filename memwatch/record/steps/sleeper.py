"""What is off while no step is recorded: the interceptor, the hooks on saved tensors, the calls of modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch._torch.modes import disable_torch_function

if TYPE_CHECKING:
    from memwatch.record.context import Context
    from memwatch.record.interception.interceptor import Handler, Interceptor
    from memwatch.record.saved.hooks import SavedTensorHooks
    from memwatch.record.tables.storages import Storages


class Sleeper:
    """Switch what sees ops off and on again, in the thread of the block.

    Args:
        storages: the storages that are alive.
        interceptor: hands every op to the handler.
        saved: the hooks on saved tensors.
        context: the running calls.
        handler: runs an op and records it.
    """

    def __init__(
        self, storages: Storages, interceptor: Interceptor, saved: SavedTensorHooks, context: Context,
        handler: Handler,
    ) -> None:  # fmt: skip
        self._storages, self._interceptor = storages, interceptor
        self._saved, self._context, self._handler = saved, context, handler
        self.is_asleep = False

    def start(self) -> None:
        """Begin to see ops."""
        self._interceptor.start(self._handler)

    def sleep(self) -> None:
        """See no op any more; the allocator is heard on."""
        self._interceptor.stop()
        self._saved.pause()
        self._context.sleep()
        self._storages.is_asleep = self.is_asleep = True

    def wake(self) -> None:
        """See the ops again, and number what is there by now."""
        self.is_asleep = False
        self._storages.wake()
        with disable_torch_function():
            self._context.wake()
        self.go_on()

    def put_back(self) -> None:
        """Be as if nothing slept, before all is switched off: the hooks look for themselves where they are put."""
        if self.is_asleep:
            self.is_asleep = False
            self._saved.resume()

    def stand_aside(self) -> None:
        """Look at no op for a while, as while torch.jit traces."""
        if not self.is_asleep:
            self._interceptor.stop()
            self._saved.pause()

    def go_on(self) -> None:
        """Look at ops again."""
        if not self.is_asleep:
            self._saved.resume()
            self._interceptor.start(self._handler)
