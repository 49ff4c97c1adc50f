"""The words for findings: the memory that is kept, the advice, and the peak after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.words.places import short_place

if TYPE_CHECKING:
    from collections.abc import Iterable

LAG_IN_CALL: Final = "compute what the call waits for first, and this right before the call"
"""The advice for values on the evaluation stack: arguments of a call that is not complete yet."""

OUTPUT_OF_OBJECT: Final = "set it to None before backward(), or store only what you need of it there"
"""The advice for a model's output in an attribute, which may also be the output of the previous iteration."""

LAST_EXCEPTION: Final = (
    "clear sys.last_value, sys.last_exc and sys.last_traceback once the error is reported, "
    "or keep the error's text"
)

DROP_ENTRIES: Final = "remove each entry after its last use"
"""The advice for a container that is filled on while some of its entries are not used any more."""

DROP_ANY: Final = "drop the reference after its last use"
LAST_USED: Final = "{advice} (last used at {site})"
AND: Final = " and "
FORWARD_AT: Final = "{advice} (the forward is at {site})"

EARLIER_ITERATIONS: Final = (
    "keeps {nbytes} of earlier iterations of the loop, never used again, while the next iteration runs"
)
EMPTY_EACH_TIME: Final = "drop what an iteration puts there at the end of the loop's body"
"""The headline and the advice for memory that several iterations left, not only the last one."""

ABOUT: Final = "about {nbytes}"
"""An estimated peak: the recording does not show what the changed program allocates instead."""
PER_ROUND: Final = "{headline} (+{rate} per iteration{added})"
"""A headline, and the bytes that each micro-batch, token or step of an environment adds."""
ADDED_AT: Final = ", added at {sites}"
OR: Final = " or "
"""The lines of the program that add to the container. Python does not record which of them ran."""
CHANGE: Final = "{headline}; {advice}"
CHANGE_SENTENCE: Final = "It {change}."
"""The change as a sentence about the holder, where the peak after it stands elsewhere."""
PEAK: Final = "the peak"
PEAK_SO_FAR: Final = "the peak so far"
"""For a recording that was cut off: the whole program may have a higher peak."""
ALONE: Final = "{change}; {peak} would fall to {alone}"
ALONE_AND_TOGETHER: Final = (
    "{change}; {peak} would fall to {alone}, and to {together} with all findings fixed"
)
TOGETHER: Final = "{change}; {peak} would fall to {together} with all findings fixed"
"""The ends of an advice: whether this change alone lowers the peak, and whether all changes lower it further."""

KNOWN: Final = "{change}; {known}"
"""The change for memory that a library keeps, and the public thread about it."""
FINDING: Final = "{holder}, {advice}"
HOLDER_AT: Final = "{holder} at {site}{remark}"
HOLDER_OF_VARIABLE: Final = "{holder} (`{variable}` is set at {site}){remark}"
"""For a part of a variable's value, which gets its tensors at another line."""
EDIT: Final = "change {site} to: {code}"
"""The line that the page shows as an edit."""
ADDED_LINE: Final = "add below {site}: {code}"
COUNTED_AS: Final = "the table of categories counts its bytes as {parts}"
"""For a finding whose bytes at the peak are of several categories."""
LINE_TO_CHANGE: Final = "the line to change, {site}: {code}"
"""For a line whose change is not known: it is shown as it is."""
ALSO_HELD: Final = "{holder} (also held by {others})"

GROWTH: Final = (
    "grows by {rate} per step since step {step}{made}{added}, by {nbytes} in all; {advice}; "
    "{peak} would fall to {alone}"
)
MADE_AT: Final = ", at {line}"
UNSEEN_GROWTH: Final = "memory that no recorded step made"

EARLIER_MODELS: Final = (
    "models, or parts of models, of {count} earlier iterations, with their optimizer state,"
)
GRADIENTS: Final = "`.grad` of the parameters"
GRAPH_OF_TRAINED_FORWARD: Final = (
    "keep only `.item()` or `.detach()` of the result; do not run the forward under torch.no_grad(), because it also "
    "trains the model"
)
NO_GRAD_FIRST: Final = (
    "run it under torch.no_grad() if no backward needs this forward, and else keep `.item()` or `.detach()` of its "
    "result"
)
"""The advice where no backward ran at all: `.detach()` frees a graph only when the whole of it has been made."""
STORED_WITH_GRAPH: Final = (
    "store a number such as `value.mean().item()`, or drop old values: `.detach()` alone would leave the stored "
    "tensors themselves, which have at least {nbytes}"
)
"""The advice if the graph saves the stored tensors too, as the graph of a ReLU saves its result. Samples found
these tensors in the container, and it may have more."""
GRAPH_WITHOUT_BACKWARD: Final = "the autograd graph of a forward without backward"
GRAPH_AFTER_BACKWARD: Final = "the autograd graph of a forward whose backward has run"
OPTIMIZER_STEP: Final = "the optimizer's step, which works on all parameters at once,"
LOOP_STEP: Final = "the optimizer's step,"
REGION: Final = "the checkpointed region"
CONVERTED_COPY: Final = "autograd, which saves a tensor and a converted copy of it,"
BUCKETS: Final = "DistributedDataParallel"
AUTOCAST_CACHE: Final = "autocast's cache"
FLOAT32_COPY: Final = "autograd, which saves what was converted for an op,"


def added_phrase(sites: Iterable[str]) -> str:
    """Return the lines that add to a container, as the end of a sentence; empty if there are none."""
    places = OR.join(map(short_place, sites))
    return ADDED_AT.format(sites=places) if places else ""


def holder_at(holder: str, site: str, remark: str, variable: str = "") -> str:
    """Return a holder with its site. The site stands before the remark, which says how memwatch knows the holder.

    Args:
        holder: the holder in words, with the remark.
        site: its site.
        remark: the end of `holder`.
        variable: the variable that the site sets, if the holder is a part of its value.
    """
    if not site:
        return holder
    template = HOLDER_OF_VARIABLE if variable else HOLDER_AT
    return template.format(holder=holder.removesuffix(remark), site=site, remark=remark, variable=variable)
