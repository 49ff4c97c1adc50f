"""Simulate models whose forward runs under autocast: matrix products and convolutions compute in half precision.

Autocast converts the float32 inputs of some ops (`_LOWER`) to half precision, and the half-precision inputs of some
others (`_FULL`) to float32. All other ops take what they get. That changes a recording at six places:

1. A result has half of its bytes if its op computes in half precision, or if all of its inputs are in half precision.
2. Each converted input is one more tensor. A converted parameter stays until the forward is over, for the next op that
   needs it. If backward reads the input, autograd keeps the converted tensor and not the input.
3. A gradient has the precision of its tensor. Where the forward converted an input, the backward converts the gradient
   back, and has both for a moment.
4. An op that combines tensors of both precisions makes a float32 result. Its backward converts the gradient of the
   tensor in half precision, and has both for a moment. On the host, the op itself converts this tensor to a temporary
   (measured with torch 2.13 for about 40 ops: of them, only `copy_` made no temporary).
5. On the host, a convolution copies its inputs and its result, and its backward copies its inputs. With a kernel of one
   pixel this is so only in half precision. `autocast` adds these copies in half precision. For eight shapes, the
   measured copies were 0.8 to 1.5 times as large.
6. A host whose processor has no instructions for bfloat16 adds up the products of a matrix product in float32. This
   takes 4 bytes for each number of the result and 128 more, measured with torch 2.13 for 32 shapes. A batch of
   products takes the bytes of one product in each thread.

`autocast` follows the ops of the recording in order and keeps for each storage whether it would be in half precision.
It does not know conversions in the program's own code (`x.float()`): a recording in float32 has no trace of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.facts.forward_ops import maker_of_node
from memwatch.analysis.ways.timeline import LAST, ChangedBytes, ChangedModules, Spike, dimensions_of_storages
from memwatch.capture.schema import ACCESSES, FORWARD, IN_BACKWARD, NONE
from memwatch.device_names import is_host
from memwatch.kinds.roles import ROLES

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.analysis.ways.timeline import Timeline
    from memwatch.capture.columns import IntArray

_READ, _WRITE, _OUTPUT = (ACCESSES.index(access) for access in ("read", "write", "output"))
_GRADIENT: Final = ROLES.index("gradient")
_FLOAT: Final = "float32["
_TRANSFORMS: Final = "/torch/_functorch/"
"""The folder of `torch.func` (torch 2.13)."""
_HALF_DTYPES: Final = ("bfloat16", "float16")
_LITTLE_RATIO: Final = 0.01
"""Of the peak increase: less workspace than this changes no peak by more than a way's estimate may differ. A guess."""
_LOWER: Final = frozenset((
    "addmm", "addbmm", "baddbmm", "bmm", "mm", "mv", "addmv", "addr", "convolution", "mkldnn_rnn_layer", "_cudnn_rnn",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable", "_prelu_kernel",
))  # fmt: skip
"""Ops that compute in half precision under autocast, as they are recorded: below autograd (torch 2.13)."""
_PRODUCTS_OF_BATCHES: Final = frozenset(("bmm", "baddbmm"))
_PRODUCTS: Final = frozenset(("mm", "addmm", "addbmm", *_PRODUCTS_OF_BATCHES))
_ALIGNMENT_BYTES: Final = 128  # that the workspace of such a product may have for its alignment; a guess
_CONVOLUTIONS: Final = frozenset(("convolution", "convolution_backward"))
_WITHOUT_COPIES: Final = frozenset(("copy_", "_to_copy"))
"""Ops that read tensors of one precision and write tensors of the other, without a converted copy."""
_FULL_EVERYWHERE: Final = frozenset((
    "_log_softmax", "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "_ctc_loss", "prod", "_cdist_forward",
))  # fmt: skip
_FULL_ON_ACCELERATORS: Final = frozenset((
    "_softmax", "native_layer_norm", "_fused_rms_norm", "native_group_norm", "exp", "expm1", "log", "log10", "log1p",
    "log2", "pow", "reciprocal", "rsqrt", "softplus", "sum", "cumsum", "cumprod", "linalg_vector_norm", "acos", "asin",
    "cosh", "erfinv", "sinh", "tan",
))  # fmt: skip
"""Ops that compute in float32 under autocast; there are more of them on accelerators (torch 2.13)."""
_NORMS: Final = frozenset((
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
    "_batch_norm_with_update", "cudnn_batch_norm", "miopen_batch_norm",
))  # fmt: skip
"""Ops whose result has the precision of the input, whatever that of their parameters."""
_ATTENTION: Final = "_safe_softmax"
"""The softmax of an attention that torch computes op by op. For half-precision inputs, all of these ops compute in
float32."""
_SAME_DTYPE: Final = frozenset(
    ("index_add", "index_add_", "scatter_add", "scatter_add_", "index_copy", "index_put_")
)
"""Ops that raise an error for tensors of both precisions."""


