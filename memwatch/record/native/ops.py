"""The recorder of ops in C++, with what it leaves to Python: tensors of parts, and the words for errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwatch.record.interception.key import KeyInterceptor
from memwatch.record.interception.mode import ModeInterceptor
from memwatch.record.native.callbacks import OpCallbacks
from memwatch.record.native.kernels import NativeTarget
from memwatch.record.tables.operands import Operands

if TYPE_CHECKING:
    from memwatch.record.backend import Block, CallContext, Listener
    from memwatch.record.interception.interceptor import Interceptor
    from memwatch.record.interception.kinds import OpKind
    from memwatch.record.native.extension import Extension, StackWalker
    from memwatch.record.native.kernels import NativeKernels
    from memwatch.record.tables.storages import Storages


class NativeOpRecorder:
    """Append the rows of `ops`, `uses`, `births` and `deaths` in C++."""

    def __init__(
        self, extension: Extension, kernels: NativeKernels, block: Block, *, storages: Storages,
        stacks: StackWalker, context: CallContext, listener: Listener,
    ) -> None:  # fmt: skip
        self._kernels = kernels
        self.uses = extension.Rows()
        self._native = extension.Recorder(
            callbacks=OpCallbacks(listener, Operands(storages, self.uses), block.strings),
            storages=storages.ledger,
            stacks=stacks,
            context=context,
            uses=self.uses,
            op_counter=block.op_counter,
        )
        self._run = self._native.run()
        self.ops, self.nodes = self._native.ops, self._native.nodes
        self.views, self.lifts = self._native.views, self._native.lifts

    def run(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op and record it; its result or its exception is passed on as it is."""
        return self._run(kind, args, kwargs)

    @property
    def losses(self) -> int:
        """How often something could not be noted because memory had run out."""
        return self._native.losses

    def interceptor(self, *, by_mode: bool) -> Interceptor:
        """Return what hands this recorder every op, without a frame or an object of Python's where it can."""
        if by_mode:
            return ModeInterceptor(self._native.dispatch())
        return KeyInterceptor(self._kernels, NativeTarget(self._native))

    def flush_at(self, op: int, at_ticks: int) -> None:
        """Call `Listener.flush_due` after the op of that number, or the first op that ends later than that."""
        self._native.flush_at(op, at_ticks)

    def close(self) -> None:
        """Record no more, and let C++ go of the objects of Python's that it holds."""
        self._native.close()
