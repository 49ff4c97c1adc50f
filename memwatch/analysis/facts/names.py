"""Name allocations for every text, table and page: by their role, by their path between modules, or by their maker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE, Allocations
from memwatch.analysis.facts.coded import Coded, different_rows
from memwatch.analysis.facts.forward_ops import COMPILED, compiled_backward_at, compiled_call_at, op_of_node
from memwatch.analysis.facts.places import OF_DATA, Places, Texts, lifts, with_empty_end
from memwatch.capture.schema import ACCESSES, FORWARD, GRADIENT_PREFIX, NONE
from memwatch.kinds.roles import OWNED_BY_MODULES, ROLES
from memwatch.words.places import own_place_in_file
from memwatch.words.storages import made_name, output_name, role_name, saved_name, unmade_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from memwatch.analysis.facts.categories import Categories
    from memwatch.analysis.facts.module_tree import ModuleTree
    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

# Find the op that made each allocation, with its name, call stack, line and module.
#
# An imported memory snapshot has the call stack of each allocation, and no op.
_ALLOC: Final = "alloc"


def imported_stacks(capture: Capture, storages: int) -> IntArray:
    """Return the stack of the call that allocated each storage, -1 where none was imported, shape (storages,)."""
    stacks = np.full(storages, NONE, dtype=np.int64)
    for name in ("blocks", "history"):  # the history has the last call at each address, so it wins
        rows = capture.tables[name]
        chosen = rows["storage"] != NONE
        if name == "history":
            chosen &= np.array(capture.text(rows["action"]), dtype=object) == _ALLOC
        stacks[rows["storage"][chosen]] = rows["stack"][chosen]
    return stacks


class MadeBy(NamedTuple):
    """Per allocation: its op's name, stack, lines and module; empty text or -1 where neither op nor call is known."""

    op_name: Coded
    stack: IntArray
    line: Coded
    own_line: Coded
    module_name: Coded


def made_by(capture: Capture, allocations: Allocations, places: Places) -> MadeBy:
    """Return the facts about the op that made each allocation, or about the call that made it without an op."""
    ops, op = capture.tables["ops"], allocations.op
    count = len(allocations)
    some: NDArray[np.bool_] = (op != NONE) & (op < len(ops["op"]))  # a killed program may lack its last op
    name, stack, module = (np.full(count, NONE, dtype=np.int32) for _ in range(3))
    name[some] = ops["name"][op[some]]
    stack[some], module[some] = places.stack_of_op[op[some]], places.module_of_op[op[some]]
    without_op = ~some & (allocations.storage != NONE)
    stack[without_op] = imported_stacks(capture, allocations.named)[allocations.storage[without_op]]
    lifted = lifts(capture, allocations.named)
    of_data: NDArray[np.bool_] = without_op & lifted.is_lift[allocations.storage]
    data = allocations.storage[of_data]
    name[of_data] = len(capture.strings) + 1
    stack[of_data], module[of_data] = lifted.stack[data], lifted.module[data]
    some |= of_data
    call = np.where(some, NONE, compiled_call_at(capture, allocations.birth_ns))
    in_call, calls = call != NONE, capture.tables["compiled_calls"]
    name[in_call] = len(capture.strings)
    stack[in_call], module[in_call] = calls["stack"][call[in_call]], calls["module"][call[in_call]]
    unknown = np.flatnonzero(~some & ~in_call & (allocations.origin != BASELINE))
    backward, nodes = (
        compiled_backward_at(capture, allocations.birth_ns[unknown]),
        capture.tables["compiled_nodes"],
    )
    in_backward, of_call = unknown[backward != NONE], backward[backward != NONE]
    name[in_backward] = len(capture.strings)
    stack[in_backward], module[in_backward] = nodes["stack"][of_call], nodes["module"][of_call]
    names = with_empty_end([*capture.strings, COMPILED, OF_DATA])
    return MadeBy(
        op_name=Coded(names, name),
        stack=stack,
        line=Coded(with_empty_end(places.line_of_stack), stack),
        own_line=Coded(with_empty_end(places.own_line_of_stack), stack),
        module_name=Coded(with_empty_end(places.module_tree.names), module),
    )


_AS_MADE: Final = -2
"""The number of the module whose op made an allocation; -1 means no module."""

