"""Search for ways: changes of the program, each with the peak that it would have. The lowest peak comes first.

memwatch simulates each change on one recording. It prints the code of the change, which this module calls the lines.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from memwatch.analysis.findings.avoidable import ForeachSteps, loop_temporaries
from memwatch.analysis.findings.finding import LEAST_RATIO
from memwatch.analysis.ways.autocast import autocast
from memwatch.analysis.ways.checkpointing import (
    CheckpointedCall,
    Checkpointing,
    SavingModules,
    changed_attributes,
)
from memwatch.analysis.ways.independence import state_of_forward
from memwatch.analysis.ways.loss_in_parts import loss_in_parts
from memwatch.analysis.ways.micro_batches import Split, micro_batches
from memwatch.analysis.ways.modules import in_place, in_single_precision, offloaded, without_graph
from memwatch.analysis.ways.other_optimizer import has_one_optimizer, other_optimizers
from memwatch.analysis.ways.sparse_gradients import sparse_gradients
from memwatch.analysis.ways.step_in_backward import StepInBackward, StepObstacle, step_in_backward
from memwatch.analysis.ways.timeline import ChangedBytes, Timeline
from memwatch.analysis.ways.unread_gradients import unread_gradients
from memwatch.capture.schema import NONE, OPTIMIZER
from memwatch.device_names import is_host
from memwatch.kinds.roles import ROLES
from memwatch.way_lines import LINES, joined, of_blocks
from memwatch.words import ways as words
from memwatch.words.places import FORMER_MODULE, short_place
from memwatch.words.storages import short_op
from memwatch.words.ways import names_as_text as _as_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors

Basis = Literal["simulated", "estimated"]


@dataclass(frozen=True)
class Way:
    """A change of the program, with its peak.

    Attributes:
        kind: the kind of change, such as `checkpoint` or `foreach`; two kinds are joined by ` + `.
        text: the change in a few words.
        peak_bytes: the most live bytes with it.
        time_ratio: duration of the ops with it, relative to that without; NaN if unknown.
        basis: `simulated` if the recording shows all allocations and frees of the changed program, `estimated` if the
            changed program makes other allocations, which the recording does not show.
        decision: the decision that you have to make; "" if the results stay the same in every bit.
        lines: the lines of Python that make the change.
        modules: the names of the modules that it changes in their model, joined by `, `; a model itself, and modules
            of several models, with the program's expression for the model.
        is_of_first_model: whether it changes nothing outside the first called model that has an optimizer. `fit`
            changes no other model. True if the recording has no step.
    """

    kind: str
    text: str
    peak_bytes: int
    time_ratio: float
    basis: Basis
    decision: str
    lines: str
    modules: str
    is_of_first_model: bool


_GIVEN_UP_RATIO: Final = 0.01
"""A set of blocks becomes smaller as long as it keeps all but this share of its effect on the peak. A guess."""
_WRAPPERS: Final = ("DistributedDataParallel", "DataParallel")
"""Classes of torch that hold the model as `module`; its modules are named without this part."""
_FORMER: Final = FORMER_MODULE.format(name="")
"""A part of the name of a module that the program has replaced."""
_DROPOUT: Final = ("native_dropout", "bernoulli_")
"""Parts of the names of the ops that dropout calls (torch 2.13)."""
_GRADIENT: Final = ROLES.index("gradient")
_MODEL, _OPTIMIZER = "model", "optimizer"
"""What the lines call a model or an optimizer that no variable of the program leads to. A comment above the lines says
that you have to replace these words."""


class _Change(NamedTuple):
    """A change of the program other than a checkpoint, with its effect on the live bytes."""

    kind: str
    text: str
    bytes: ChangedBytes
    time_ratio: float
    basis: Basis
    decision: str
    lines: str
    modules: tuple[int, ...] = ()
    is_alone: bool = False  # not simulated together with checkpoints


class _Checkpoint(NamedTuple):
    """A checkpoint around each of some modules, with its effect on their calls. The results stay the same."""

    modules: tuple[int, ...]
    kind: str
    text: str
    calls: list[CheckpointedCall]
    lines: str


class Ways(NamedTuple):
    """The changes that would lower the peak, the lowest peak first, and why two changes are not among them.

    `split_left_out` is "" if nothing forbids the split of the batch. `step_left_out` is "" if nothing forbids the step
    in the backward. It then may not lower the peak.
    """

    ways: list[Way]
    split_left_out: str
    step_left_out: str


def find_ways(facts: Facts, saved: SavedTensors) -> Ways:
    """Return the changes that would lower the peak. Without recorded uses there are none."""
    if facts.capture.lacks("uses") or not facts.capture.rows("ops"):
        return Ways([], "", "")
    search = _Search(facts, saved)
    return Ways(search.ways(), search.split_left_out, search.step_left_out)


class _Search:
    """Simulates the ways of one recording.

    Attributes:
        split_left_out: why the batch is not split although this would lower the peak by enough; "" if nothing
            forbids it.
        step_left_out: why no step in the backward is simulated; "" if one is.
    """

    def __init__(self, facts: Facts, saved: SavedTensors) -> None:
        self._facts, self._saved = facts, saved
        self.split_left_out = self.step_left_out = ""
        self._timeline = Timeline(facts)
        self._checkpointing = Checkpointing(facts, saved, self._timeline)
        self._saving = SavingModules(facts, saved, self._checkpointing.unrepeatable())
        self._tree = facts.places.module_tree
        self._least_bytes = max(int(facts.curve.peak_increase_bytes * LEAST_RATIO), 1)

    def ways(self) -> list[Way]:
        """Return the ways that lower the peak by enough.

        A pair is a checkpoint together with another change. Its peak must also be lower by enough than the peak of each
        single change that may be part of a pair.
        """
        blocks = self._blocks()
        # a checkpoint around every second block saves less memory, and computes only half of the blocks again
        sets = [blocks, blocks[::2]] if len(blocks) > 1 else [blocks]
        checkpoints = [self._checkpoint(modules) for modules in sets if modules]
        changes = [
            *self._optimizer_changes(),
            *self._sparse_gradients(),
            *self._loss_in_parts(),
            *self._offload(blocks),
            *self._micro_batches(),
            *self._without_graph(),
            *self._unread_gradients(),
            *self._in_place(),
            *self._in_single_precision(),
            *self._autocast(),
        ]
        most_bytes = self._facts.curve.peak_bytes - self._least_bytes
        combinable = [change for change in changes if not change.is_alone]
        parts_of_pairs = [self._way(checkpoint, None) for checkpoint in checkpoints]
        parts_of_pairs += [self._way(None, change) for change in combinable]
        single = [
            *parts_of_pairs,
            *(self._way(None, change) for change in self._without_needless_parts(changes) if change.is_alone),
        ]
        found = [way for way in single if way.peak_bytes <= most_bytes]
        lowest = min((way.peak_bytes for way in parts_of_pairs), default=most_bytes)
        pairs = [
            self._way(checkpoint, change)
            for checkpoint in checkpoints
            for change in combinable
            if not self._are_around(checkpoint.modules, change.modules)
        ]
        found += [way for way in pairs if way.peak_bytes <= min(most_bytes, lowest - self._least_bytes)]
        return sorted(found, key=lambda way: way.peak_bytes)

    def _way(self, checkpoint: _Checkpoint | None, change: _Change | None) -> Way:
        calls = [] if checkpoint is None else checkpoint.calls
        again_ratio = sum(call.again_ns for call in calls) / self._checkpointing.ops_ns
        is_estimate = bool(self._facts.capture.meta.get("estimate"))
        parts = [part for part in (checkpoint, change) if part is not None]
        texts = [part.text for part in parts]
        lines = joined(part.lines for part in parts)
        return Way(
            kind=" + ".join(part.kind for part in parts),
            text=texts[0] if len(texts) == 1 else words.BOTH.format(first=texts[0], other=texts[1]),
            peak_bytes=self._checkpointing.peak_bytes(calls, None if change is None else change.bytes),
            # an estimate ran its ops on fake tensors, so their durations mean nothing
            time_ratio=math.nan
            if is_estimate
            else again_ratio + (1 if change is None else change.time_ratio),
            basis="simulated" if change is None else change.basis,
            decision="" if change is None else change.decision,
            lines=self._comment(
                lines,
                is_function=any(part.kind == "micro_batches" for part in parts),
                changes_modules=any(part.modules for part in parts),
            )
            + lines,
            modules=self._names_in_models([module for part in parts for module in part.modules]),
            is_of_first_model=all(
                (part.modules and self._are_in_first_model(part.modules))
                or (not part.modules and self._has_one_stepped_model)
                for part in parts
            ),
        )

    def _are_in_first_model(self, modules: Iterable[int]) -> bool:
        """Return True if some modules are the first model with an optimizer, or are in it. True without a step."""
        first = self._first_model
        return first == NONE or all(first in self._tree.with_ancestors(module) for module in modules)

    @cached_property
    def _first_model(self) -> int:
        """The first outermost called module with a parameter that an optimizer updates; -1 if no step was recorded."""
        calls = self._facts.capture.tables["calls"]
        models = {
            module for stepped in self._stepped_modules for module in self._tree.with_ancestors(stepped)
        }
        is_of_model = (calls["depth"] == 0) & np.isin(calls["module"], list(models))
        # `fit` skips a call without a graph
        saved_op = np.sort(self._saved.saved_op)
        has_graph = np.searchsorted(saved_op, calls["start_op"]) < np.searchsorted(
            saved_op, calls["end_op"], side="right"
        )
        rows = np.flatnonzero(is_of_model & has_graph)
        return int(calls["module"][rows[np.argmin(calls["start_op"][rows])]]) if len(rows) else NONE

    @property
    def _has_one_stepped_model(self) -> bool:
        """True if all parameters that optimizers update are in the first model."""
        return self._are_in_first_model(self._stepped_modules)

    @cached_property
    def _stepped_modules(self) -> list[int]:
        """The modules whose parameters' gradients a step reads."""
        roles, uses, ops = (self._facts.capture.tables[name] for name in ("roles", "uses", "ops"))
        read = uses["storage"][ops["phase"][uses["op"]] == OPTIMIZER]
        is_read = (roles["role"] == _GRADIENT) & np.isin(roles["storage"], read) & (roles["module"] != NONE)
        modules: list[int] = np.unique(roles["module"][is_read]).tolist()
        return modules

    def _blocks(self) -> list[int]:
        """Return the set of blocks that lowers the peak most, without the blocks that hardly contribute to it.

        The repeated blocks are tried first, because the lines for them are the shortest. A later set replaces an
        earlier one only if its peak is lower by enough.
        """
        best: list[int] = []
        lowest = self._facts.curve.peak_bytes
        for blocks in self._saving.blocks():
            modules = [
                module
                for module in blocks
                if not self._have_former([module]) and self._checkpointing.calls_of(module)
            ]
            peak_bytes = self._peak_of(modules)
            if peak_bytes < lowest - (self._least_bytes if best else 0):
                best, lowest = modules, peak_bytes
        return self._without_needless(best, lowest)

    def _without_needless(self, modules: list[int], lowest: int) -> list[int]:
        """Return the modules without those that hardly lower the peak. Try to drop the last one that runs first.

        All dropped modules together may raise the peak by `_GIVEN_UP_RATIO` of what the checkpoints spare.

        Args:
            modules: the modules, in the order of their calls.
            lowest: the peak if each of them is checkpointed (bytes).
        """
        allowed = lowest + int((self._facts.curve.peak_bytes - lowest) * _GIVEN_UP_RATIO)
        kept = list(modules)
        for module in reversed(modules):
            fewer = [each for each in kept if each != module]
            if self._peak_of(fewer) <= allowed:
                kept = fewer
        return kept

    def _peak_of(self, modules: list[int]) -> int:
        return self._checkpointing.peak_bytes(
            [call for module in modules for call in self._checkpointing.calls_of(module)]
        )

    def _checkpoint(self, modules: list[int]) -> _Checkpoint:
        names = list(map(self._shown_name, modules))
        template = words.CHECKPOINT if len(names) > 1 else words.CHECKPOINT_ONE
        keeps = any(self._checkpointing.writes_buffers(module) for module in modules)
        return _Checkpoint(
            modules=tuple(modules),
            kind="checkpoint",
            text=template.format(count=len(names), names=_as_text(names)),
            calls=[call for module in modules for call in self._checkpointing.calls_of(module)],
            lines="\n".join(self._lines("checkpoint, buffers" if keeps else "checkpoint", modules)),
        )

    def _lines(self, key: str, modules: list[int], optimizer: str = "") -> Iterator[str]:
        """Yield the lines for the modules of each model.

        If one variable referred to several models in turn, their lines are equal. Yield them once.
        """
        by_root: dict[int, list[str]] = {}
        for module in modules:
            root, name = self._place(module)
            by_root.setdefault(root, []).append(name)
        device = self._facts.device.partition(":")[0]
        lines = (
            of_blocks(
                key, self._model_name(root), names, _as_expression(names), device=device, optimizer=optimizer
            )
            for root, names in by_root.items()
        )
        yield from dict.fromkeys(lines)

    def _optimizer_lines(self, kind: str) -> str:
        """Return the lines of a kind for each optimizer of the program."""
        key = f"{kind}, later" if self._are_made_later else kind
        model = self._model_name(self._stepped_models[0]) if self._stepped_models else _MODEL
        return joined([LINES[key].format(optimizer=name, model=model) for name in self._optimizer_names()])

    def _optimizer_names(self) -> list[str]:
        """Return the program's expressions for its optimizers, and `optimizer` for one without an expression."""
        later = self._expressions.get("later_optimizers", []) if self._are_made_later else []
        names = [
            name or other or _OPTIMIZER
            for name, other in zip_longest(self._noted_optimizers(), later, fillvalue="")
        ]
        return list(dict.fromkeys(names)) or [_OPTIMIZER]

    @property
    def _expressions(self) -> dict[str, Any]:
        """The program's expressions for its models and optimizers, as `memwatch.capture.check` describes them."""
        expressions: dict[str, Any] = self._facts.capture.meta.get("expressions", {})
        return expressions

    @property
    def _are_made_later(self) -> bool:
        """True if a library makes an optimizer when the training begins. Code before the training cannot name it."""
        return any(self._expressions.get("made_by_library", []))

    @property
    def _stepped_models(self) -> list[int]:
        """The models with parameters that optimizers update."""
        return list(dict.fromkeys(self._place(module)[0] for module in self._stepped_modules))

    def _noted_optimizers(self) -> list[str]:
        """Return an expression for each recorded optimizer; "" for an optimizer that no variable leads to.

        Whenever an optimizer steps for the first time, the recorder notes all living optimizers that have stepped.
        """
        noted: list[str] = self._expressions.get("optimizers", [])
        return noted

    def _optimizer_changes(self) -> list[_Change]:
        """Return the changes of the optimizer: its settings, another optimizer, and a step in the backward."""
        found = []
        is_only_one = len(self._noted_optimizers()) <= 1
        in_lists, in_loops = ForeachSteps(self._facts), loop_temporaries(self._facts)
        for kind, text, decision, spared in (
            ("foreach", words.FOREACH, "", in_lists.spared_bytes() if in_lists.temporaries else None),
            (
                "fused",
                words.FUSED,
                words.ROUNDING,
                self._timeline.bytes_of(np.array(in_loops)) if in_loops else None,
            ),
        ):
            if spared is not None:
                lines = self._optimizer_lines(kind)
                found.append(
                    _Change(kind, text, ChangedBytes(spared), math.nan, "estimated", decision, lines)
                )
        found += [
            _Change(
                kind=other.name,
                text=words.OTHER_OPTIMIZERS[other.name],
                bytes=other.bytes,
                time_ratio=math.nan,
                basis="estimated",
                decision=words.OTHER_TRAINING,
                lines=self._optimizer_lines(other.name),
                is_alone=True,
            )
            for other in (other_optimizers(self._facts, self._timeline) if is_only_one else [])
            # if a library makes the optimizer, the lines get the parameters from the model
            if not self._are_made_later or len(self._stepped_models) == 1
        ]
        if self._are_made_later:
            self.step_left_out = ""  # `fit` knows this reason itself
            return found  # the hooks of a step in the backward must be there before the first backward
        step = step_in_backward(self._facts, self._timeline)
        is_only_one = is_only_one and has_one_optimizer(self._facts)
        # of two optimizers of one model, the first would take the gradients away from the second
        if not is_only_one and isinstance(step, StepInBackward):
            step = StepObstacle.OPTIMIZERS
        if isinstance(step, StepObstacle):
            self.step_left_out = words.STEP_OBSTACLES[step.value]
        else:
            found.append(
                _Change(
                    kind="step_in_backward",
                    text=words.STEP_IN_BACKWARD,
                    bytes=step.bytes,
                    time_ratio=1.0 if step.is_exact else math.nan,
                    basis="simulated" if step.is_exact else "estimated",
                    decision=words.NO_WHOLE_GRADIENT,
                    lines=self._optimizer_lines("step_in_backward"),
                )
            )
            fused = step_in_backward(self._facts, self._timeline, is_fused=True)
            if isinstance(fused, StepInBackward) and any(change.kind == "fused" for change in found):
                found.append(self._fused_step_in_backward(fused.bytes))
        return found

    def _fused_step_in_backward(self, spared: ChangedBytes) -> _Change:
        """Return a fused step in the backward. The lines copy the optimizer, and the copies have `fused` set too."""
        kinds = ("fused", "step_in_backward")
        return _Change(
            kind=" + ".join(kinds),
            text=words.BOTH.format(first=words.FUSED, other=words.STEP_IN_BACKWARD),
            bytes=spared,
            time_ratio=math.nan,
            basis="estimated",
            decision=f"{words.ROUNDING}; {words.NO_WHOLE_GRADIENT}",
            lines=self._optimizer_lines(" + ".join(kinds)),
            is_alone=True,
        )

    def _offload(self, modules: list[int]) -> list[_Change]:
        """Return the change that offloads the saved tensors of some modules to the host.

        There is none on the host, or if the program has checkpoints already.
        """
        if is_host(self._facts.device) or not modules or self._facts.capture.rows("recomputes"):
            return []
        names = [self._tree.names[module] for module in modules]
        spans = [span for module in modules for span in self._checkpointing.spans_of(module)]
        return [
            _Change(
                kind="offload",
                text=words.OFFLOAD.format(count=len(names), names=_as_text(names)),
                bytes=offloaded(self._facts, self._saved, self._timeline, spans),
                time_ratio=math.nan,
                basis="simulated",
                decision=words.HOST_MEMORY,
                lines="\n".join(self._lines("offload", modules)),
                modules=tuple(modules),
            )
        ]

    def _sparse_gradients(self) -> list[_Change]:
        found = sparse_gradients(self._facts, self._timeline)
        optimizers = self._optimizer_names()
        if found is None or self._have_former(found.modules):
            return []
        if found.needs_sparse_adam and (len(optimizers) > 1 or self._are_made_later):
            return []
        names = _as_text([self._tree.names[module] for module in found.modules])
        key = "sparse_adam" if found.needs_sparse_adam else "sparse_gradients"
        return [
            _Change(
                kind="sparse_gradients",
                text=(words.SPARSE_ADAM if found.needs_sparse_adam else words.SPARSE_GRADIENTS).format(
                    names=names
                ),
                bytes=found.bytes,
                time_ratio=math.nan,
                basis="estimated",
                decision=words.ROWS_BY_SPARSE_ADAM if found.needs_sparse_adam else words.ROWS_ALONE,
                lines="\n".join(self._lines(key, list(found.modules), optimizers[0])),
                modules=found.modules,
            )
        ]

    def _loss_in_parts(self) -> list[_Change]:
        checkpointing = self._checkpointing
        loss = loss_in_parts(
            self._facts, self._saved, self._timeline, checkpointing.window, checkpointing.rng_bytes
        )
        if loss is None or self._have_former([loss.head]):
            return []
        root, name = self._place(loss.head)
        return [
            _Change(
                kind="loss_in_parts",
                text=words.LOSS_IN_PARTS.format(name=self._tree.names[loss.head]),
                bytes=loss.bytes,
                time_ratio=1 + loss.again_ns / checkpointing.ops_ns,
                basis="simulated",
                decision=words.NO_LOGITS,
                lines=LINES["loss_in_parts"].format(model=self._model_name(root), name=name),
                modules=(loss.head,),
            )
        ]

    def _micro_batches(self) -> list[_Change]:
        names = np.unique(self._facts.capture.tables["ops"]["name"]).tolist()
        decision = words.INDEPENDENT_SAMPLES
        if any("batch_norm" in self._facts.strings[name] for name in names):
            decision += words.BATCH_STATISTICS
        if any(name in self._facts.strings[each] for each in names for name in _DROPOUT):
            decision += words.OTHER_DROPOUT
        state = state_of_forward(self._facts, changed_attributes(self._facts))
        if state.read:
            return []
        numbers = {each for each in changed_attributes(self._facts).values() if each not in state.attributes}
        if names := sorted({*numbers, *state.unread}):
            decision += words.EACH_PART.format(names=_as_text(names))
        window, repetitions = self._checkpointing.window, self._checkpointing.repetitions
        split = micro_batches(self._facts, self._saved, self._timeline, window, repetitions)
        if split.refusal is not None:
            if self._would_matter(split):
                self.split_left_out = words.split_refused(
                    split.refusal.obstacle.value, self._op_text(split.refusal.op)
                )
            return []
        if split.prepared_by != NONE:
            decision += words.PREPARED.format(op=self._op_text(split.prepared_by))
        if split.read_by != NONE:
            decision += words.NUMBER_READ.format(op=self._op_text(split.read_by, words.ITEM))
        if split.read_in_python is not None:
            method, site = split.read_in_python
            decision += words.VALUES_READ.format(
                read=words.OP_AT.format(op=words.CALL.format(method=method), line=short_place(site))
            )
        about_targets = words.COUNTED_TARGETS + (words.OTHER_TERMS if split.has_other_terms else "")
        return [
            _Change(
                kind="micro_batches",
                text=words.MICRO_BATCHES.format(parts=found.parts),
                bytes=found.bytes,
                time_ratio=math.nan,
                basis="simulated" if found.is_exact else "estimated",
                decision=decision + (about_targets if found.counts_targets else ""),
                lines=LINES["micro_batches, counted" if found.counts_targets else "micro_batches"].format(
                    parts=found.parts
                ),
                is_alone=True,
            )
            for found in split.choices
        ]

    def _would_matter(self, split: Split) -> bool:
        """Return True if a split that memwatch refuses would lower the peak by enough.

        If the batch size is not known, assume that the split would free half of the activations at the peak.
        """
        peaks = [self._checkpointing.peak_bytes([], found.bytes) for found in split.choices]
        if peaks:
            return min(peaks) <= self._facts.curve.peak_bytes - self._least_bytes
        rows = self._facts.alive_at(self._facts.curve.peak_event)
        rows &= self._facts.categories.category.isin(["activation"])
        return int(self._facts.allocations.nbytes[rows].sum()) // 2 >= self._least_bytes

    def _op_text(self, op: int, name: str = "") -> str:
        """Return an op and the line of the program that called it: `mm` at train.py:12.

        Args:
            op: its number.
            name: the name in the text, in place of that of the op.
        """
        if op == NONE:
            return ""
        line = self._facts.own_line(op) or self._facts.op_line(op)
        name = name or short_op(self._facts.op_name(op))
        return words.OP_AT.format(op=name, line=short_place(line)) if line else words.OP.format(op=name)

    def _without_needless_parts(self, changes: list[_Change]) -> Iterator[_Change]:
        """Yield the changes, but leave out those with a needless part.

        More micro-batches take more time. So the peak with each number of them must be lower by enough than with the
        number before. The peak with a pair of changes of the optimizer must be lower by enough than with each of them.
        """
        lowest = self._facts.curve.peak_bytes
        peaks = {
            change.kind: self._checkpointing.peak_bytes([], change.bytes)
            for change in changes
            if change.kind in ("fused", "step_in_backward")
        }
        for change in changes:  # the fewest parts come first
            if change.kind == "micro_batches":
                peak_bytes = self._checkpointing.peak_bytes([], change.bytes)
                if peak_bytes > lowest - self._least_bytes:
                    continue
                lowest = peak_bytes
            if " + " in change.kind:
                peak_bytes = self._checkpointing.peak_bytes([], change.bytes)
                if peak_bytes > min(peaks.values()) - self._least_bytes:
                    continue
            yield change

    def _without_graph(self) -> list[_Change]:
        found = without_graph(self._facts, self._saved, self._timeline)
        if found is None or not all(map(self._has_name, found.modules)):
            return []
        names = [self._model_name(module) for module in found.modules]
        return [
            _Change(
                kind="without_graph",
                text=words.WITHOUT_GRAPH.format(names=_as_text(names)),
                bytes=found.bytes,
                time_ratio=1.0,
                basis="simulated",
                decision=words.NO_GRADIENTS,
                lines="\n".join(LINES["without_graph"].format(model=name) for name in names),
                modules=found.modules,
            )
        ]

    def _unread_gradients(self) -> list[_Change]:
        found = unread_gradients(self._facts, self._saved, self._timeline)
        if found is None or self._have_former(found.modules):
            return []
        if not all(self._has_name(self._place(module)[0]) for module in found.modules):
            return []
        names = list(map(self._shown_name, found.modules))
        return [
            _Change(
                kind="unread_gradients",
                text=words.UNREAD_GRADIENTS.format(names=_as_text(names)),
                bytes=found.bytes,
                time_ratio=1 - found.spared_ns / self._checkpointing.ops_ns,
                basis="simulated",
                decision="",  # nothing read these gradients, and a comment in the lines says when you need them
                lines="\n".join(self._lines("unread_gradients", list(found.modules))),
                modules=found.modules,
                is_alone=True,
            )
        ]

    def _in_place(self) -> list[_Change]:
        found = in_place(self._facts, self._saved, self._timeline)
        if found is None or self._have_former(found.modules):
            return []
        names = [self._tree.names[module] for module in found.modules]
        return [
            _Change(
                kind="in_place",
                text=words.IN_PLACE.format(names=_as_text(names)),
                bytes=found.bytes,
                time_ratio=1.0,
                basis="simulated",
                decision=words.INPUT_IS_GONE,
                lines="\n".join(self._lines("in_place", list(found.modules))),
                modules=found.modules,
                is_alone=True,
            )
        ]

    def _in_single_precision(self) -> list[_Change]:
        found = in_single_precision(self._facts, self._timeline)
        if found is None or not all(map(self._has_name, found.modules)):
            return []
        names = [self._model_name(module) for module in found.modules]
        return [
            _Change(
                kind="float32",
                text=words.FLOAT32.format(names=_as_text(names)),
                bytes=found.bytes,
                time_ratio=math.nan,
                basis="estimated",
                decision=words.SINGLE_PRECISION,
                lines="\n".join(LINES["float32"].format(model=name) for name in names),
                modules=found.modules,
                is_alone=True,
            )
        ]

    def _autocast(self) -> list[_Change]:
        found = autocast(self._facts, self._saved, self._timeline, self._checkpointing.window)
        if found is None or self._have_former(found.modules):
            return []
        names = list(map(self._shown_name, found.modules))
        return [
            _Change(
                kind="autocast",
                text=words.AUTOCAST.format(names=_as_text(names)),
                bytes=found.bytes,
                time_ratio=math.nan,
                basis="estimated",
                decision=words.LESS_PRECISION,
                lines="\n".join(self._lines("autocast", list(found.modules))),
                modules=found.modules,
                is_alone=True,
            )
        ]

    def _are_around(self, modules: Collection[int], inner: Collection[int]) -> bool:
        """Return True if one of `modules` also is in `inner`, or holds a module of `inner`."""
        return any(each in modules for module in inner for each in self._tree.with_ancestors(module))

    def _have_former(self, modules: Iterable[int]) -> bool:
        """Return True if the program has replaced one of some modules: `get_submodule` does not find it."""
        return any(_FORMER in self._tree.names[module] for module in modules)

    def _shown_name(self, module: int) -> str:
        """Return the name of a module for the text; the name of the model for a model itself."""
        return self._tree.names[module] or self._model_name(module)

    def _place(self, module: int) -> tuple[int, str]:
        """Return the model that holds a module, and the module's name in it; "" is the model itself."""
        *_, root = self._tree.with_ancestors(module)
        if module == root:
            return root, ""
        return root, self._tree.names[module].removeprefix(self._tree.prefixes[root]).removeprefix(".")

    def _names_in_models(self, modules: list[int]) -> str:
        """Return the names of some modules in their model. With several models, each begins with the model's name."""
        places = [self._place(module) for module in modules]
        is_one = len({root for root, _ in places}) == 1
        names = [
            name if name and is_one else f"{self._model_name(root)}.{name}".removesuffix(".")
            for root, name in places
        ]
        return ", ".join(names)

    def _has_name(self, root: int) -> bool:
        """Return True if the lines can call a model by its expression, or if there is no other model."""
        return bool(self._expression_of(root)) or self._tree.parents.count(NONE) == 1

    def _model_name(self, root: int) -> str:
        """Return what the lines call a model. The word `model` stands for an unknown one."""
        name = self._expression_of(root) or _MODEL
        return f"{name}.module" if self._tree.classes[root] in _WRAPPERS else name

    def _expression_of(self, root: int) -> str:
        """Return the program's expression for a model; empty if it is not known."""
        noted = self._expressions.get("models", {}).get(str(root))
        if noted is not None:
            return str(noted)  # "" if only a library has a variable for it
        # the recorder notes expressions only when an optimizer steps; else use the variable that gave the model its
        # name in the tree
        name = self._tree.names[root]
        return name if name.isidentifier() and name != self._tree.classes[root] else ""

    def _comment(self, lines: str, *, is_function: bool, changes_modules: bool) -> str:
        """Return the comment above the lines of a way: where to put them, and which words you have to replace.

        Args:
            lines: the lines.
            is_function: True if they define a function that any part of the program may call.
            changes_modules: True if they change modules. Otherwise they need an optimizer alone.
        """
        if is_function:
            return f"{words.PLACE_AT_TOP}\n"
        expressions = self._expressions
        function = str(expressions.get("function", ""))
        place = words.PLACE_IN.format(function=function) if function else words.PLACE
        roots = [root for root, above in enumerate(self._tree.parents) if above == NONE]
        used = {_MODEL: [*map(self._expression_of, roots)], _OPTIMIZER: expressions.get("optimizers", [])}
        replaced = []
        if self._are_made_later:
            del used[_OPTIMIZER]  # the lines need no optimizer, or make one
        code = re.sub(r"#.*", "", lines)
        for word, known in used.items():
            is_in_lines = re.search(rf"(?<![\w.'\"]){word}(?!\w)", code) is not None
            is_in_program = word in known
            # if so, the lines have these expressions, and the word is there by chance
            has_all_expressions = bool(known) and all(known)
            if is_in_lines and not is_in_program and not has_all_expressions:
                replaced.append(word)
        makers = [*filter(None, expressions.get("made_in", []))]
        if replaced == [_OPTIMIZER] and makers and not changes_modules:
            place = words.PLACE_OF_OPTIMIZER.format(function=makers[0])
        comments = [words.STANDS_FOR.format(word=word) for word in replaced]
        if _OPTIMIZER in replaced and makers and changes_modules:
            # the function that makes the optimizer has no variable for the modules
            comments[replaced.index(_OPTIMIZER)] = words.MADE_IN.format(function=makers[0])
        return "\n".join([place, *comments, ""])


def _as_expression(names: list[str]) -> str:
    """Return an expression for some names. It is short for numbered names, such as those of an `nn.ModuleList`."""
    stems = {name.rpartition(".")[0] for name in names}
    numbers = [name.rpartition(".")[2] for name in names]
    if len(stems) == 1 and len(names) > 3 and all(number.isdecimal() for number in numbers):
        first, second, last = int(numbers[0]), int(numbers[1]), int(numbers[-1])
        step = second - first
        if step > 0 and [int(number) for number in numbers] == list(range(first, last + 1, step)):
            stem = stems.pop()
            bounds = [last + 1] if first == 0 and step == 1 else [first, last + 1, *[step] * (step > 1)]
            through = f"range({', '.join(map(str, bounds))})"
            return f'[f"{stem}.{{number}}" for number in {through}]' if stem else f"map(str, {through})"
    return repr(tuple(names))
