"""Random number generators by name: read and restore their states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memwatch.encoding.replay_inputs import RngStates

OWN = "generator:"


def default_generators() -> list[str]:
    """Name the default generators that a program may draw from."""
    names = ["cpu"]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        names += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return names


def read_states(names: Iterable[str], own: Sequence[torch.Generator]) -> RngStates:
    """Copy the states of generators to host memory that torch does not count."""
    return {name: _generator(name, own).get_state().numpy().copy() for name in names}


def restore_states(states: RngStates, own: Sequence[torch.Generator]) -> None:
    """Set generators to states read before."""
    for name, state in states.items():
        _generator(name, own).set_state(torch.from_numpy(state))


def _generator(name: str, own: Sequence[torch.Generator]) -> torch.Generator:
    if name.startswith(OWN):
        return own[int(name.removeprefix(OWN))]
    if name == "cpu":
        return torch.default_generator
    generator: torch.Generator = torch.cuda.default_generators[torch.device(name).index]
    return generator