_QUOTED: Final = re.compile("`(.*)`")
"""The module in the name of a buffer for communication, as "all-gather buffer of `layers.3`"."""


def owning_modules(tree: ModuleTree, categories: Categories, made: MadeBy) -> Coded:
    """Return a module per allocation: the module that owns it, or else the module whose op made it."""
    modules, kinds = made.module_name.codes.copy(), categories.category.codes
    known, number_of = _by_suffix(tree.names), {name: number for number, name in enumerate(tree.names)}
    columns = (categories.category, categories.role_name, categories.role_module)
    owner_of_kind = np.full(len(categories.category.values), _AS_MADE, dtype=np.int64)
    for kind, (category, recorded_name, owner) in enumerate(
        zip(*(column.values.tolist() for column in columns), strict=True)
    ):
        if category in OWNED_BY_MODULES:
            named = _owner_in(recorded_name) if owner == NONE else tree.names[owner]
            # A leaf outside all modules has no module. Its gradient gets the module that computed it.
            unowned = _AS_MADE if category == "gradient" and named not in known else NONE
            owner_of_kind[kind] = number_of.get(known.get(named, ""), unowned)
        elif category == "communication":
            quoted = _QUOTED.search(recorded_name)
            found = "" if quoted is None else known.get(quoted[1], "")
            owner_of_kind[kind] = number_of.get(found, _AS_MADE)
    owners = owner_of_kind[kinds]
    is_owned = owners != _AS_MADE
    modules[is_owned] = owners[is_owned]
    return Coded(made.module_name.values, modules)


def _by_suffix(names: Sequence[str]) -> dict[str, str]:
    """Return modules by the names that FSDP may use: the whole name, or the unique part after the root's name."""
    known: dict[str, str] = {}
    for name in names:
        for at in (at for at, sign in enumerate(name) if sign == "."):
            suffix = name[at + 1 :]
            known[suffix] = name if known.get(suffix, name) == name else ""
    return {**known, **{name: name for name in names}}


def _owner_in(role_name: str) -> str:
    """Return the module in a role's name, as FSDP gives it: `layer.1` of `layer.1.weight`, `grad of layer.1.weight`."""
    parameter = role_name.removeprefix(GRADIENT_PREFIX).rpartition("[")[2].removesuffix("]")
    return parameter.rpartition(".")[0]


def qualified(role_name: str, module: int, tree: ModuleTree) -> str:
    """Return the name of a role with the module's: `grad of layer.1.weight`, `adamw.exp_avg[layer.1.weight]`."""
    prefix = "" if module == NONE else tree.prefixes[module]
    if not prefix:
        return role_name
    before = GRADIENT_PREFIX if role_name.startswith(GRADIENT_PREFIX) else ""
    if role_name.endswith("]"):
        before = role_name[: role_name.index("[") + 1]
    return f"{before}{prefix}.{role_name.removeprefix(before)}"


# Find the module that returned an allocation, and the op that saved it for a backward. Users know memory by these.
class Purposes(NamedTuple):
    """Per allocation: the module whose output it is; the op that saved it for its backward, and the module it ran in.

    These are numbers of modules, and the string id of the op's name; -1 for none.
    """

    output_of: IntArray
    saved_by: IntArray
    saved_in: IntArray


def purposes(capture: Capture, allocations: Allocations, places: Places) -> Purposes:
    """Return the module whose output each allocation is, and the op that saved it.

    An allocation is a module's output if the module's forward made it and code outside the module read it.
    """
    named = allocations.named
    output_of, saved_by, saved_in = (np.full(named + 1, NONE, dtype=np.int32) for _ in range(3))
    output_of[:named] = _outputs(capture, named, places.module_tree.parents)
    saved_by[:named], saved_in[:named] = _saved(capture, named)
    return Purposes(*(column[allocations.storage] for column in (output_of, saved_by, saved_in)))


