"""Random number generators by name: read and restore their states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from memwatch.devices import adapter_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memwatch.encoding.replay_inputs import RngStates

OWN = "generator:"


def read_states(names: Iterable[str], own: Sequence[torch.Generator]) -> RngStates:
    """Copy the states of generators to host memory that torch does not count.

    Args:
        names: devices, for their default generators, and `generator:N` for those of the program's own.
        own: the program's own generators.
    """
    return {name: _state(name, own).numpy().copy() for name in names}


def restore_states(states: RngStates, own: Sequence[torch.Generator]) -> None:
    """Set generators to states read before."""
    for name, state in states.items():
        if name.startswith(OWN):
            own[_number(name)].set_state(torch.from_numpy(state))
        else:
            adapter_of(name).set_random_state(name, torch.from_numpy(state))


def _state(name: str, own: Sequence[torch.Generator]) -> torch.Tensor:
    return own[_number(name)].get_state() if name.startswith(OWN) else adapter_of(name).random_state(name)


def _number(name: str) -> int:
    return int(name.removeprefix(OWN))
