"""How memory saved for backward grows with the number of layers (the question of lightning-thunder #871)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from memwatch.report.facts import HELD_ANYWAY, saved_for_backward
from memwatch.sizes import format_bytes
from memwatch.words.summary import LAYERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.report.source import Reading

_NUMBERED: Final = re.compile(r"(?:(.*)\.)?\d+")


@dataclass(frozen=True, slots=True)
class Layers:
    """Equal modules with numbers under one parent, such as the blocks of a transformer.

    Two modules are equal if they have the same class and equally many bytes of parameters. Modules without parameters
    are left out, because a larger model does not have more of them. Unequal modules, such as the linear layers of an
    MLP, are left out because one figure cannot describe them.
    """

    name: str
    """Common name, such as ``blocks.*``."""

    class_name: str
    count: int
    saved_bytes: float
    """Bytes that one of them keeps at the peak for backward alone. The median: the layer in which the peak lies is
    different."""

    inclusive_bytes: float
    """Bytes at the peak that belong to one of them, the median."""

    share_of_twice_ratio: float
    """Share of the peak, with twice as many layers, that would be there for backward only; 0 to 1."""

    def __str__(self) -> str:
        """One sentence for people."""
        return LAYERS.format(
            count=self.count,
            name=self.name,
            class_name=self.class_name,
            nbytes=format_bytes(self.saved_bytes),
            twice=2 * self.count,
            share=f"{100 * self.share_of_twice_ratio:.0f} %",
        )


def repeated_layers(reading: Reading) -> Layers | None:
    """Return the repeated modules that save most for backward.

    Args:
        reading: a profile.

    Returns:
        The layers. None if fewer than two equal numbered modules save something.
    """
    modules, saved_bytes = reading.modules, _only_for_backward(reading)
    parameter_bytes = _parameter_bytes(reading)
    groups: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for name, class_name, inclusive_bytes in zip(
        modules.index, modules["class_name"], modules["inclusive_bytes"], strict=True
    ):
        if (numbered := _NUMBERED.fullmatch(name)) and parameter_bytes[name]:
            member = (saved_bytes[name], inclusive_bytes)
            groups.setdefault((numbered[1] or "", class_name, parameter_bytes[name]), []).append(member)
    repeated = {key: group for key, group in groups.items() if len(group) > 1}
    medians = {
        key: tuple(median(column) for column in zip(*group, strict=True)) for key, group in repeated.items()
    }
    key = max(medians, key=lambda key: medians[key][0] * len(repeated[key]), default=None)
    if key is None or not medians[key][0]:
        return None
    count, (saved, inclusive) = len(repeated[key]), medians[key]
    now = saved_for_backward(reading)
    twice = now.nbytes - now.held_anyway_bytes + count * saved
    share_ratio = twice / (now.peak_bytes + count * max(inclusive, saved))
    return Layers(f"{key[0]}.*" if key[0] else "*", key[1], count, saved, inclusive, share_ratio)


def _only_for_backward(reading: Reading) -> Counter[str]:
    """Return the bytes at the peak that are there for backward alone, by the module that saved them and those above."""
    saved, peak = reading.saved, reading.at_peak
    alone = peak["nbytes"][~peak["category"].isin(HELD_ANYWAY)]
    rows = saved[saved["at_peak"] & saved["storage"].isin(alone.index)].drop_duplicates("storage")
    return _with_children(rows["module"], alone.loc[rows["storage"]].tolist())


def _parameter_bytes(reading: Reading) -> Counter[str]:
    """Return the bytes of parameters and buffers of each module, including those of its children."""
    return _with_children(reading.modules.index, reading.modules["parameter_bytes"].tolist())


def _with_children(modules: Iterable[str], sizes: Iterable[int]) -> Counter[str]:
    """Return the sum of sizes by module; a size counts for its module and for those above."""
    sums: Counter[str] = Counter()
    for module, nbytes in zip(modules, sizes, strict=True):
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            sums[".".join(parts[:count])] += nbytes
    return sums
