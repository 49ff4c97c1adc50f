"""Push the hooks on saved tensors, and take them off, leaving those of the program where they are.

Only the innermost pair of hooks runs, so hooks that the program pushed before the block are called from ours;
and torch.func refuses to run under any, so it finds ours switched off. Selective checkpointing warns of the program's
hooks, and may call them: it is told those that were pushed before ours.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from torch.autograd import forward_ad

from memwatch._torch.autograd import (
    SAVED_HOOKS_SWITCH,
    in_forward_mode,
    pop_saved_hooks,
    push_saved_hooks,
    top_saved_hooks,
)
from memwatch._torch.checkpoint import PROGRAM_HOOKS, program_hooks_of
from memwatch.record.patches import Patches
from memwatch.record.saved import disguise

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.saved.disguise import Hooks
    from memwatch.record.saved.packer import Packer


_FORWARD_MODE: Final = (
    "forward-mode AD ran: autograd keeps an alias in place of each saved tensor. Other data of the tensor, such as its "
    "tangent, may be freed earlier, so the peak may be lower than without memwatch"
)


class SavedTensorHooks:
    """Have a packer pack what autograd saves in this thread between `start` and `stop`.

    Args:
        packer: packs and unpacks.
        note: called with the kind and the text of a sentence for the report.
    """

    def __init__(self, packer: Packer, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._forward_mode_is_noted = False
        self._packer = packer
        self._hooks = packer.hooks
        self._outer: Hooks | None = None
        self._taken_off_in: set[int] = set()  # threads in which torch has switched hooks off
        self._patches = Patches()
        self.python_functions: tuple[Callable[..., Any], ...] = (
            *packer.python_functions,
            *disguise.CALLED_BACK,
            SavedTensorHooks._disabling,
            SavedTensorHooks._enabling,
        )

    def start(self) -> None:
        """Push the hooks, above those that the program pushed before."""
        self._outer = top_saved_hooks()
        self._packer.set_outer(self._outer)
        push_saved_hooks(*self._hooks)
        if SAVED_HOOKS_SWITCH is not None:
            place, disable, enable = SAVED_HOOKS_SWITCH
            self._patches.put(place, disable, self._disabling)
            self._patches.put(place, enable, self._enabling)
        self._patches.put(forward_ad, "enter_dual_level", self._entering_forward_mode)
        if PROGRAM_HOOKS is not None:
            self._patches.put(*PROGRAM_HOOKS, self._program_hooks)
        if in_forward_mode():
            self._note_forward_mode()
        self._packer.set_keeper(disguise.put_on(self._packer.disguise))

    def stop(self) -> None:
        """Remove the hooks, leaving those that the program pushed inside the block."""
        self._patches.take_off()
        self.pause()
        self._packer.close()

    def pause(self) -> None:
        """Take the hooks off until `resume`, leaving those that the program pushed inside the block."""
        above = []
        while (top := top_saved_hooks()) is not None:
            pop_saved_hooks()
            if top[0] is self._hooks[0]:
                break
            above.append(top)
        else:  # the program left hooks that it had entered before the block, and so popped ours in their place
            above = [hooks for hooks in above if self._outer is None or hooks[0] is not self._outer[0]]
        for hooks in reversed(above):
            push_saved_hooks(*hooks)

    def resume(self) -> None:
        """Push the hooks again, unless torch has switched hooks off: then they come back when it switches them on."""
        if get_ident() not in self._taken_off_in:
            push_saved_hooks(*self._hooks)

    def _program_hooks(self, current: Callable[[], Hooks | None]) -> Hooks | None:
        """Return the program's hooks where torch asks for them: ours are not the program's."""
        found = current()
        return program_hooks_of(self._outer) if found is not None and found[0] is self._hooks[0] else found

    def _entering_forward_mode(self, enter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._note_forward_mode()
        return enter(*args, **kwargs)

    def _note_forward_mode(self) -> None:
        if not self._forward_mode_is_noted:
            self._forward_mode_is_noted = True
            self._note("observer", _FORWARD_MODE)

    def _disabling(self, disable: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Be off where torch switches hooks off: ours, and only ours, are no reason to refuse.

        `torch.autograd.graph.disable_saved_tensors_hooks` calls this, and so does the code that dynamo makes of it.
        That function itself stays as it is: dynamo knows it by its identity.
        """
        top = top_saved_hooks()
        if top is not None and top[0] is self._hooks[0] and self._outer is None:
            pop_saved_hooks()
            self._taken_off_in.add(get_ident())
        disable(*args, **kwargs)

    def _enabling(self, enable: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        enable(*args, **kwargs)
        if get_ident() in self._taken_off_in:
            self._taken_off_in.discard(get_ident())
            push_saved_hooks(*self._hooks)
