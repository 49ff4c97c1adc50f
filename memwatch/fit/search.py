"""Choose the ways to try and their order. Keep the fastest measured way under the limit."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from memwatch.device_names import is_host
from memwatch.errors import MemwatchError
from memwatch.fit.blocks import chains, partitions
from memwatch.fit.trial import Measurement, within_budget
from memwatch.fit.way import Change, Way
from memwatch.kinds.fit import Kind
from memwatch.signal_handlers import pass_on
from memwatch.sizes import format_bytes, format_duration
from memwatch.words import fit as words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch import nn
    from torch.optim import Optimizer

    from memwatch.fit.blocks import SavedScan
    from memwatch.planner.plan import Plan
    from memwatch.reading import Reading

_GOOD_ENOUGH: Final = 1.02
"""A ratio of durations. The search ends with a way that fits and takes at most this ratio of the program's own time.

A guess: times this close are equal.
"""
_NOISE: Final = 1.1
"""A ratio of durations. Two durations may be equal if their ratio is below this one.

If the program takes more than this ratio of the time of a way that computes more, its time was disturbed. A guess.
"""
_LEAST_GAIN_RATIO: Final = 0.01
"""A share of the program's peak. If a setting alone lowers the peak by less, one more run tries to do without it.

A guess: the extra run costs a user a minute, and a useless line costs them a question.
"""
_MARGINS: Final = (1.0, 0.9)
"""Shares of the room under the limit that a planned way gets as its budget.

The second share is tried only if a plan with the first exceeds the limit. A guess.
"""


class SimulatedCheckpoint(NamedTuple):
    """A row of `prof.ways`: modules to checkpoint, the other kinds of change in it, and the peak with all of them."""

    names: tuple[str, ...]
    others: frozenset[str]
    peak_bytes: int


_ABOUT_BUDGETS: Final = r"memwatch\.apply_plan|torch\.compile, backend memwatch"
"""The beginnings, as a regular expression, of warnings about plans that exceed their budget."""


def _is_part(kind: Kind, predicted: Collection[str]) -> bool:
    """Return True if a kind of change is predicted to lower the peak, alone or as a part of a kind such as `a + b`."""
    return any(kind.value in kinds.split(" + ") for kinds in predicted)


def _outcome(run: str, measured: Measurement, limit_bytes: int) -> str:
    """Return the result of a run in one line."""
    if measured.peak_bytes is None:
        return words.WAY_FAILED.format(run=run)
    text = words.RUN_PEAK.format(run=run, peak=format_bytes(measured.peak_bytes))
    if measured.step_time_ns is not None:
        text += words.RUN_STEP.format(duration=format_duration(measured.step_time_ns))
    return text + words.RUN_FITS * measured.fits(limit_bytes)  # "" if it does not fit


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class Trial(Protocol):
    """Runs steps in a way and measures them."""

    @property
    def model(self) -> nn.Module:
        """The model."""

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of its parameters."""

    @property
    def makes_optimizers_later(self) -> bool:
        """Whether a library makes its optimizers when the training begins, so no code before it can name them."""

    @property
    def device(self) -> str:
        """The device whose memory is limited."""

    def run(self, way: Way) -> Measurement:
        """Run some steps in a way."""

    def plan(self, way: Way) -> Plan:
        """Return a plan of a step in a way, to be applied within some budget."""

    def recorded(self, way: Way, *, stacks: bool = False) -> Reading:
        """Return the recording of a step in a way, with call stacks if wanted."""

    def scan(self) -> SavedScan:
        """Run steps and return the bytes that the modules save in the last step."""