def autocast(facts: Facts, saved: SavedTensors, timeline: Timeline, window: range) -> ChangedModules | None:
    """Return what changes if all models run under autocast.

    In these cases the result is None:

    - No backward runs.
    - Some ops compute in half precision already, or an op would fail.
    - The program has compiled functions.
    - A backward builds a graph for another backward, or ops run under `torch.func`. Casts of weights live longer or
      shorter there. The estimate was wrong by a quarter in two such programs.
    - A kernel of the host takes much workspace. In half precision it may take another amount. (A backward of
      convolutions took 4.5 MiB for 0.5 MiB of results, with torch 2.13.)

    Args:
        facts: the facts of the capture.
        saved: the tensors that autograd saved.
        timeline: the ops and events of the capture.
        window: the ops that are simulated.
    """
    dtypes = {str(facts.strings[number]).partition("[")[0] for number in _shapes_in(facts, window)}
    if facts.capture.rows("compiled_calls") or not dtypes.isdisjoint(_HALF_DTYPES):
        return None
    if _has_transforms(facts) or _has_higher_derivatives(facts, saved):
        return None
    return _Simulation(facts, saved, timeline).run(window)


def _has_transforms(facts: Facts) -> bool:
    return any(_TRANSFORMS in file.replace("\\", "/") for file in facts.call_stacks.owner_of_file)


def _has_higher_derivatives(facts: Facts, saved: SavedTensors) -> bool:
    """Return True if autograd saved tensors of ops in a backward that computes no region again."""
    ops = saved.op[saved.op != NONE]
    in_backward = np.isin(facts.capture.tables["ops"]["phase"][ops], IN_BACKWARD)
    return bool((in_backward & ~facts.recomputes.is_recompute[ops]).any())


def _shapes_in(facts: Facts, window: range) -> list[int]:
    """Return the texts of dtype and shape of all storages that ops in a window made."""
    births = facts.capture.tables["births"]
    is_within = (births["op"] >= window.start) & (births["op"] < window.stop) & (births["shape"] != NONE)
    numbers: list[int] = np.unique(births["shape"][is_within]).tolist()
    return numbers


class _Copy(NamedTuple):
    """Bytes that a conversion adds from one event up to another; negative if a recorded tensor is smaller there."""

    nbytes: int
    start: int
    end: int


