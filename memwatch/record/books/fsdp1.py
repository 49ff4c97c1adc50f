"""FullyShardedDataParallel's flat parameters: the tensors in which they are gathered, resized as they come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwatch._torch.distributed import UNSHARD, flat_parameter, gathered, loaded_flat_handle
from memwatch.record.harmless import Harmless
from memwatch.record.roles import UNSHARDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.context import Context
    from memwatch.record.patches import Patches


class FlatParameterBook:
    """Note which storages hold a gathered flat parameter."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._harmless = Harmless(context.could_not_record, "FullyShardedDataParallel")
        self.functions = (self._unsharding,)

    def open(self, patches: Patches) -> bool:
        """Begin to read if FullyShardedDataParallel is imported by now; return whether it is."""
        handle = loaded_flat_handle()
        if handle is not None:
            patches.put(handle, UNSHARD, self._unsharding)
        return handle is not None

    def _unsharding(self, unshard: Callable[..., Any], handle: Any, *args: Any, **kwargs: Any) -> Any:
        result = unshard(handle, *args, **kwargs)
        with self._harmless:
            flat, names = flat_parameter(handle)
            name, module = self._context.owners.name_of(flat)
            for tensor in gathered(flat):
                self._context.roles.note(tensor, UNSHARDED, name or names, module)
        return result
