"""Roles and categories of memory: one row for each, with everything that depends on it.

A *role* is what the recorder saw a storage to be, such as a parameter of a module. The analysis derives from the roles,
and from the uses of a storage, the single *category* that users read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from memwatch.kinds.holders import HolderKind


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """The properties of one category.

    Attributes:
        name: the value of the column `category`.
        color: its colour on the page, near Paul Tol's bright palette. A test holds all colours apart with any one kind
            of cone missing, and text on them readable.
        terminal_color: its colour in a terminal, as `rich` names it.
        phrase: its memory in a sentence, in the plural.
        meaning: what it means, where the name alone does not say it.
        is_of_training: True for parameters, buffers, gradients and optimizer state, which belong to a parameter's name.
        is_kept_on_purpose: True for memory that stays alive whether or not anything else holds it.
        is_owned_by_module: True if it belongs to the module of the parameter that its name has, and not to the module
            that made it. The categories of training do so too.
    """

    name: str
    color: str
    terminal_color: str
    phrase: str
    meaning: str | None = None
    is_of_training: bool = False
    is_kept_on_purpose: bool = False
    is_owned_by_module: bool = False


CATEGORY_ROWS: Final = (
    CategoryRow("parameter", "#7a95cb", "blue", "parameters", is_of_training=True, is_kept_on_purpose=True),
    CategoryRow(
        "unsharded parameter",
        "#587ec6",
        "bright_blue",
        "parameters that FSDP gathered",
        is_kept_on_purpose=True,
        is_owned_by_module=True,
    ),
    CategoryRow(
        "buffer", "#9dc4e7", "cyan", "buffers of modules", is_of_training=True, is_kept_on_purpose=True
    ),
    CategoryRow("gradient", "#ea9f5e", "yellow", "gradients", is_of_training=True, is_kept_on_purpose=True),
    CategoryRow(
        "optimizer state",
        "#c2a3f2",
        "magenta",
        "optimizer state",
        is_of_training=True,
        is_kept_on_purpose=True,
    ),
    CategoryRow(
        "communication", "#b97ca9", "bright_magenta", "buffers for collectives", is_kept_on_purpose=True
    ),
    CategoryRow(
        "activation",
        "#de6863",
        "red",
        "activations, which forward saves for backward",
        meaning="forward saves it for backward",
    ),
    CategoryRow(
        "recomputed",
        "#c45f75",
        "bright_red",
        "activations, which a checkpoint computes again",
        meaning="a checkpoint computes it again",
    ),
    CategoryRow("input", "#77c8a2", "green", "inputs"),
    CategoryRow(
        "held",
        "#409584",
        "bright_cyan",
        "tensors that a variable keeps from one iteration to the next",
        meaning="a variable keeps it from one iteration to the next",
    ),
    CategoryRow(
        "temporary",
        "#e4cc61",
        "bright_yellow",
        "temporary tensors, which are not saved for backward",
        meaning="not saved for backward, and no later iteration was seen to need it",
    ),
    CategoryRow(
        "workspace",
        "#b79c80",
        "bright_black",
        "workspace, which a kernel uses inside one op",
        meaning="a kernel uses it inside one op",
    ),
    CategoryRow("unknown", "#aab2bd", "white", "memory whose use is not known"),
)
"""The order is that of legends and tables."""
CATEGORY_OF: Final = {row.name: row for row in CATEGORY_ROWS}
CATEGORIES: Final = tuple(row.name for row in CATEGORY_ROWS)
OF_TRAINING: Final = tuple(row.name for row in CATEGORY_ROWS if row.is_of_training)
OWNED_BY_MODULES: Final = tuple(
    row.name for row in CATEGORY_ROWS if row.is_of_training or row.is_owned_by_module
)
KEPT_ON_PURPOSE: Final = tuple(row.name for row in CATEGORY_ROWS if row.is_kept_on_purpose)


@dataclass(frozen=True, slots=True)
class RoleRow:
    """The properties of one role.

    Attributes:
        name: the role. The capture stores its number, which is its place in `ROLE_ROWS`.
        rule: why memory in this role has its category; None if the role gives none.
        category: the category that the role gives; None if it has the same name.
        strength: of several roles of a storage the one with the lowest number gives the category; None if it gives
            none.
        holder: the kind of holder that the role names by itself; None if it names none.
        holder_words: a template for that holder; None if the name of the memory names it.
        is_inferred: True if the holder is not from torch's own records.
    """

    name: str
    rule: str | None = None
    category: str | None = None
    strength: int | None = None
    holder: HolderKind | None = None
    holder_words: str | None = None
    is_inferred: bool = False


ROLE_ROWS: Final = (
    RoleRow(
        "parameter",
        rule="it is a parameter of a module or of an optimizer",
        strength=2,
        holder=HolderKind.PARAMETER,
        holder_words="parameter `{name}`",
    ),
    RoleRow(
        "buffer",
        rule="it is a buffer of a module",
        strength=4,
        holder=HolderKind.BUFFER,
        holder_words="buffer `{name}`",
    ),
    RoleRow("gradient", rule="it was the .grad of a parameter", strength=6, holder=HolderKind.GRADIENT),
    RoleRow(
        "optimizer state",
        rule="the optimizer keeps it in its state",
        strength=5,
        holder=HolderKind.OPTIMIZER_STATE,
    ),
    RoleRow(
        "input",
        rule="it was an argument of the outermost module call, and no module computed it",
        strength=12,
    ),
    RoleRow(
        "unsharded parameter",
        rule="FSDP gathers the whole parameter in it",
        strength=1,
        holder=HolderKind.UNSHARDED_PARAMETER,
    ),
    RoleRow(
        "unsharded gradient",
        rule="it is the gradient of a whole parameter, which FSDP has not reduced yet",
        category="gradient",
        strength=7,
        holder=HolderKind.COMMUNICATION,
        holder_words="gradient of the whole parameter `{name}` of FSDP",
    ),
    RoleRow(
        "bucket",
        rule="DistributedDataParallel's reducer reduces the gradients in it",
        category="communication",
        strength=8,
        holder=HolderKind.COMMUNICATION,
    ),
    RoleRow(
        "communication",
        rule="DistributedDataParallel or FSDP2 made it to communicate",
        strength=9,
        holder=HolderKind.COMMUNICATION,
    ),
    RoleRow("autocast copy"),
    RoleRow(
        "stepped parameter",
        rule="an optimizer steps it, and no module has it any more",
        category="parameter",
        strength=3,
        holder=HolderKind.PARAMETER,
        holder_words="an optimizer, as the parameter `{name}` that no module has any more",
    ),
    RoleRow(
        "reducer memory",
        rule=(
            "inferred: it was born while DistributedDataParallel made its reducer, and is alive after that"
        ),
        category="communication",
        strength=10,
        holder=HolderKind.COMMUNICATION,
        is_inferred=True,
    ),
    RoleRow(
        "selective checkpoint",
        rule="a selective checkpoint saves it, as its policy says",
        category="activation",
        strength=11,
        holder=HolderKind.CHECKPOINT,
        holder_words="a selective checkpoint, which saves it for when its region runs again",
    ),
)
ROLES: Final = tuple(row.name for row in ROLE_ROWS)
ROLE_OF: Final = {row.name: row for row in ROLE_ROWS}