class _Simulation:
    """Follows the ops, and keeps which storages would be in half precision."""

    def __init__(self, facts: Facts, saved: SavedTensors, timeline: Timeline) -> None:
        self._facts, self._saved, self._timeline = facts, saved, timeline
        tables = facts.capture.tables
        self._ops, self._uses = tables["ops"], tables["uses"]
        self._shapes = tables["births"]["shape"]  # read once: each access decodes the column
        # lists of Python: with arrays for each op, 9,264 ops of a GPT took 1.0 s in place of 0.5 s
        self._uses_in_window: dict[int, list[tuple[int, int]]] = {}
        self._uses_by_op, self._uses_by_storage = Grouped(self._uses["op"]), Grouped(self._uses["storage"])
        self._packs_by_op, self._packs_by_storage = Grouped(saved.op), Grouped(saved.storage)
        self._in_backward = np.isin(self._ops["phase"], IN_BACKWARD)
        self._maker = maker_of_node(facts.capture)
        self._backward_of = Grouped(self._maker)
        self._is_lasting = facts.categories.category.isin(["parameter", "buffer"])
        roles = tables["roles"]
        self._of_gradient = set(roles["storage"][roles["role"] == _GRADIENT].tolist())
        full = _FULL_EVERYWHERE if is_host(facts.device) else _FULL_EVERYWHERE | _FULL_ON_ACCELERATORS
        self._kinds = [self._kind_of(str(name), full) for name in facts.capture.strings]
        # all ops of one call of attention have the same call stack
        is_attention = np.array([kind == "attention" for kind in self._kinds], dtype=bool)
        self._attention = set(self._ops["stack"][is_attention[self._ops["name"]]].tolist()) - {NONE}
        self._of_attention: set[int] = set()  # storages that its ops made
        self._half: set[int] = set()  # storages that would be in half precision
        self._is_float: dict[int, bool] = {}
        self._of_lower: set[int] = set()  # ops that compute in half precision
        self._copies: list[_Copy] = []
        self._spikes: list[Spike] = []
        # by parameter, the index of its copy in `_copies`; autocast caches it until the model's call is over
        self._cached: dict[int, int] = {}
        # by storage, the saved tensors in whose place autograd saves a converted copy
        self._unsaved: dict[int, list[int]] = {}
        meta = facts.capture.meta
        self._threads, self._dimensions_of = int(meta.get("threads", 1)), dimensions_of_storages(facts)
        # an estimate counts no workspace of kernels
        self._has_workspace = is_host(facts.device) and not meta.get("estimate", False)
        self._adds_in_float32 = self._has_workspace and not meta.get("computes_in_bfloat16", True)

    @staticmethod
    def _kind_of(name: str, full: frozenset[str]) -> str:
        op = name.removeprefix("aten.").partition(".")[0] if name.startswith("aten.") else ""
        for kind, ops in (
            ("lower", _LOWER),
            ("full", full),
            ("norm", _NORMS),
            ("same", _SAME_DTYPE),
            ("attention", {_ATTENTION}),
        ):
            if op in ops:
                return kind
        return ""

    def run(self, window: range) -> ChangedModules | None:
        """Return what changes in a window of ops."""
        rows = np.flatnonzero((self._uses["op"] >= window.start) & (self._uses["op"] < window.stop))
        columns = (self._uses[name][rows].tolist() for name in ("op", "storage", "access"))
        for op, storage, access in zip(*columns, strict=True):
            self._uses_in_window.setdefault(op, []).append((storage, access))
        calls = self._outermost_calls(window)
        regions = iter([region for region, _ in calls])
        region = next(regions, range(0))
        for op in window:
            while region and op >= region.stop:
                self._end_region(region)
                region = next(regions, range(0))
            if self._in_backward[op]:
                self._backward(op)
            elif self._ops["phase"][op] == FORWARD and not self._forward(op, op in region):
                return None
        self._end_region(region)
        if not self._trains() or (is_host(self._facts.device) and self._needs_workspace()):
            return None
        return ChangedModules(tuple(dict.fromkeys(module for _, module in calls)), self._changed())

    def _trains(self) -> bool:
        """Return True if a backward runs for an op that would compute in half precision.

        Only converted weights that require a gradient stay until the forward is over. Without a backward, a recording
        does not show which weights do.
        """
        return any(len(self._backward_of.within(op, op + 1)) for op in self._of_lower)

    def _outermost_calls(self, window: range) -> list[tuple[range, int]]:
        """Return the ops of each call of a module that no other module calls, and the module."""
        calls = self._facts.capture.tables["calls"]
        columns = (calls[name].tolist() for name in ("start_op", "end_op", "module"))
        found: list[tuple[range, int]] = []
        # of calls with the same ops, the outer one has the lower number: it began first
        for start, end, module in sorted(zip(*columns, strict=True), key=lambda call: (call[0], -call[1])):
            is_within = start in window and start < end and not self._in_backward[start]
            if is_within and (not found or start >= found[-1][0].stop):
                found.append((range(start, end), module))
        return found

    def _needs_workspace(self) -> bool:
        """Return True if an op that would compute in half precision, or its backward, takes much workspace."""
        allocations = self._facts.allocations
        rows = np.flatnonzero((allocations.storage == NONE) & allocations.counted & (allocations.op != NONE))
        rows = rows[allocations.nbytes[rows] > _LITTLE_RATIO * self._facts.curve.peak_increase_bytes]
        ops = allocations.op[rows]
        return not self._of_lower.isdisjoint([*ops.tolist(), *self._maker[ops].tolist()])

    def _floats(self, op: int, *accesses: int) -> list[int]:
        """Return the storages in float32 that an op reads, writes or makes; each once."""
        found = [each for each, access in self._uses_of(op) if access in accesses and self._is_float32(each)]
        return list(dict.fromkeys(found))

    def _uses_of(self, op: int) -> list[tuple[int, int]]:
        known = self._uses_in_window.get(op)
        if known is None:  # the op is outside the window, or has no storages
            rows = self._uses_by_op.within(op, op + 1)
            storages, accesses = (self._uses[name][rows].tolist() for name in ("storage", "access"))
            known = self._uses_in_window[op] = list(zip(storages, accesses, strict=True))
        return known

    def _is_float32(self, storage: int) -> bool:
        if storage not in self._is_float:
            number = int(self._shapes[storage])
            text = "" if number == NONE else str(self._facts.strings[number])
            # a tensor without dimensions does not decide the precision of a result
            self._is_float[storage] = text.startswith(_FLOAT) and text != f"{_FLOAT}]"
        return self._is_float[storage]

    def _nbytes(self, storage: int) -> int:
        return int(self._facts.allocations.nbytes[storage])

    def _forward(self, op: int, is_in_region: bool) -> bool:
        """Follow an op of the forward; return False if autocast would make it fail."""
        given, results = self._floats(op, _READ, _WRITE), self._floats(op, _OUTPUT)
        kind = self._kinds[self._ops["name"][op]]
        end_op = op + 1
        if is_in_region and int(self._ops["stack"][op]) in self._attention:
            kind, end_op = "full", self._end_of_attention(op)
            self._of_attention.update(results)
        else:  # the result of attention is converted to the precision of its inputs
            self._half.update(self._of_attention.intersection(given))
        halves = [each for each in given if each in self._half]
        if is_in_region and kind == "lower":
            self._of_lower.add(op)
            for storage in given:
                if storage not in self._half:
                    self._convert(op, storage, self._nbytes(storage) // 2, end_op)
            self._half.update(results)
            self._add_float32_sums(op, results)
            self._add_copies_of_convolution(op, given, results)
        elif is_in_region and kind == "full":
            most_bytes = max(map(self._nbytes, results), default=0)  # an input may be a part of its storage
            for storage in halves:
                self._convert(op, storage, min(self._nbytes(storage), most_bytes), end_op)
        elif halves:
            if kind == "same" and len(halves) < len(given):
                return False
            if kind == "norm":
                width = max(map(self._nbytes, halves))
                self._half.update(each for each in results if self._nbytes(each) >= width)
            elif len(halves) == len(given):
                self._half.update(results)
            else:
                self._add_copies_of_mixed_inputs(op, given, halves, results)
                self._convert_gradients(op, halves)
        return True

    def _end_of_attention(self, op: int) -> int:
        """Return the op after the last one of a call of attention, which keeps its converted inputs until then."""
        stacks = self._ops["stack"]
        while op + 1 < len(stacks) and stacks[op + 1] == stacks[op]:
            op += 1
        return op + 1

    def _convert(self, op: int, storage: int, nbytes: int, end_op: int) -> None:
        """Add the converted copy of an input, and let autograd save it in place of the input."""
        packs = self._packs_by_op.within(op, op + 1)
        packs = packs[self._saved.storage[packs] == storage]
        start, end = self._timeline.event_of(op), self._timeline.event_of(end_op)
        if len(packs):
            self._unsaved.setdefault(storage, []).extend(packs.tolist())
            end = max(end, self._released(packs))
        if storage in self._cached:
            known = self._cached[storage]
            self._copies[known] = self._copies[known]._replace(end=max(end, self._copies[known].end))
            return
        self._copies.append(_Copy(nbytes, start, end))
        if self._is_lasting[storage]:
            self._cached[storage] = len(self._copies) - 1

    def _end_region(self, region: range) -> None:
        """Free the converted parameters that only autocast's cache keeps.

        Args:
            region: the ops of an outermost call of a module. Autocast is on in such calls.
        """
        end = self._timeline.event_of(region.stop)
        for known in self._cached.values():
            self._copies[known] = self._copies[known]._replace(end=max(end, self._copies[known].end))
        self._cached.clear()

    def _convert_gradients(self, op: int, halves: list[int]) -> None:
        """Add the converted gradients of an op with inputs of both precisions, until the backward has read them."""
        for storage in halves:
            maker = int(self._facts.allocations.op[storage])
            ops = (
                self._backward_of.within(maker, maker + 1) if maker != NONE else np.array([], dtype=np.int64)
            )
            # if the backward of this op runs no op, as for an addition, `_backward` does not see the gradient
            if len(ops) and len(self._backward_of.within(op, op + 1)) == 0:
                start = self._timeline.event_of(int(ops.min()))
                end = int(self._timeline.events_after_nodes(ops[-1:])[0])
                self._copies.append(_Copy(self._nbytes(storage) // 2, start, end))

    def _released(self, packs: IntArray) -> int:
        """Return the event at which autograd lets go of some saved tensors."""
        released = self._saved.released_op[packs]
        return self._timeline.event_of(LAST if (released == NONE).any() else int(released.max()))

    def _backward(self, op: int) -> None:
        """Follow an op of the backward: it reads gradients and saved tensors, and makes gradients."""
        results = self._floats(op, _OUTPUT)
        if not results:
            return
        maker = int(self._maker[op])
        given = self._floats(op, _READ, _WRITE)
        if maker == NONE:
            if given and all(each in self._half for each in given):
                self._half.update(results)
            return
        packs = self._packs_by_op.within(maker, maker + 1)
        of_node = set(self._saved.storage[packs].tolist())
        gradient_is_half = any(each in self._half for each in self._floats(maker, _OUTPUT))
        is_lower = maker in self._of_lower

        def is_half(storage: int) -> bool:
            if storage in of_node:
                return is_lower or storage in self._half
            made_by = int(self._facts.allocations.op[storage])
            is_of_node = made_by != NONE and self._maker[made_by] == maker
            return storage in self._half if is_of_node else gradient_is_half

        is_norm = self._kinds[self._ops["name"][maker]] == "norm"
        inputs = self._floats(maker, _READ)
        if is_norm:
            makes_half = gradient_is_half
        elif given:
            makes_half = all(map(is_half, given))
        else:  # the gradient of a number, such as a mean, is expanded to the precision of its input
            makes_half = bool(inputs) and all(each in self._half for each in inputs)
        if not makes_half:
            if not is_norm:
                self._add_copies_of_mixed_inputs(op, given, list(filter(is_half, given)), results)
                self._convert_results(op, inputs, results)
            return
        self._add_float32_sums(op, results)
        if is_lower:
            self._add_copies_of_convolution(op, given, results)
        for storage in results:
            if not self._is_of_full_input(storage, inputs):
                self._half.add(storage)
            elif is_lower:  # the next node converts it: until then it takes half of its bytes
                nbytes, end = self._nbytes(storage), int(self._timeline.events_after_nodes(np.array([op]))[0])
                self._copies.append(_Copy(nbytes // 2 - nbytes, self._timeline.event_of(op), end))
                self._spikes.append(Spike(end, nbytes))

    def _name(self, op: int) -> str:
        return str(self._facts.strings[self._ops["name"][op]]).removeprefix("aten.").partition(".")[0]

    def _add_float32_sums(self, op: int, results: list[int]) -> None:
        """Add the workspace of a matrix product that adds up in float32."""
        name = self._name(op)
        if not (self._adds_in_float32 and results and name in _PRODUCTS):
            return
        nbytes = self._nbytes(results[0])
        if name in _PRODUCTS_OF_BATCHES:
            products = max([1, *self._dimensions_of(results[0])[:1]])
            nbytes = nbytes // products * min(self._threads, products)
        self._spikes.append(Spike(self._timeline.event_of(op + 1), nbytes + _ALIGNMENT_BYTES))

    def _add_copies_of_convolution(self, op: int, given: list[int], results: list[int]) -> None:
        """Add the copies that a convolution makes of its inputs and result, or its backward of its inputs."""
        if not (self._has_workspace and results and self._name(op) in _CONVOLUTIONS):
            return
        copied = given if self._in_backward[op] else [*given, *results]
        nbytes = sum(self._nbytes(storage) // 2 for storage in copied)
        self._spikes.append(Spike(self._event_with(results), nbytes))

    def _add_copies_of_mixed_inputs(
        self, op: int, given: list[int], halves: list[int], results: list[int]
    ) -> None:
        """Add the workspace of an op with inputs of both precisions, which converts those in half precision."""
        if not (self._has_workspace and 0 < len(halves) < len(given)) or self._name(op) in _WITHOUT_COPIES:
            return
        # an input may be a part of its storage
        most_bytes = max(map(self._nbytes, results or given))
        nbytes = sum(min(self._nbytes(storage), most_bytes) for storage in halves)
        # an op in place, or one with a result of another type, has no result here
        event = self._event_with(results) if results else self._timeline.event_of(op)
        self._spikes.append(Spike(event, nbytes))

    def _event_with(self, results: list[int]) -> int:
        """Return the event before which some results are alive for the first time."""
        return int(self._facts.allocations.birth_event[results].max()) + 1

    def _convert_results(self, op: int, inputs: list[int], results: list[int]) -> None:
        """Let autograd convert the float32 gradients of half-precision inputs when their node has run."""
        allocations = self._facts.allocations
        node_end = int(self._timeline.events_after_nodes(np.array([op]))[0])
        for storage in results:
            nbytes, death = self._nbytes(storage), int(allocations.death_event[storage])
            are_half = [each in self._half for each in inputs if self._nbytes(each) == nbytes]
            if not any(are_half) or storage in self._of_gradient or NONE < death <= node_end:
                continue
            self._copies.append(_Copy(nbytes // 2, int(allocations.birth_event[storage]), node_end))
            if all(are_half):
                self._copies.append(_Copy(nbytes // 2 - nbytes, node_end, death))

    def _is_of_full_input(self, gradient: int, inputs: list[int]) -> bool:
        """Return True if a gradient is that of an input in float32."""
        if gradient in self._of_gradient:
            return True
        nbytes = self._nbytes(gradient)
        alike = [each for each in inputs if self._nbytes(each) == nbytes]
        return bool(alike) and not any(each in self._half for each in alike)

    def _changed(self) -> ChangedBytes:
        allocations, timeline = self._facts.allocations, self._timeline
        half = np.array(sorted(self._half), dtype=np.int64)
        half = half[allocations.counted[half]]
        nbytes = allocations.nbytes // 2
        spared = timeline.bytes_within(
            nbytes[half], allocations.birth_event[half], allocations.death_event[half]
        )
        for storage, packs in self._unsaved.items():
            gap = self._gap(storage, np.array(packs))
            if gap is not None:
                nbytes_then = self._nbytes(storage) // (2 if storage in self._half else 1)
                spared += timeline.bytes_within(np.array([nbytes_then]), *(np.array([each]) for each in gap))
        if self._copies:
            amounts, starts, ends = np.array(self._copies, dtype=np.int64).T
            spared -= timeline.bytes_within(amounts, starts, ends)
        return ChangedBytes(spared, tuple(self._spikes))

    def _gap(self, storage: int, packs: IntArray) -> tuple[int, int] | None:
        """Return the events between which only some saved tensors kept a storage; None if there are none."""
        death = int(self._facts.allocations.death_event[storage])
        if self._is_lasting[storage] or not self._facts.allocations.counted[storage] or death == NONE:
            return None
        used = self._uses["op"][self._uses_by_storage.within(storage, storage + 1)]
        made = int(self._facts.allocations.op[storage])
        last = int(used[~self._in_backward[used]].max(initial=made)) + 1
        others = np.setdiff1d(self._packs_by_storage.within(storage, storage + 1), packs)
        start = max(self._timeline.event_of(last), self._released(others) if len(others) else 0)
        is_freed_by_autograd = death <= self._timeline.event_of(int(self._saved.released_op[packs].max()) + 1)
        return (start, death) if start < death and is_freed_by_autograd else None