class Search:
    """One search for the fastest way under a limit.

    Attributes:
        tried: every measurement, in the order of the trials.
        is_repeatable: whether the program itself gives the same results twice; None until it was tested.
        untried: why each wanted kind was not tried; a sentence for several kinds with one reason.
    """

    def __init__(
        self,
        trial: Trial,
        limit_bytes: int,
        kinds: Collection[Kind],
        say: Callable[[str], object],
        run_ended: Callable[[str], object],
    ) -> None:
        self.tried: list[Measurement] = []
        self.is_repeatable: bool | None = None
        self._changing: set[str] = set()  # names of the buffers that a step writes
        self._baseline_bytes = 0  # live bytes when a step first calls the model
        # sets of modules to checkpoint; the set of the largest modules is the first
        self._divided: list[tuple[str, ...]] = []
        self._simulated: list[SimulatedCheckpoint] = []
        self._reasons: dict[Kind, str] = {}  # why a kind of way does not suit the program
        # modules that a checkpoint would change twice, by name: the class of the argument, or the name of the attribute
        self._changed_arguments: dict[str, str] = {}
        # why no recording simulates a step in the backward; "" if one does
        self._step_left_out = words.NOT_RECORDED
        self._grown_lists: dict[str, str] = {}
        self._changed_attributes: dict[str, str] = {}
        self._trial, self._limit_bytes, self._kinds = trial, limit_bytes, kinds
        self._say, self._run_ended = say, run_ended

    def run(self) -> Measurement | None:
        """Try ways until a way fits and is fast enough. Return the fastest way that fits, or None if all need more."""
        plain = self._try(Way())
        if not plain.fits(self._limit_bytes):
            for measured in self._ways(plain):
                if self._is_fast(measured) and measured.fits(self._limit_bytes):
                    self._reasons = {}  # all kinds that were not tried have one reason now
                    self._reason(words.FAST_ENOUGH.format(way=measured.way.name), *Kind)
                    break
        self._try_without_settings()
        return self._best()

    def _try_without_settings(self) -> None:
        """Try the best way without the settings that lowered the peak by little when they were tried alone.

        The best way contains each setting that lowered the peak at all, because it may lower a later peak further.
        """
        best, plain_bytes = self._best(), self.tried[0].peak_bytes
        if best is None or plain_bytes is None:
            return
        most_bytes = plain_bytes * (1 - _LEAST_GAIN_RATIO)
        of_little_gain = {
            change
            for each in self.tried
            for change in each.way.changes
            if each.way.has_settings_only and (each.peak_bytes or 0) > most_bytes
        }
        rest = tuple(change for change in best.way.changes if change not in of_little_gain)
        if rest and len(rest) < len(best.way.changes):
            self._try(Way(rest))

    def _is_fast(self, measured: Measurement) -> bool:
        """Return True if the steps of a way take no longer than the program's own.

        Before returning True, time the program's steps again. Other programs may have slowed the first run, because a
        way that computes more cannot really be as fast.
        """
        if measured.peak_bytes is None or measured.cost > self.tried[0].cost * _GOOD_ENOUGH:
            return False
        if measured.step_time_ns is not None:
            self._run_program_again()
        return measured.cost <= self.tried[0].cost * _GOOD_ENOUGH

    def _reason(self, text: str, *kinds: Kind) -> None:
        """Note why kinds are not tried. The first reason of a kind stays. `untried` ignores it if the kind is tried."""
        for kind in kinds:
            self._reasons.setdefault(kind, text)

    @property
    def untried(self) -> list[str]:
        """Why kinds of ways were not tried, one sentence for each reason."""
        tried = {change.kind for each in self.tried for change in each.way.changes}
        by_reason: dict[str, list[str]] = {}
        for kind in Kind:
            if kind is Kind.OFFLOAD and is_host(self._trial.device):
                continue  # another note says so
            if kind in self._kinds and kind not in tried and kind in self._reasons:
                by_reason.setdefault(self._reasons[kind], []).append(kind.value)
        found = [words.UNTRIED.format(kinds=", ".join(kinds), why=why) for why, kinds in by_reason.items()]
        return [*found, self.left_out] if self.left_out else found

    @property
    def left_out(self) -> str:
        """Why some modules were not checkpointed; "" if there are none."""
        if not self._may(Kind.CHECKPOINT):
            return ""
        sentences = []
        if self._changed_arguments:
            sentences += [
                words.CHANGED_ARGUMENTS.format(
                    modules=words.modules_as_text([*self._changed_arguments]),
                    objects=", ".join(sorted(set(self._changed_arguments.values()))),
                )
            ]
        if self._grown_lists:
            sentences += [
                words.GROWN_LISTS.format(
                    modules=words.modules_as_text([*self._grown_lists]),
                    lists=", ".join(sorted({f"`{name}`" for name in self._grown_lists.values()})),
                )
            ]
        if self._changed_attributes:
            sentences += [
                words.CHANGED_ATTRIBUTES.format(
                    modules=words.modules_as_text([*self._changed_attributes]),
                    names=", ".join(sorted({f"`{name}`" for name in self._changed_attributes.values()})),
                )
            ]
        return "; ".join(sentences)

    def _run_program_again(self) -> None:
        """Run the plain step once more. Compare its results with the first run, and keep the shorter time."""
        self._say(words.AGAIN)
        before, again = self.tried[0], self._trial.run(Way())
        self._run_ended(_outcome(words.AGAIN, again, self._limit_bytes))
        if again.peak_bytes is None or again.step_time_ns is None:
            return  # no memory for it, this time
        self.tried[0] = dataclasses.replace(
            before,
            peak_bytes=max(before.peak_bytes or 0, again.peak_bytes),
            step_time_ns=min(before.step_time_ns or again.step_time_ns, again.step_time_ns),
        )
        if before.results is not None and self.is_repeatable is not False:
            self.is_repeatable = again.results == before.results

    @property
    def lowest(self) -> Measurement | None:
        """The measurement with the lowest peak; None if each trial failed."""
        ran = [each for each in self.tried if each.peak_bytes is not None]
        return min(ran, key=lambda each: each.peak_bytes or 0, default=None)

    @property
    def is_disturbed(self) -> bool:
        """Whether a way that computes more was faster than the program: then other programs disturbed the times."""
        more = [each for each in self.tried if each.way.computes_again and each.step_time_ns is not None]
        return any(each.cost * _NOISE < self.tried[0].cost for each in more)

    def is_bitwise(self, measured: Measurement) -> bool | None:
        """Return whether a way gave the program's own results in every bit; None if this is unknown."""
        plain = self.tried[0].results
        if plain is None or measured.results is None:
            return None
        if plain == measured.results:
            return True
        return False if self.is_repeatable else None  # two runs of the program itself may differ as much

    def _best(self) -> Measurement | None:
        """Return the fastest way that fits. A way with other results than the program's is the last resort.

        Leave out a way if another way fits that checkpoints a part of its modules and changes no more. It cannot be
        faster, and only noise in the times would choose it. Also leave out a way if another way fits that lacks only
        some of its settings.

        A way whose lines need memwatch must be faster than the other ways by more than the noise. So must a step in the
        backward, which forbids clipping and accumulation. If several ways are equally fast, return the first that was
        tried, because it changes less of the program.
        """
        fitting = [each for each in self.tried if each.fits(self._limit_bytes)]
        exact = [each for each in fitting if self.is_bitwise(each) is not False] or fitting
        exact = [each for each in exact if not any(other.way.spares_work_of(each.way) for other in exact)]
        exact = [each for each in exact if not any(other.way.spares_settings_of(each.way) for other in exact)]
        least_cost = min((each.cost for each in exact), default=0.0)
        plainer = [each for each in exact if not each.way.is_planned and not each.way.steps_in_backward]
        least_of_plainer = min((each.cost for each in plainer), default=math.inf)
        if least_of_plainer <= least_cost * _NOISE:
            exact, least_cost = plainer, least_of_plainer
        return next((each for each in exact if each.cost <= least_cost * _GOOD_ENOUGH), None)

    def _try(self, way: Way) -> Measurement:
        known = next((each for each in self.tried if each.way == way), None)
        if known is not None:
            return known
        self._say(way.name)
        with warnings.catch_warnings():  # the measurement shows whether a plan keeps its budget
            warnings.filterwarnings("ignore", _ABOUT_BUDGETS, UserWarning)
            try:
                measured = self._trial.run(way)
            except Exception as error:
                pass_on(error)
                if not way.changes:
                    raise
                # the program itself runs, but not in this way: no plan applies, or a recomputed tensor was written in
                # place
                measured = Measurement(way, None, failure=_first_line(error))
        self._run_ended(_outcome(way.name, measured, self._limit_bytes))
        self.tried.append(measured)
        plain = self.tried[0].results
        if self.is_repeatable is None and None not in (plain, measured.results) and plain != measured.results:
            self._run_program_again()
        return measured

    def _ways(self, plain: Measurement) -> Iterator[Measurement]:
        """Yield the measurements of more and more expensive ways."""
        base = plain
        self._say(words.SCAN)
        scan = self._trial.scan()
        self._run_ended(words.SCAN)
        saved, self._changing, self._baseline_bytes = scan.found, scan.changing_buffers, scan.baseline_bytes
        predicted = self._predicted()
        for change in self._settings(gradients_wait=scan.gradients_wait):
            measured = self._try(base.way.also(change))
            yield measured
            if self._is_gain(measured, base):
                base = measured
        # without `base`: a step in the backward already updates one parameter at a time and frees each gradient
        in_backward = Way((Change(Kind.STEP_IN_BACKWARD),))
        may_step_in_backward = self._may(Kind.STEP_IN_BACKWARD) and _is_part(Kind.STEP_IN_BACKWARD, predicted)
        if self._trial.makes_optimizers_later:  # its hooks must be there before the first backward
            may_step_in_backward = False
            self._reason(words.OPTIMIZER_IS_LATER, Kind.STEP_IN_BACKWARD)
        if may_step_in_backward and Kind.STEP_IN_BACKWARD.value in predicted:
            yield self._try(in_backward)
        self._reason(self._step_left_out or words.NO_GAIN, Kind.STEP_IN_BACKWARD)
        # a checkpoint would run the forward of these modules twice, and change their argument twice
        for name in self._changed_arguments:
            saved.by_module.pop(name, None)
        # a checkpoint of these modules, or of a module that contains them, would change the list or attribute twice
        for name in (*self._grown_lists, *self._changed_attributes):
            parts = name.split(".")
            for count in range(1, len(parts) + 1):
                saved.by_module.pop(".".join(parts[:count]), None)
        self._divided = partitions(self._trial.model, saved) if self._may(Kind.CHECKPOINT) else []
        # A step in the backward may lower the peak only together with checkpoints. Then fewer blocks may be enough
        bases = [base.way, *([in_backward] if may_step_in_backward else [])]
        if not self._divided:
            self._reason(words.NO_BLOCKS, Kind.CHECKPOINT, Kind.OFFLOAD)
        for way in bases:
            for names in self._sets_for(way):  # smaller blocks only if the large ones do not fit
                found = list(self._least(way, names, Kind.CHECKPOINT))
                yield from found
                if any(measured.fits(self._limit_bytes) for measured in found):
                    break
                if self._fitting_with_less_work(way.also(Change(Kind.CHECKPOINT, names))):
                    break
        if self._may(Kind.CHAIN):
            for name, length in chains(self._trial.model, saved):
                # the lines that keep buffers cannot be inserted into checkpoint_sequential
                if self._writes_buffers(name):
                    self._reason(words.CHAIN_WITH_BUFFERS, Kind.CHAIN)
                    continue
                yield from self._chains(base.way, name, length)
        self._reason(words.NO_CHAIN, Kind.CHAIN)
        if self._may(Kind.OFFLOAD) and not is_host(self._trial.device) and self._divided:
            yield from self._least(base.way, self._divided[-1], Kind.OFFLOAD)
        if self._limit_bytes <= self._baseline_bytes:
            self._reason(words.NO_ROOM, Kind.POLICY, Kind.BACKEND)
        self._reason(words.NOT_ESTIMATED, Kind.POLICY, Kind.BACKEND)
        for kind in (Kind.POLICY, Kind.BACKEND):
            if self._may(kind) and not plain.is_estimate:
                # with `base` only, because a plan needs the optimizer's step after the backward
                yield from self._planned(base, kind)
        # A fused step rounds differently. So it is tried late, and only if no way with the program's results fits
        if self._fits():
            self._reason(words.ROUNDS, Kind.FUSED, Kind.LOSS_IN_PARTS)
        self._reason(words.NO_FUSED, Kind.FUSED)
        self._reason(words.NO_LOSS, Kind.LOSS_IN_PARTS)
        if self._may_fuse() and not self._fits():
            yield self._try(Way((Change(Kind.FUSED),)))
            if self.lowest is not None and not self.lowest.fits(self._limit_bytes):
                others = [change for change in self.lowest.way.changes if not change.kind.is_of_step]
                yield self._try(Way((*others, Change(Kind.FUSED))))
                if may_step_in_backward and not self.lowest.way.steps_in_backward and not self._fits():
                    yield self._try(in_backward.also(Change(Kind.FUSED)))
        yield from self._with_loss_in_parts(base, predicted)
        if self._fits():
            self._reason(words.LESS_PRECISION, Kind.AUTOCAST)
        elif self._may(Kind.AUTOCAST):
            yield from self._with_autocast()

    def _with_autocast(self) -> Iterator[Measurement]:
        """Try half precision, the largest change of the results: alone, then with the lowest way so far."""
        change = Change(Kind.AUTOCAST, ("",), device=self._trial.device.partition(":")[0])
        alone = self._try(Way((change,)))
        yield alone
        if not alone.fits(self._limit_bytes) and self.lowest is not None and not self.lowest.way.is_planned:
            others = [each for each in self.lowest.way.changes if each.kind is not Kind.AUTOCAST]
            yield self._try(Way((*others, change)))

    def _with_loss_in_parts(
        self, base: Measurement, predicted: dict[str, dict[str, Any]]
    ) -> Iterator[Measurement]:
        """Try a loss in parts, which rounds differently, if nothing fits: with `base`, then with the lowest way."""
        row = predicted.get(Kind.LOSS_IN_PARTS.value)
        if row is None or not self._may(Kind.LOSS_IN_PARTS):
            return
        head = row["modules"]
        change = Change(Kind.LOSS_IN_PARTS, (head,))
        for way in (base.way, self.lowest.way if self.lowest is not None else base.way):
            holds_head = any(
                head == name or head.startswith(f"{name}.") for each in way.changes for name in each.names
            )
            if way.is_planned or holds_head or self._fits():
                continue
            yield self._try(way.also(change))

    def _may(self, kind: Kind) -> bool:
        return kind in self._kinds

    def _is_gain(self, measured: Measurement, base: Measurement) -> bool:
        """Return True if a measured change lowers the peak and leaves the results as they are."""
        if measured.peak_bytes is None or self.is_bitwise(measured) is False:
            return False
        return base.peak_bytes is None or measured.peak_bytes < base.peak_bytes

    def _may_fuse(self) -> bool:
        """Return True if all optimizers have a fused step, and none of them uses it."""
        groups = [group for optimizer in self._trial.optimizers for group in optimizer.param_groups]
        return self._may(Kind.FUSED) and all(
            "fused" in group and not group["fused"] and not group.get("differentiable") for group in groups
        )

    def _fits(self) -> bool:
        """Return True if some way that was tried fits."""
        return any(measured.fits(self._limit_bytes) for measured in self.tried)

    def _predicted(self) -> dict[str, dict[str, Any]]:
        """Return the row of `prof.ways` for each kind that a recording of the program shows to lower the peak."""
        need_recording = (Kind.STEP_IN_BACKWARD, Kind.LOSS_IN_PARTS, Kind.CHECKPOINT)
        if self.tried[0].is_estimate or not any(self._may(kind) for kind in need_recording):
            return {}
        self._say(words.RECORDING)
        try:
            ways = self._trial.recorded(Way(), stacks=True).ways
        except Exception as error:
            pass_on(error)
            self._run_ended(words.RUN_FAILED.format(run=words.RECORDING, failure=_first_line(error)))
            self._reason(words.NOT_RECORDED, Kind.STEP_IN_BACKWARD, Kind.LOSS_IN_PARTS)
            return {}  # out of memory: only ways that need no prediction are tried
        self._run_ended(words.RECORDING)
        names = dict(self._trial.model.named_modules())
        changed = ways.attrs["changed_arguments"].items()
        self._changed_arguments = {name: cls for name, cls in changed if name in names}
        lists = ways.attrs["grown_lists"].items()
        self._grown_lists = {name: attribute for name, attribute in lists if name in names}
        attributes = ways.attrs["changed_attributes"].items()
        self._changed_attributes = {name: attribute for name, attribute in attributes if name in names}
        self._step_left_out = ways.attrs["step_left_out"]
        rows = ways.to_dict("records")
        of_optimizer = {Kind.FOREACH.value, Kind.STEP_IN_BACKWARD.value}  # they change no modules
        self._simulated = [
            SimulatedCheckpoint(
                tuple(row["modules"].split(", ")),
                frozenset(row["kind"].split(" + ")) - {Kind.CHECKPOINT.value},
                row["peak_bytes"],
            )
            for row in rows
            if {Kind.CHECKPOINT.value}
            <= set(row["kind"].split(" + "))
            <= {Kind.CHECKPOINT.value, *of_optimizer}
            and names.keys() >= set(row["modules"].split(", "))
        ]
        # the rows are sorted by peak, so the lowest row of a kind is written last and stays
        return {row["kind"]: row for row in reversed(rows)}

    def _settings(self, *, gradients_wait: bool) -> list[Change]:
        """Return the changes of one argument or one line that leave the results as they are."""
        found = []
        groups = [group for optimizer in self._trial.optimizers for group in optimizer.param_groups]
        # by default torch updates lists of tensors on accelerators, where starting a kernel takes time
        by_default = not is_host(self._trial.device)
        lists = [group["foreach"] for group in groups if "foreach" in group and not group.get("fused")]
        if self._may(Kind.FOREACH) and any(by_default if each is None else each for each in lists):
            found.append(Change(Kind.FOREACH))
        if self._may(Kind.GRADIENTS) and gradients_wait:
            found.append(Change(Kind.GRADIENTS))
        self._reason(words.NO_LISTS, Kind.FOREACH)
        self._reason(words.NO_GRADIENTS_WAIT, Kind.GRADIENTS)
        return found

    def _sets_for(self, base: Way) -> list[tuple[str, ...]]:
        """Return sets of modules to checkpoint together with a way, in the order of their trials.

        The bytes that modules save do not show which set fits, but the simulation of a recording does. The simulated
        set comes first if its peak fits. Otherwise it comes last, or is left out if a larger set contains it: the
        larger set may lower the peak a bit further.
        """
        if not self._divided:
            return []
        kinds = {change.kind.value for change in base.changes}
        possible = [each for each in self._simulated if each.others <= kinds]
        lowest = min(possible, key=lambda each: each.peak_bytes, default=None)
        if lowest is None:
            return self._divided
        if lowest.peak_bytes <= self._limit_bytes:
            return [lowest.names, *(names for names in self._divided if names != lowest.names)]
        is_part = any(set(lowest.names) <= set(names) for names in self._divided)
        return self._divided if is_part else [*self._divided, lowest.names]

    def not_needed(self, kept: Measurement) -> str:
        """Return a sentence about modules that the kept way need not checkpoint; "" if it checkpoints a whole set."""
        chosen = set(kept.way.checkpointed)
        larger_sets = [
            names
            for names in [*self._divided, *(each.names for each in self._simulated)]
            if chosen < set(names)
        ]
        if not chosen or not larger_sets:
            return ""
        others = [name for name in max(larger_sets, key=len) if name not in chosen]
        return words.NOT_NEEDED.format(modules=words.modules_as_text(others))

    def _least(self, base: Way, names: tuple[str, ...], kind: Kind) -> Iterator[Measurement]:
        """Try all blocks, then search for the fewest that fit. Take the first blocks, whose tensors are saved longest.

        Leave out a number of blocks if a way that fits already computes less.
        """

        def of_first(count: int) -> Way:
            chosen = names[:count]
            keeps = kind is Kind.CHECKPOINT and any(map(self._writes_buffers, chosen))
            return base.also(Change(kind, chosen, keeps_buffers=keeps))

        # the smallest number of blocks that compute more than some way that fits
        enough = next(
            (count for count in range(1, len(names) + 1) if self._fitting_with_less_work(of_first(count))),
            None,
        )
        # `low` blocks are too few; `high` blocks fit, or a trial of them is needless
        low, high = 0, len(names) if enough is None else enough
        if enough is None:
            most = self._try(of_first(len(names)))
            yield most
            if not most.fits(self._limit_bytes):
                if len(names) < 3:
                    return
                # Leave out the last block. Its backward comes right after its forward, so a checkpoint frees nothing in
                # between, and keeps its inputs
                high -= 1
                without_last = self._try(of_first(high))
                yield without_last
                if not without_last.fits(self._limit_bytes):
                    return
        elif enough == 1 and (less_work := self._fitting_with_less_work(of_first(1))):
            self._reason(words.COMPUTES_MORE.format(way=less_work.way.name), kind)
        while high - low > 1:
            middle = (low + high) // 2
            measured = self._try(of_first(middle))
            yield measured
            if measured.fits(self._limit_bytes):
                high = middle
            else:
                low = middle

    def _fitting_with_less_work(self, way: Way) -> Measurement | None:
        """Return a measured way that fits, has the program's own results, and computes less than another way."""
        return next(
            (
                each
                for each in self.tried
                if each.fits(self._limit_bytes)
                and self.is_bitwise(each) is not False
                and each.way.spares_work_of(way)
            ),
            None,
        )

    def _writes_buffers(self, name: str) -> bool:
        """Return True if a step writes buffers of a module. The name of the model itself is ""."""
        return any(not name or buffer.startswith(f"{name}.") for buffer in self._changing)

    def _chains(self, base: Way, name: str, length: int) -> Iterator[Measurement]:
        segments = 2
        while segments <= max(2, length // 2):
            measured = self._try(base.also(Change(Kind.CHAIN, (name,), segments=segments)))
            yield measured
            if measured.fits(self._limit_bytes):
                return
            segments *= 2

    def _planned(self, base: Measurement, kind: Kind) -> Iterator[Measurement]:
        """Try a plan whose budget is the room under the limit: as selective checkpoints, or as the compile backend."""
        room = self._limit_bytes - self._baseline_bytes
        plan: Plan | None = None
        for margin in _MARGINS if room > 0 else ():
            budget_bytes = int(room * margin)
            if kind is Kind.POLICY and plan is None:
                self._say(words.FOR_PLAN)
                try:
                    plan = self._trial.plan(base.way)
                    self._run_ended(words.FOR_PLAN)
                except MemwatchError as error:
                    self._run_ended(words.RUN_FAILED.format(run=words.FOR_PLAN, failure=_first_line(error)))
                    self.tried.append(Measurement(base.way.also(Change(kind)), None, failure=str(error)))
                    return
            planned = None if plan is None else within_budget(plan, budget_bytes)
            measured = self._try(base.way.also(Change(kind, budget_bytes=budget_bytes, plan=planned)))
            yield measured
            if measured.fits(self._limit_bytes) or measured.failure:
                return
