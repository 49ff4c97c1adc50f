"""The words for the changes that would lower the peak. memwatch simulates them on one recording."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CHECKPOINT: Final = "checkpoint {count} modules: {names}"
CHECKPOINT_ONE: Final = "checkpoint the module {names}"
FOREACH: Final = "let the optimizer update one parameter at a time (foreach=False)"
FUSED: Final = "let the optimizer use its fused kernel (fused=True), which makes no temporaries"
STEP_IN_BACKWARD: Final = "update each parameter in the backward and free its gradient at once"
OTHER_OPTIMIZERS: Final = {
    "sgd": "train with SGD and momentum, which keeps one tensor for each parameter",
    "adafactor": "train with Adafactor, which keeps a row and a column for each matrix",
}
SPARSE_GRADIENTS: Final = (
    "give the embeddings {names} sparse gradients, which have only the rows that a batch reads"
)
SPARSE_ADAM: Final = SPARSE_GRADIENTS + ", and train these embeddings with SparseAdam"
LOSS_IN_PARTS: Final = "compute the logits of `{name}` and the cross entropy part by part"
OFFLOAD: Final = (
    "move to the host the tensors that the forward of {names} saves for backward (modules: {count})"
)
MICRO_BATCHES: Final = "split the batch in {parts} parts and add up their gradients"
WITHOUT_GRAPH: Final = "run {names} without a graph, because no backward needs it"
UNREAD_GRADIENTS: Final = (
    "compute no gradients for {names}: no optimizer has these parameters, and nobody reads the gradients"
)
IN_PLACE: Final = "let activation modules write over their input: {names}"
AUTOCAST: Final = "run {names} under autocast, in bfloat16"
FLOAT32: Final = "let {names} compute in float32, not in float64"
BOTH: Final = "{first}, and {other}"

FIRST_AND_LAST: Final = "`{first}`, `{second}` ... `{last}`"
"""The names of many modules: the first two and the last."""
_MOST_NAMES: Final = 3
"""A text has the names of all modules if there are at most this many. A guess."""

# Facts and decisions for you, before you make a change
ROUNDING: Final = "a fused step rounds a little differently"
OTHER_TRAINING: Final = (
    "another optimizer trains differently: choose its learning rate, and give schedulers the new optimizer"
)
NO_WHOLE_GRADIENT: Final = (
    "it does not work with gradient accumulation, clipping by the norm of all gradients, or GradScaler"
)
ROWS_ALONE: Final = "it does not work with weight decay, GradScaler, or clipping by the norm of all gradients"
ROWS_BY_SPARSE_ADAM: Final = (
    "another optimizer trains differently: SparseAdam changes only the rows that a batch reads, and does not decay the "
    "weights; it does not work with GradScaler, or clipping by the norm of all gradients"
)
NO_LOGITS: Final = "the loss rounds a little differently"
INDEPENDENT_SAMPLES: Final = "the loss must be a mean over samples that do not depend on each other"
BATCH_STATISTICS: Final = "; batch norm computes its statistics for each part alone"
OTHER_DROPOUT: Final = "; dropout draws other random numbers"
EACH_PART: Final = "; the forward of each part changes {names}"
COUNTED_TARGETS: Final = (
    "; if some targets equal ignore_index, pass the targets last, as the loss gets them, "
    "and your ignore_index"
)
NO_GRADIENTS: Final = (
    "the results then have no gradients; torch.inference_mode works too if autograd reads none of them"
)
INPUT_IS_GONE: Final = "code that keeps the input of an activation finds the result in it"
LESS_PRECISION: Final = (
    "bfloat16 has 2 to 3 significant digits, and a loss outside the model is computed from such results"
)
SINGLE_PRECISION: Final = (
    "float32 has 7 significant digits, float64 has 16; the targets of a loss must be float32 too"
)
HOST_MEMORY: Final = "it takes pinned memory of the host, and copies take time"

HEADING: Final = "What would lower the peak"
HEADING_BESIDE_FINDINGS: Final = "What else would lower the peak"
HEADING_SO_FAR: Final = "What would lower the peak so far"
HEADING_SO_FAR_BESIDE_FINDINGS: Final = "What else would lower the peak so far"
"""The headings for a recording that was cut off: the rest of the program may have a higher peak."""
HEADING_ALONE: Final = "{heading}, each change alone"
HEADING_ALONE_IN_ORDER: Final = "{heading}, each change alone, lowest peak first"
"""The headings in a terminal, where lines are few. The page has sentences instead."""
AFTER_GROWTH: Final = (
    "Fix the growth first: it would soon use up what other changes save. `memwatch summary --json` lists the other "
    "changes (in Python: prof.ways)"
)
BESIDE_GROWTH: Final = (
    "Fix the growth above first: it would soon use up what these changes save. Their peaks hold for this recording "
    "only."
)
BASES: Final = {
    "simulated": "Simulated: from the recorded allocations and frees.",
    "estimated": "Estimated: the recording does not show all allocations of the changed program.",
}
"""The meaning of the word after a predicted peak, by the basis of a change."""
NO_WAY: Final = "memwatch knows no change that would lower the peak by {share} or more"
BY_HAND: Final = (
    "{no_way}. But autograd keeps {saved} of it for the backward: put parts of your forward into functions, and call "
    "them through torch.utils.checkpoint.checkpoint"
)
"""For a forward that memwatch cannot change from outside, such as a forward without repeated modules."""
ORDER: Final = (
    "The change with the lowest peak comes first. If a change needs no decision from you, one of the first three is "
    "such a change. Other optimizers come last, because they train differently."
)
EACH_ALONE: Final = "Each peak is for one change alone: the savings of several changes do not add up."
EACH_ALONE_BESIDE_FINDINGS: Final = (
    "Each peak is for one change alone: its saving does not add up with those of other changes or findings."
)
ALONE_BESIDE_FINDINGS: Final = (
    "The peak is for this change alone: its saving does not add up with those of the findings."
)
TIME: Final = "ops take {ratio:.2f} x the time"
TIME_UNKNOWN: Final = "speed not known"
FALL: Final = "to {peak} ({share} less)"
DECISION: Final = "your decision: {decision}"
"""A fact that the user has to accept, in the row of a change."""
SHARE_LESS: Final = "{share} less"
LINES_OF_FIRST: Final = "Code for the change to {peak}:"
LINES_OF: Final = "Code for the change to {peak}, the first that asks for no decision from you:"
# Comments above the code of a change
PLACE: Final = "# before the training loop"
PLACE_AT_TOP: Final = "# at the top of the file that computes the loss"
PLACE_IN: Final = "# in {function}, before the training loop"
PLACE_OF_OPTIMIZER: Final = "# in {function}, after it makes your optimizer"
MADE_IN: Final = (
    "# optimizer stands for your optimizer: put the lines that use it into {function}, "
    "after it makes your optimizer"
)
STANDS_FOR: Final = "# {word} stands for your {word}"
LINES_ELSEWHERE: Final = "The code has {count:,} lines: memwatch report shows it (in Python: prof.ways)"
"""In place of the code, where it is much longer than a screen."""
MORE_LINES: Final = "Code for the others: memwatch report shows it (in Python: prof.ways)"
MORE_WAYS: Final = "{count:,} other changes: memwatch report shows the code of each (in Python: prof.ways)"
ONE_MORE_WAY: Final = "1 other change: memwatch report shows its code (in Python: prof.ways)"


COMPILED: Final = (
    "no checkpoint is offered, because memwatch cannot see the modules inside compiled code; "
    "a run without torch.compile would show checkpoints"
)
CHANGED_ARGUMENTS: Final = (
    "no checkpoint is offered for {modules} ({classes}): {each} puts new tensors into the {objects} that it is "
    "called with, and its forward would do so again in the backward. If the training does not need this object, leave "
    "it out (a cache of transformers: use_cache=False)"
)


def changed_arguments(modules: list[str], objects: list[str]) -> str:
    """Return why some modules cannot be checkpointed.

    Args:
        modules: the class of each module.
        objects: the classes of the objects into which the modules put tensors.
    """
    classes, kinds = (", ".join(sorted(set(names))) for names in (modules, objects))
    return CHANGED_ARGUMENTS.format(classes=classes, objects=kinds, **_by_number(modules))


STATE_BETWEEN_PARTS: Final = (
    "no split of the batch is offered, because the forward of the model changes {names} and reads it too: each part of "
    "the batch would read what the part before wrote"
)
OP_AT: Final = "`{op}` at {line}"
OP: Final = "`{op}`"
PREPARED: Final = (
    "; {op} reads the whole batch: compute its result before the split, and give each part the same"
)
ITEM: Final = "item()"
NUMBER_READ: Final = "; {op} reads a number of the whole batch: the loss must not depend on this number"
CALL: Final = "{method}()"
VALUES_READ: Final = (
    "; {read} reads values in Python, where memwatch does not follow them: the loss must not depend on a number of the "
    "whole batch among them"
)
OTHER_TERMS: Final = "; the loss has other terms too: with them, no target may be ignored"
SPLIT_REFUSED: Final = "no split of the batch is offered, because {reason}"
_SPLIT_OBSTACLES: Final = {
    "mixed": "{op} combines each sample with the others",
    "not linear": "the loss depends on a value over the batch other than its own mean or sum: {op} reads it",
    "sum": "the loss is a sum over the batch that nothing divides, before {op}",
    "picked": "{op} reduces values that a mask or an index picks, and their number belongs to the whole batch",
    "counted": "{op} reads a value that was computed from the data of the whole batch, such as a mean or a count",
    "weighed": "{op} weighs the classes, and divides by the weights of the whole batch",
    "carried": "the forward reads a result of the forward before: {op}",
    "rollout": "a later call of the model gets only results of the model, as in a rollout: {op}. You can divide the "
    "results of the rollout by hand, after it",
    "retained": "several backwards run through one forward",
    "created": "a backward builds a graph of its own (`create_graph=True`)",
    "optimizers": "the code works for one optimizer, and the program has several",
    "cut off": "the recording ended before it showed whether the program has another optimizer",
    "processes": "several processes train together",
    "inputs": "the inputs of the model differ in their first dimension",
    "later inputs": "a later call of the model has an input whose first dimension is not a multiple of the batch",
    "library": "a library calls the backward: {op}. If the loss is a mean over samples that do not depend on each "
    "other, smaller batches have the same effect: let the library accumulate their gradients",
}

STEP_OBSTACLES: Final = {
    "processes": "several processes exchange the gradients before the step",
    "graph": "a backward builds a graph of its own (`create_graph=True`)",
    "already": "the program steps in the backward already",
    "no step": "no step of an optimizer was recorded",
    "read": "the program uses the gradients outside the backward and the step, such as to clip them, to undo the scale "
    "of the loss, or to set them to zero",
    "accumulated": "a backward adds to the gradients of an earlier backward",
    "optimizers": "the code works for one optimizer that updates each parameter by its own gradient alone",
    "set": "the program sets gradients itself",
    "not stepped": "a backward makes gradients that no step uses",
}
"""Why a program cannot step in the backward."""


def split_refused(obstacle: str, op: str) -> str:
    """Return why a batch is not split, given the obstacle and the text for the op that shows it."""
    return SPLIT_REFUSED.format(reason=_SPLIT_OBSTACLES[obstacle].format(op=op))


GROWN_LISTS: Final = (
    "no checkpoint is offered for {modules} ({classes}): {each} adds new tensors to its own list ({lists}), and "
    "its forward would add them again in the backward. If it returns these tensors instead, it can be checkpointed"
)


def grown_lists(modules: list[str], lists: list[str]) -> str:
    """Return why some modules cannot be checkpointed.

    Args:
        modules: the class of each module.
        lists: the attributes with the lists that grow.
    """
    classes = ", ".join(sorted(set(modules)))
    names = ", ".join(sorted({f"`{name}`" for name in lists}))
    return GROWN_LISTS.format(classes=classes, lists=names, **_by_number(modules))


CHANGED_ATTRIBUTES: Final = (
    "no checkpoint is offered for {modules} ({classes}): {each} changes its own attribute ({names}), and its "
    "forward would run again in the backward with the new value, and change it again. Change the attribute outside "
    "forward, or {instead}, and {they} can be checkpointed"
)
KEEP_IN_BUFFER: Final = "keep it in a buffer and write the buffer in place"
WRITE_IN_PLACE: Final = "write this buffer in place"


def state_between_parts(names: Sequence[str]) -> str:
    """Return why a batch is not split, given the names of the parameters and buffers that a forward changes."""
    return STATE_BETWEEN_PARTS.format(names=names_as_text(names))


def names_as_text(names: Sequence[str]) -> str:
    """Return some names for a text: all of them, or the first two and the last.

    The second name shows the steps, as in "`0`, `2` ... `10`". The names have backticks, because a name such as `0`
    would read as a count.
    """
    if len(names) <= _MOST_NAMES:
        return ", ".join(f"`{name}`" for name in names)
    return FIRST_AND_LAST.format(first=names[0], second=names[1], last=names[-1])


def changed_attributes(modules: list[str], attributes: list[str], *, are_buffers: bool = False) -> str:
    """Return why some modules cannot be checkpointed.

    Args:
        modules: the class of each module.
        attributes: the attributes that the modules change.
        are_buffers: whether all these attributes are buffers, which the modules replace.
    """
    classes = ", ".join(sorted(set(modules)))
    names = ", ".join(sorted({f"`{name}`" for name in attributes}))
    instead = WRITE_IN_PLACE if are_buffers else KEEP_IN_BUFFER
    return CHANGED_ATTRIBUTES.format(classes=classes, names=names, instead=instead, **_by_number(modules))


def _by_number(modules: list[str]) -> dict[str, str]:
    """Return the words of a sentence about one module or several, given the class of each."""
    if len(modules) == 1:
        return {"modules": "1 module", "each": "it", "they": "it"}
    return {"modules": f"{len(modules)} modules", "each": "each", "they": "they"}


def ways_heading(*, is_beside_findings: bool, is_cut_off: bool) -> str:
    """Return the heading of the changes.

    Args:
        is_beside_findings: whether findings are listed too, which are changes as well.
        is_cut_off: whether the recording has only a part of the program.
    """
    if is_cut_off:
        return HEADING_SO_FAR_BESIDE_FINDINGS if is_beside_findings else HEADING_SO_FAR
    return HEADING_BESIDE_FINDINGS if is_beside_findings else HEADING


def heading_in_terminal(heading: str, peaks_bytes: Sequence[int], *, is_beside_findings: bool) -> str:
    """Return the heading of changes with their order, and that their savings do not add up.

    Args:
        heading: the heading alone.
        peaks_bytes: the peaks of the changes below it, in their order.
        is_beside_findings: whether findings are listed above them.
    """
    if len(peaks_bytes) < 2:
        return HEADING_ALONE.format(heading=heading) if is_beside_findings else heading
    is_in_order = list(peaks_bytes) == sorted(peaks_bytes)
    return (HEADING_ALONE_IN_ORDER if is_in_order else HEADING_ALONE).format(heading=heading)


def reading_of_ways(count: int, *, is_beside_findings: bool) -> str:
    """Return the order of some changes, and whether their savings add up.

    Args:
        count: the number of changes.
        is_beside_findings: whether findings are listed above them.
    """
    if count < 2:
        return ALONE_BESIDE_FINDINGS if is_beside_findings else ""
    return f"{ORDER} {EACH_ALONE_BESIDE_FINDINGS if is_beside_findings else EACH_ALONE}"


def bases_text(bases: Iterable[str]) -> str:
    """Return the meaning of each word in `bases`, in the order of `BASES`."""
    found = set(bases)
    return " ".join(text for basis, text in BASES.items() if basis in found)


def code_heading(number: int, peak: str) -> str:
    """Return the line above the code of a change, given its place in the list, from 0, and the peak with it."""
    return (LINES_OF_FIRST if number == 0 else LINES_OF).format(peak=peak)


def time_text(ratio: float) -> str:
    """Return the text for the duration of the ops with a change, relative to the duration without; NaN is unknown."""
    return TIME_UNKNOWN if math.isnan(ratio) else TIME.format(ratio=ratio)