def _outputs(capture: Capture, named: int, parents: list[int]) -> IntArray:
    births, uses, ops = (capture.tables[name] for name in ("births", "uses", "ops"))
    made_in = np.full(named, NONE, dtype=np.int32)
    if not len(ops["phase"]):
        return made_in
    made = births["op"] != NONE
    is_forward = ops["phase"] == FORWARD
    op = births["op"][made]
    made_in[births["storage"][made]] = np.where(is_forward[op], ops["module"][op], NONE)
    read = (uses["access"] == ACCESSES.index("read")) & is_forward[uses["op"]]
    storage, reader = uses["storage"][read], ops["module"][uses["op"][read]]
    maker = made_in[storage]
    outside = (maker != NONE) & (maker != reader)
    count = len(parents) + 1  # -1 is the code outside of all modules
    pairs = maker[outside].astype(np.int64) * count + (reader[outside] + 1)
    different, of_pair = np.unique(pairs, return_inverse=True)
    leaves = [not _is_inside(pair % count - 1, pair // count, parents) for pair in different.tolist()]
    has_left = np.zeros(named, dtype=bool)
    has_left[storage[outside][np.array(leaves, dtype=bool)[of_pair]]] = True
    return np.where(has_left, made_in, NONE).astype(np.int32)


def _is_inside(module: int, other: int, parents: list[int]) -> bool:
    while module not in (NONE, other):
        module = parents[module]
    return module == other


def _saved(capture: Capture, named: int) -> tuple[IntArray, IntArray]:
    """Return the name of the op whose node first saved each storage, and the module of the op."""
    packs, ops = capture.tables["packs"], capture.tables["ops"]
    by, inside = (np.full(named, NONE, dtype=np.int32) for _ in range(2))
    known = (packs["storage"] != NONE) & (packs["sequence"] != NONE)
    op = op_of_node(capture, packs["sequence"][known])
    name = np.append(ops["name"], NONE)[op]
    storage, first = np.unique(packs["storage"][known], return_index=True)
    by[storage], inside[storage] = name[first], packs["module"][known][first]
    return by, inside


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
    step: IntArray  # the step that made it, if this step was not recorded; else -1
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
        names = [self._name_of(_Kind(*kind)) for kind in rows]
        return [names[number] for number in of_kind.tolist()]

    def only_older(self, allocations: IntArray) -> NDArray[np.bool_]:
        """Return which allocations are named only by being older than the block."""
        roles = self.roles
        has_role = np.array([bool(name) for name in roles.role_name.values], dtype=bool)
        is_saved = roles.category.isin(["activation", "recomputed"]) & (self.way.saved_by != NONE)
        is_named = has_role[roles.role_name.codes] | is_saved | (self.way.output_of != NONE)
        only: NDArray[np.bool_] = (self.is_older & ~is_named)[allocations]
        return only

    def _name_of(self, kind: _Kind) -> str:
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


def role_names(roles: Categories, tree: ModuleTree) -> Coded:
    """Return the recorded name of the role of each allocation, as `grad of head.weight`; empty without a role."""
    kinds = zip(roles.role_name.values.tolist(), roles.role_module.values.tolist(), strict=True)
    names = np.array([*(qualified(name, module, tree) for name, module in kinds), None], dtype=object)[:-1]
    return Coded(names, roles.role_name.codes)


CONVERSION: Final = "aten._to_copy"


def autocast_copies(capture: Capture, names: dict[int, str]) -> dict[int, str]:
    """Return the name of the parameter by the storage of its copy.

    Args:
        capture: the recorded tables.
        names: the names of parameters by their storages.
    """
    roles, uses, births = (capture.tables[name] for name in ("roles", "uses", "births"))
    copies = np.unique(roles["storage"][roles["role"] == ROLES.index("autocast copy")])
    if not len(copies):
        return {}
    name_of_op = capture.tables["ops"]["name"]
    made = np.isin(births["storage"], copies) & (births["op"] != NONE) & (births["op"] < len(name_of_op))
    copy_of_op = {
        op: storage
        for op, storage in zip(births["op"][made].tolist(), births["storage"][made].tolist(), strict=True)
        if capture.strings[name_of_op[op]].startswith(CONVERSION)
    }
    reads = np.isin(uses["op"], list(copy_of_op)) & (uses["access"] == ACCESSES.index("read"))
    rows = zip(uses["op"][reads].tolist(), uses["storage"][reads].tolist(), strict=True)
    return {copy_of_op[op]: names[storage] for op, storage in rows if storage in names}
