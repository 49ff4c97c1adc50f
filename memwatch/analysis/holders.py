"""Holders: who kept each piece of memory alive at an instant, in words.

A role names its holder by itself, autograd's saved tensors are known from their packs, and the looks of the
recorder name the variables of running calls. What is left is held by C++ alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.lives import WORKSPACE
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.analysis.frames import Frames

_TORCH = ("/torch/", "\\torch\\")


@dataclass(frozen=True)
class Holder:
    """One holder of a piece of memory: its kind, itself in words, the line to edit, the retention path."""

    kind: str
    words: str
    site: str
    path: str

    @property
    def in_torch(self) -> bool:
        """Whether the holder is a variable of torch's own code, which no user edits."""
        return any(part in self.site for part in _TORCH)


class Holders:
    """The holders of a capture's storages, at any event of its live curve."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames

    @cached_property
    def _looks(self) -> dict[int, list[int]]:
        """Rows of the recorded table by storage."""
        rows: dict[int, list[int]] = {}
        for row, storage in enumerate(self._frames.capture.tables["holders"]["storage"].tolist()):
            rows.setdefault(storage, []).append(row)
        return rows

    def variables(self, life: int, op: int) -> list[Holder]:
        """Give the variables that held a life in the look nearest to an op, the program's own and innermost first."""
        lives, table = self._frames.lives, self._frames.capture.tables["holders"]
        rows = self._looks.get(int(lives.storage[life]), [])
        if not rows:
            return []
        distance = np.abs(table["op"][rows] - op)
        nearest = [row for row, far in zip(rows, distance, strict=True) if far == distance.min()]
        text = self._frames.capture.text
        kinds, words, sites, paths = (
            text(table[name][nearest]) for name in ("kind", "holder", "site", "path")
        )
        found = dict.fromkeys(Holder(*row) for row in zip(kinds, words, sites, paths, strict=True))
        return sorted(found, key=lambda holder: holder.in_torch)

    @cached_property
    def _packs(self) -> dict[int, list[tuple[int, int, int]]]:
        """Packs by storage: (pack, op before which it was saved, op before which it was released)."""
        saved = self._frames.saved
        found: dict[int, list[tuple[int, int, int]]] = {}
        columns = zip(
            saved["storage"].tolist(), saved["saved_op"].tolist(), saved["released_op"].tolist(), strict=True
        )
        for pack, (storage, start, end) in enumerate(columns):
            if storage != NONE:
                found.setdefault(storage, []).append((pack, start, end))
        return found

    def packs_at(self, life: int, op: int) -> list[int]:
        """Give the saved tensors through which autograd held a life while an op ran."""
        packs = self._packs.get(int(self._frames.lives.storage[life]), [])
        return [pack for pack, start, end in packs if start <= op + 1 and (end == NONE or end > op)]

    def describe(self, lives: Sequence[int], op: int) -> list[Holder]:
        """Name one holder for each life, as seen while an op ran."""
        storages = self._frames.storages
        category, name = storages["category"].to_numpy(), storages["name"].to_numpy()
        return [self._one(life, op, str(category[life]), str(name[life])) for life in lives]

    def _one(  # noqa: PLR0911  # one return per kind of holder
        self, life: int, op: int, category: str, name: str
    ) -> Holder:
        if category in ("parameter", "buffer"):
            return Holder(f"module {category}", f"{category} `{name}`", "", "")
        if category == "optimizer state":
            return Holder(category, f"optimizer state `{name}`", "", "")
        if category == "gradient":
            return Holder("attribute", f"attribute .grad of `{name.removeprefix('grad of ')}`", "", "")
        packs = self.packs_at(life, op)
        if packs:
            saved = self._frames.saved
            node, module, line = (
                str(saved[column].iloc[packs[0]]) for column in ("op_name", "module", "line")
            )
            behalf = f" on behalf of `{module}`" if module else ""
            return Holder("autograd node", f"saved for the backward of {node or 'an op'}{behalf}", line, "")
        variables = self.variables(life, op)
        if variables:
            return variables[0]
        storages = self._frames.storages
        origin = int(self._frames.lives.origin[life])
        if origin == WORKSPACE:
            return Holder(
                "kernel",
                f"the kernel of {storages['op_name'].iloc[life]}",
                str(storages["line"].iloc[life]),
                "",
            )
        made_by = str(storages["op_name"].iloc[life]) or "no recorded op"
        return Holder(
            "C++ only",
            f"C++ or an unnamed value of a running call (made by {made_by})",
            str(storages["line"].iloc[life]),
            "",
        )
