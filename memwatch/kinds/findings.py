"""The kinds of findings. Each kind has one row with its words, and with the flags that other code tests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class FindingRow:
    """The properties of one kind of finding.

    Attributes:
        text: the kind in tables and JSON.
        label: the kind in a few words, for the page.
        headline: the words after the holder's name. `{nbytes}` stands for the bytes.
        advice: the change for every finding of this kind; None if the change depends only on the holder.
        is_estimated: True if the peak after the change is only estimated. The changed program makes other temporaries,
            and the recording does not show how many.
        del_order: a number if one `del` of a variable is the change; None for other kinds. If several findings are
            about the same variable, the kind with the lowest number gives the advice. Its `del` comes first.
        is_freed_after_last_use: True if the changed program frees the bytes right after their last use.
        needs_known_end: True if the finding claims that nothing uses the memory later. If the recording was cut off,
            this is unknown for memory that was alive at the cut.
        is_mended_by_callers: True if the user can make the change even when the op runs in a library. For example, the
            user can call the library under `no_grad`, or choose another optimizer.
        is_of_graph: True if an autograd graph keeps the bytes.
        names_last_use: True if the advice names the line that uses the bytes last.
        optimizer_argument: the name and value of an optimizer's argument, if this argument is the change.
        is_way: True if `prof.ways` has the same change under the same name. The name alone does not decide this:
            the finding `float32` is about copies, and the way `float32` is about a model in float64.
    """

    text: str
    label: str
    headline: str
    advice: str | None = None
    is_estimated: bool = False
    del_order: int | None = None
    is_freed_after_last_use: bool = False
    needs_known_end: bool = False
    is_mended_by_callers: bool = False
    is_of_graph: bool = False
    names_last_use: bool = False
    optimizer_argument: tuple[str, str] | None = None
    is_way: bool = False


class FindingKind(str, Enum):
    """A reason why bytes at the peak could be absent. Each member equals its text, such as ``"drag"``."""

    _value_: str
    row: FindingRow

    def __new__(cls, row: FindingRow) -> FindingKind:  # noqa: D102
        kind = str.__new__(cls, row.text)
        kind._value_ = row.text
        kind.row = row
        return kind

    # a variable or an object keeps it after its last use
    DRAG = FindingRow(
        "drag",
        "kept after its last use",
        "keeps {nbytes} that are never used again",
        del_order=2,
        is_freed_after_last_use=True,
        needs_known_end=True,
        names_last_use=True,
    )
    # a variable keeps the result of one iteration until the next iteration has made its own
    ITERATION = FindingRow(
        "iteration",
        "kept from the last iteration",
        ("keeps {nbytes} of the last iteration of the loop, never used again, while the next one runs"),
        advice="drop it at the end of the loop's body (`del`), before the next iteration makes it anew",
        del_order=3,
        is_freed_after_last_use=True,
        needs_known_end=True,
    )
    # an object keeps it from one iteration into the next, and nothing reads it there
    STALE = FindingRow(
        "stale",
        "kept between iterations",
        "keeps {nbytes} from one iteration into the next, where nothing reads them",
        is_freed_after_last_use=True,
        needs_known_end=True,
    )
    # it is made long before its first use
    LAG = FindingRow(
        "lag",
        "made too early",
        "keeps {nbytes} made long before their first use",
        advice="make each one right before it is used (a generator in place of a list)",
    )
    # no op uses it
    VOID = FindingRow(
        "void",
        "never used",
        "keeps {nbytes} that no op ever uses",
        advice="do not make it, or drop it once NumPy or `.tolist()` has read it, which no op shows",
        needs_known_end=True,
    )
    # gradients that are still alive in the next forward
    GRADIENT = FindingRow(
        "gradient",
        "gradients kept in forward",
        "keeps {nbytes} in forward, though the optimizer is done with the gradients",
        advice="call zero_grad(set_to_none=True) right after the optimizer's step, and not later",
        is_freed_after_last_use=True,
        needs_known_end=True,
        is_mended_by_callers=True,
    )
    # saved for a backward that never runs
    GRAPH = FindingRow(
        "graph",
        "graph without backward",
        "keeps {nbytes} that forward saved for a backward, and no backward reads them",
        advice=(
            "keep `.item()` or `.detach()` of its result; if no backward needs this forward, run it under "
            "torch.no_grad()"
        ),
        is_freed_after_last_use=True,
        needs_known_end=True,
        is_mended_by_callers=True,
        is_of_graph=True,
    )
    # saved for a backward that has run
    RETAINED = FindingRow(
        "retained",
        "graph after backward",
        "keeps {nbytes} saved for a backward that has run already",
        advice=(
            "call the last backward() of the step without retain_graph=True, or drop the result that keeps the "
            "graph"
        ),
        is_freed_after_last_use=True,
        needs_known_end=True,
        is_mended_by_callers=True,
        is_of_graph=True,
    )
    # temporaries of a foreach step
    OPTIMIZER = FindingRow(
        "optimizer",
        "step for all parameters at once",
        "keeps {nbytes} at once, for all parameters together",
        advice="make the optimizer with foreach=False or fused=True",
        is_estimated=True,
        is_mended_by_callers=True,
        optimizer_argument=("foreach", "False"),
    )
    # temporaries that an optimizer's step makes for each parameter
    FUSED = FindingRow(
        "fused",
        "temporaries of the optimizer",
        "makes temporaries as large as the parameter that it updates, {nbytes} of them at the peak",
        advice=(
            "make the optimizer with fused=True, whose kernel needs no temporaries and rounds a little "
            "differently"
        ),
        is_mended_by_callers=True,
        is_way=True,
        optimizer_argument=("fused", "True"),
    )
    # gradients filled with zeros instead of freed
    SET_TO_NONE = FindingRow(
        "set_to_none",
        "gradients filled with zeros",
        "keeps {nbytes} of zeros until the next backward adds to them",
        advice="call zero_grad(set_to_none=True), right after the optimizer's step: it frees them",
        is_mended_by_callers=True,
    )
    # a model's result, kept through a backward that does not need it
    OUTPUT = FindingRow(
        "output",
        "output kept in backward",
        "keeps {nbytes} of a model's output alive during backward, which does not need it",
        advice="keep only the loss, or `del` the output before backward()",
        del_order=1,
        is_freed_after_last_use=True,
        needs_known_end=True,
        names_last_use=True,
    )
    # models that a hyperparameter search makes one after the other, and keeps
    MODELS = FindingRow(
        "models",
        "models of earlier iterations",
        "keep {nbytes} that no later op uses",
        advice=(
            "keep a score of each iteration, or `state_dict()` of the best, and drop its model and optimizer "
            "before the next iteration; if one optimizer trains all of them, remove the earlier ones from its "
            "`param_groups` and its `state`; `memwatch leaks` names what keeps them"
        ),
        is_freed_after_last_use=True,
        needs_known_end=True,
        is_mended_by_callers=True,
    )
    # memory that one op allocates and frees while it runs
    WORKSPACE = FindingRow(
        "workspace",
        "workspace of one op",
        "keeps {nbytes} inside one op",
        advice="give this op its input in smaller pieces, or choose another algorithm for it",
    )
    # backward recomputes a large checkpointed region all at once
    RECOMPUTE = FindingRow(
        "recompute",
        "recomputed too early",
        "computes {nbytes} again long before their own backward",
        advice="checkpoint each of the modules that it calls by itself",
    )
    # a saved tensor and a converted copy of it
    TWICE = FindingRow(
        "twice",
        "saved twice",
        "keeps {nbytes} of a tensor that autograd saves in another dtype or layout too",
        advice="convert once, before the first of the ops that save it",
    )
    # gradients that DDP keeps beside its buckets
    BUCKETS = FindingRow(
        "buckets",
        "gradients kept twice",
        "keeps {nbytes} of gradients twice, in `.grad` and in its buckets",
        advice="build it with gradient_as_bucket_view=True",
    )
    # converted weights that autocast's cache keeps
    AUTOCAST = FindingRow(
        "autocast",
        "copies of autocast",
        ("keeps {nbytes} of converted weights after their use, until the region of autocast ends"),
        advice=(
            "pass cache_enabled=False to torch.autocast where each weight is used once, and leave the region "
            "before backward()"
        ),
        is_freed_after_last_use=True,
        needs_known_end=True,
    )
    # a container that gets a new result in every iteration
    GROWTH = FindingRow(
        "growth",
        "grows with each iteration",
        "keeps {nbytes}, the results of all iterations of a loop, although an iteration uses only the newest",
        advice="keep only the newest, or a number of each (`.mean().item()`), or empty it",
        names_last_use=True,
    )
    # float32 copies that autograd saves
    FLOAT32 = FindingRow(
        "float32",
        "copies in float32",
        "keeps {nbytes} of float32 copies of tensors in a lower precision",
        advice=(
            "if the lower precision is exact enough there, run this op under torch.autocast(..., enabled=False)"
            " and without `.float()`: it then saves half as much"
        ),
    )

    # print as "drag", like the plain text, not as "FindingKind.DRAG"
    __str__ = str.__str__
    __repr__ = str.__repr__

    def __format__(self, format_spec: str) -> str:
        """Format the plain text, in the same way in every version of Python."""
        return format(self.value, format_spec)
