"""Name allocations for every text, table and page: by their role, by their path between modules, or by their maker."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Coded, different_rows
from memwatch.analysis.facts.module_names import qualified
from memwatch.capture.schema import GRADIENT_PREFIX, NONE
from memwatch.words.places import own_place_in_file
from memwatch.words.storages import made_name, output_name, role_name, saved_name, unmade_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.categories import Categories
    from memwatch.analysis.facts.made_by import MadeBy
    from memwatch.analysis.facts.module_tree import ModuleTree
    from memwatch.analysis.facts.outputs import Purposes
    from memwatch.analysis.facts.places import Texts
    from memwatch.capture.packed import IntArray


class _Kind(NamedTuple):
    """The numbers that decide a name. Allocations that agree in all of them have the same name."""

    role_name: int
    op_name: int
    stack: int
    module: int
    thread: int
    step: int
    is_workspace: int
    output_of: int
    saved_by: int
    saved_in: int
    is_kept_for_backward: int
    is_older: int


class Names(NamedTuple):
    """The parts of the names of allocations."""

    strings: Texts
    thread: IntArray
    step: IntArray  # that made it, if it was not recorded, else -1
    is_older: NDArray[np.bool_]  # whether it is older than the block
    made: MadeBy
    roles: Categories
    recorded: Coded  # the names of the roles, with the modules' names
    way: Purposes
    tree: ModuleTree
    has_ops: bool

    def of(self, allocations: IntArray | slice) -> list[str]:
        """Return the names of some allocations."""
        made, roles, way = self.made, self.roles, self.way
        columns = (  # in the order of _Kind
            roles.role_name.codes, made.op_name.codes, made.stack, made.module_name.codes, self.thread,
            self.step, roles.category.isin(["workspace"]), way.output_of, way.saved_by, way.saved_in,
            roles.category.isin(["activation", "recomputed"]), self.is_older,
        )  # fmt: skip
        chosen = [np.asarray(column[allocations], dtype=np.int64) for column in columns]
        first, of_kind = different_rows(chosen)
        rows = zip(*(column[first].tolist() for column in chosen), strict=True)
        told = [self._told(_Kind(*kind)) for kind in rows]
        return [told[number] for number in of_kind.tolist()]

    def only_older(self, allocations: IntArray) -> NDArray[np.bool_]:
        """Return which allocations have no other name than that they are older than the block."""
        roles = self.roles
        has_role = np.array([bool(name) for name in roles.role_name.values], dtype=bool)
        is_saved = roles.category.isin(["activation", "recomputed"]) & (self.way.saved_by != NONE)
        is_named = has_role[roles.role_name.codes] | is_saved | (self.way.output_of != NONE)
        only: NDArray[np.bool_] = (self.is_older & ~is_named)[allocations]
        return only

    def _told(self, kind: _Kind) -> str:
        if self.roles.role_name.values[kind.role_name]:
            recorded = self.recorded.values[kind.role_name].removeprefix(GRADIENT_PREFIX)
            return role_name(self.roles.role.values[kind.role_name], recorded)
        if kind.output_of != NONE and not kind.is_workspace:
            return output_name(self.tree.names[kind.output_of])
        if kind.saved_by != NONE and kind.is_kept_for_backward:
            inside = "" if kind.saved_in == NONE else self.tree.names[kind.saved_in]
            return saved_name(self.strings[kind.saved_by], inside)
        lines = (self.made.line.values[kind.stack], self.made.own_line.values[kind.stack])
        op_name, module = self.made.op_name.values[kind.op_name], self.made.module_name.values[kind.module]
        place = own_place_in_file(*lines)
        made_as = made_name(op_name, module, place, is_workspace=bool(kind.is_workspace))
        return made_as or unmade_name(
            self.strings[kind.thread], kind.step, is_older=bool(kind.is_older), has_ops=self.has_ops
        )


def recorded_names(roles: Categories, tree: ModuleTree) -> Coded:
    """Return the recorded names of the roles of allocations, as `grad of head.weight`; empty without a role."""
    kinds = zip(roles.role_name.values.tolist(), roles.role_module.values.tolist(), strict=True)
    names = np.array([*(qualified(name, module, tree) for name, module in kinds), None], dtype=object)[:-1]
    return Coded(names, roles.role_name.codes)
