"""The words for findings: the memory that is kept, the advice, and the peak after it."""

from __future__ import annotations

from typing import Final

HEADLINES: Final[dict[str, str]] = {
    "drag": "keeps {nbytes} that are never used again",
    "iteration": (
        "keeps {nbytes} of the last pass through the loop, never used again, while the next pass runs"
    ),
    "stale": "keeps {nbytes} from one iteration into the next, where nothing reads them",
    "lag": "keeps {nbytes} made long before their first use",
    "void": "keeps {nbytes} that no op ever uses",
    "gradient": "keeps {nbytes} in forward, though the optimizer is done with them",
    "graph": "keeps {nbytes} saved for a backward that never runs",
    "retained": "keeps {nbytes} saved for a backward that has run already",
    "set_to_none": "keeps {nbytes} of zeros until the next backward adds to them",
    "output": "keeps {nbytes} that a model returned through backward, which does not need them",
    "optimizer": "keeps {nbytes} at once, for all parameters together",
    "fused": "makes {nbytes} of temporaries for one parameter",
    "workspace": "keeps {nbytes} inside one op",
    "recompute": "computes {nbytes} again long before their own backward",
    "twice": "keeps {nbytes} of a tensor that autograd saves in another dtype or layout too",
    "buckets": "keeps {nbytes} of gradients twice, in `.grad` and in its buckets",
    "autocast": "keeps {nbytes} of converted weights after their use, until the region of autocast ends",
    "growth": "keeps {nbytes} of all passes of a loop, though no later pass reads them",
    "float32": "keeps {nbytes} of float32 copies of tensors in a lower precision",
}
"""The words after the holder, by kind of finding."""

ADVICE: Final[dict[str, str]] = {
    "iteration": "drop it at the end of the loop's body (`del`), before the next pass makes it anew",
    "lag": "make each one right before it is used (a generator in place of a list)",
    "void": "do not make it, or drop it at once",
    "gradient": "call zero_grad(set_to_none=True) before forward, right after the optimizer's step",
    "graph": "run this forward under torch.no_grad(), or keep `.item()` or `.detach()` of its result",
    "retained": "call backward() without retain_graph=True, or drop the result that keeps the graph",
    "set_to_none": "call zero_grad(set_to_none=True), right after the optimizer's step: it frees them",
    "output": "keep the loss alone, or `del` the rest before backward()",
    "optimizer": "make the optimizer with foreach=False or fused=True",
    "fused": "make the optimizer with fused=True, whose kernel needs no temporaries and rounds a little differently",
    "workspace": "give this op its input in smaller pieces, or choose another algorithm for it",
    "recompute": "checkpoint each of the modules that it calls by itself",
    "twice": "convert once, before the first of the ops that save it",
    "buckets": "build it with gradient_as_bucket_view=True",
    "autocast": (
        "pass cache_enabled=False to torch.autocast where each weight is used once, and leave the region before "
        "backward()"
    ),
    "growth": "keep a number or a summary of each pass (`.item()`), or empty it",
    "float32": (
        "if the lower precision is exact enough there, run this op under torch.autocast(..., enabled=False) and "
        "without `.float()`: it then saves half as much"
    ),
}
"""The advice by kind of finding. For the other kinds it depends on the holder."""

LAG_IN_CALL: Final = "compute what the call waits for first, and this right before the call"
"""The advice for values on the evaluation stack: arguments of a call that is not complete yet."""

DROP: Final[dict[str, str]] = {
    "argument": "pass a list and clear it, or drop the caller's reference",
    "local": "`del` it after its last use",
    "attribute": "set it to None after its last use",
    "closure cell": "do not capture it, or pass what is needed as an argument",
    "generator": "`del` it in the generator before the yield",
    "exception": "keep the exception's text instead of the exception, and work after the `except` block",
    "global": "`del` or empty it after its last use",
    "cache": "call cache_clear(), or do not cache tensors",
    "hook": "let the hook keep less, or remove the hook",
    "autograd ctx": "do not keep it on ctx, or use ctx.save_for_backward()",
    "default argument": "do not make it a default argument",
    "evaluation stack": (
        "`del` cannot reach it: give the call a list that it empties, or take the items with next()"
    ),
}
"""How to cut a reference, by kind of holder."""

STALE: Final[dict[str, str]] = {
    "attribute": "set it to None once the iteration is done with it, or keep `.item()` or the shape",
    "global": "set it to None once the iteration is done with it, or keep `.item()` or the shape",
    "exception": DROP["exception"],
    "generator": DROP["generator"],
}
"""The advice for stale memory, by kind of holder."""
LAST_EXCEPTION: Final = (
    "clear sys.last_value, sys.last_exc and sys.last_traceback once the error is reported, "
    "or keep the error's text"
)

DROP_ANY: Final = "drop the reference after its last use"
LAST_USED: Final = "{advice} (last used at {site})"
FORWARD_AT: Final = "{advice} (the forward is at {site})"

ABOUT: Final = "about {nbytes}"
"""A peak that is estimated: what the mended program makes in its place was not recorded."""
PER_ROUND: Final = "{headline}, +{rate} per pass"
"""A headline, and what each micro-batch, token or step of an environment adds."""
CHANGE: Final = "{headline}; {advice}"
CHANGE_SENTENCE: Final = "It {change}."
"""The change as a sentence about the holder, where the peak after it stands elsewhere."""
ALONE: Final = "{change}; the peak would fall to {alone}"
ALONE_AND_TOGETHER: Final = (
    "{change}; the peak would fall to {alone}, and to {together} with all findings mended"
)
TOGETHER: Final = "{change}; the peak would fall to {together} with all findings mended"
"""A finding's advice, by whether the peak falls when it alone is mended, and further with all others."""

FINDING: Final = "{holder}, {advice}"
HOLDER_AT: Final = "{holder} at {site}{remark}"
ALSO_HELD: Final = "{holder} (also held by {others})"

GROWTH: Final = (
    "grows by {rate} per step since step {step}{made}, by {nbytes} in all; {advice}; "
    "the peak would fall to {alone}"
)
MADE_AT: Final = ", at {line}"
UNSEEN_GROWTH: Final = "memory that no recorded step made"

GRADIENTS: Final = "`.grad` of the parameters"
GRAPH_OF_TRAINED_FORWARD: Final = (
    "keep `.item()` or `.detach()` of its result, and leave the forward as it is: it also trains the model"
)
GRAPH_WITHOUT_BACKWARD: Final = "the autograd graph of a forward without backward"
GRAPH_AFTER_BACKWARD: Final = "the autograd graph of a forward whose backward has run"
OPTIMIZER_STEP: Final = "the optimizer's step, which works on all parameters at once,"
LOOP_STEP: Final = "the optimizer's step,"
REGION: Final = "the checkpointed region"
CONVERTED_COPY: Final = "autograd, which saves a tensor and a converted copy of it,"
BUCKETS: Final = "DistributedDataParallel"
AUTOCAST_CACHE: Final = "autocast's cache"
FLOAT32_COPY: Final = "autograd, which saves what was converted for an op,"


def holder_at(holder: str, site: str, remark: str) -> str:
    """Return a holder with its site, which stands before what is remarked of it: how it is known."""
    if not site:
        return holder
    return HOLDER_AT.format(holder=holder.removesuffix(remark), site=site, remark=remark)
