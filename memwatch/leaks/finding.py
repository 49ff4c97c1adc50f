"""One surviving storage, explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwatch.heap.paths import Step
    from memwatch.leaks.births import Birth
    from memwatch.leaks.leak import Kind


@dataclass(slots=True)
class Finding:
    """A surviving storage with the words that explain it; holds text and weak references only.

    Attributes:
        birth: when and where it was made.
        key: equal for survivors that one edit would free.
        steps: the retention path, or the cycle and the way from it.
        holder: the reference to cut.
        tensor: the tensor, described.
        kind: as in :class:`memwatch.leaks.Leak`.
        looped: True if it is unreachable and a loop above it was found.
    """

    birth: Birth
    key: object
    steps: list[Step]
    holder: Step | None
    tensor: str
    kind: Kind = "retained"
    looped: bool = False
