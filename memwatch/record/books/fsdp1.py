"""FullyShardedDataParallel's flat parameters: the tensors in which they are gathered, resized as they come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwatch._torch.distributed import UNSHARD, flat_parameter, gathered, loaded_flat_handle
from memwatch.record.context import UNSHARDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.context import Context
    from memwatch.record.patches import Patches


class FlatParameterBook:
    """Note which storages hold a gathered flat parameter."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.functions = (self._unsharding,)

    def open(self, patches: Patches) -> bool:
        """Begin to read if FullyShardedDataParallel is imported by now; return whether it is."""
        handle = loaded_flat_handle()
        if handle is not None:
            patches.put(handle, UNSHARD, self._unsharding)
        return handle is not None

    def _unsharding(self, unshard: Callable[..., Any], handle: Any, *args: Any, **kwargs: Any) -> Any:
        result = unshard(handle, *args, **kwargs)
        flat, names = flat_parameter(handle)
        name, module = self._context.name_of(flat)
        for tensor in gathered(flat):
            self._context.note_role(tensor, UNSHARDED, name or names, module)
        return result
