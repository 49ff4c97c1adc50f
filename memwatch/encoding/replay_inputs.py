"""What a replay needs beside the recorded tables: real inputs, values before the first write, results, RNG states.

`profile(replay=True)` fills it while it records, in host memory that torch's allocators do not count. It
lives as long as the profile object.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memwatch.encoding.host_memory import HostBytes

if TYPE_CHECKING:
    import torch

RngStates = dict[str, HostBytes]
"""State of each generator: by device, as `cpu` or `cuda:0`, or `generator:N` for the program's own."""


@dataclass
class ReplayInputs:
    """The live part of a recording made with `profile(replay=True)`.

    Attributes:
        inputs: storages that ops read or wrote and that no recorded op made, by number.
        checksums: checksum of each input when it was first seen.
        before: bytes of the inputs that ops wrote, from before the first write.
        filled: bytes that the host wrote into memory an op had only allocated (`empty`), by storage.
        results: bytes, at the end of the block, of every storage still alive that an op made or wrote.
        changed: inputs whose bytes changed without a recorded op.
        rng_before: generator states from before each op that may draw random numbers, by op.
        rng_after: checksums of the generator states after each such op, by op.
        generators: the program's own generators, by number.
    """

    inputs: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    checksums: dict[int, int] = field(default_factory=dict)
    before: dict[int, HostBytes] = field(default_factory=dict)
    filled: dict[int, HostBytes] = field(default_factory=dict)
    results: dict[int, HostBytes] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    rng_before: dict[int, RngStates] = field(default_factory=dict)
    rng_after: dict[int, dict[str, int]] = field(default_factory=dict)
    generators: list[torch.Generator] = field(default_factory=list)
