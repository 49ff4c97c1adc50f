"""Decide whether the parts of a batch train like the whole batch: whether the samples are independent of each other.

The loss of a batch must be a mean over its samples. Then the gradients of the parts add up to those of the batch. A
recording shows most of the exceptions:

1. An op combines each sample with the others, as a contrastive loss does with `z @ z.T` (`mixes_samples`).
2. The loss is not linear in a mean over the batch. The product of two means is an example (`BatchMeans`). An op that
   memwatch does not know counts as not linear if its result has no batch dimension.
3. The loss has a sum over the batch that no op divides (`BatchMeans.is_sum`).
4. The loss is a mean over the values that a mask or an index picks, such as the valid tokens. The divisor is their
   number in the whole batch (`_Picks`).
5. The model writes a buffer or parameter in its forward and also reads it, such as a queue of past features. Later
   parts would read the values of earlier parts (`state_of_forward`).
6. A forward reads a result of an earlier one, such as the state of a recurrent network (`CarriedResults`).
7. A cross entropy has class weights, and divides by the sum of the weights of all targets in the batch
   (`weighs_classes`). With `reduction="none"` it does not divide.
8. An op combines values along the batch dimension, as `targets.softmax(0)` does. Or an index puts the samples into
   another order, as in mixup (`_Orders`).

The recording has the dimension along which an op works, and the `reduction` of torch's losses (`_Numbers`). It has no
values of tensors. So memwatch does not know how many targets a cross entropy ignores as padding. The code that memwatch
prints for the split counts the targets of each part. If the program reads a number that comes from the whole batch
(`item()`), the loss may depend on it. The split then asks you to decide this.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.facts.forward_ops import maker_of_node
from memwatch.capture.schema import ACCESSES, BACKWARD, FORWARD, IN_BACKWARD, NONE, OF_REDUCTION, OPTIMIZER
from memwatch.kinds.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts

LEADING: Final = 2
"""The batch is one of so many leading dimensions: in recurrent networks, time is the first dimension."""

_INPUT: Final = ROLES.index("input")
_WRITE, _OUTPUT = ACCESSES.index("write"), ACCESSES.index("output")
_STATES: Final = (ROLES.index("parameter"), ROLES.index("buffer"))

MATRIX_PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv")
_PRODUCTS: Final = (*MATRIX_PRODUCTS, "_euclidean_dist", "_cdist_forward")
"""Ops that combine each row of one matrix with each row or column of another (torch 2.13). `torch.einsum` calls `bmm`
for two matrices too."""
_ALONG_ONE_DIMENSION: Final = frozenset((
    "_log_softmax", "_softmax", "argsort", "cummax", "cummin", "cumprod", "cumsum", "flip", "log_softmax",
    "logcumsumexp", "roll", "softmax", "sort", "topk",
))  # fmt: skip
"""Ops that combine the values along one dimension and keep it. `mixes_samples` does not know which one."""
_RECURRENT_LAYERS: Final = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
"""Ops that run a layer over a sequence. Its first dimension is the time."""
_PAIRED: Final = (
    "sub",
    "add",
    "mul",
    "div",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "maximum",
    "minimum",
    "logical_and",
)
"""Ops that combine values at the same place, after they broadcast their arguments."""

_NLL: Final = ("nll_loss_forward", "nll_loss2d_forward")
"""The ops of a cross entropy whose targets are classes."""
_SUMS: Final = frozenset((
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "dot", "huber_loss", "l1_loss", "mean", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss_forward", "nanmean", "nansum", "smooth_l1_loss", "soft_margin_loss",
    "sum", *_NLL,
))  # fmt: skip
"""Ops that add up values of the samples, or compute the mean."""
_PLAIN_SUMS: Final = ("dot", "nansum", "sum")
"""The ops of `_SUMS` that never divide by the number of samples."""
_DIVIDING: Final = ("div", "mean", "nanmean")
_OTHER_REDUCTIONS: Final = frozenset((
    "amax", "amin", "linalg_vector_norm", "logsumexp", "max", "median", "min", "norm", "prod", "std", "std_mean", "var",
    "var_mean",
))  # fmt: skip
"""Ops that combine the values of the samples, and not by a sum."""
_MASKS: Final = ("bool", "uint8")
"""Types of the masks that pick values."""
_COUNTS: Final = frozenset(("_unique", "_unique2", "bincount", "histc", "unique_consecutive", "unique_dim"))
"""Ops that count equal values. Their result has no batch dimension, even if a size of it is the batch size."""
_PICKS: Final = frozenset(("index", "index_select", "masked_select", "nonzero", "take"))
"""Ops that take some of the values."""
_JOINING: Final = frozenset(("cat", "stack"))
"""Ops that join tensors. Each of these tensors may have values that another op has picked."""
_PLACED_BY_INTEGERS: Final = frozenset(("_grouped_mm", "embedding", "gather", "index", "index_select"))
"""Ops whose integer arguments only choose rows. `_grouped_mm` finds the tokens of each expert by their counts."""
_LINEAR: Final = frozenset((
    "_to_copy", "_unsafe_view", "add", "alias", "cat", "clone", "copy", "detach", "diagonal", "div", "expand", "index",
    "lift_fresh", "mean", "mul", "nan_to_num", "neg", "permute", "reshape", "rsub", "select", "slice", "squeeze",
    "stack", "sub", "sum", "t", "transpose", "unsqueeze", "view", "where",
))  # fmt: skip
"""Ops that are linear in a mean: they scale it, add a value to it, copy it or move it. `mul` and `div` are linear if
the other value does not depend on the batch. `nan_to_num` and `where` count too: they guard against losses that are
NaN."""
_SHIFTING: Final = ("add", "sub")
"""Ops that only add a value to a loss."""
_WITHOUT_VALUES: Final = frozenset((
    "_local_scalar_dense", "empty_like", "full_like", "new_empty", "new_full", "new_ones", "new_zeros", "ones_like",
    "rand_like", "randn_like", "zeros_like",
))  # fmt: skip
"""Ops whose result does not depend on the values of their argument."""

_CONSTANTS: Final = frozenset((
    "arange", "eye", "full", "linspace", "logspace", "ones", "scalar_tensor", "tril_indices", "triu_indices", "zeros",
))  # fmt: skip
"""Ops that make values from nothing but numbers of the program, such as the positions of tokens."""
_RANDOM: Final = frozenset((
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "random", "uniform",
))  # fmt: skip
"""Ops that draw numbers, also over constants: a program may make its data so."""
_PLACING: Final = (
    "gather", "index", "narrow", "renorm", "scatter", "select", "slice", "split", "squeeze", "unsqueeze",
)  # fmt: skip
"""Prefixes of the names of ops with a dimension that combine no values along it. They move values, or change each row
alone."""
_PUT_BACK: Final = ("index_put", "_index_put_impl", "index_add", "index_copy", "scatter")
"""Prefixes of the names of ops that write rows to the places that an index gives."""
_SUM: Final = 2
"""Torch's number of `reduction="sum"`."""
REDUCED_BY_MEAN: Final = 1
"""Torch's number of `reduction="mean"`."""
_ITEM: Final = "_local_scalar_dense"
"""The op of `tensor.item()`."""
_AS_THE_BATCH: Final = -1
"""The order of rows that no index has changed."""

_NORMS: Final = ("BatchNorm", "InstanceNorm")
"""Parts of the names of torch's classes whose running statistics are not read in training. If the program uses batch
norm, the split says that the statistics of each part differ."""
_HARMLESS_WRITES: Final = ("batch_norm", "embedding_renorm_")
"""Parts of the names of ops that write running statistics, or that scale rows of an embedding down to a largest norm. A
second scaling changes nothing."""
_MOST_OPS: Final = 10_000
"""Ops that are followed in a forward that writes its own state, and storages that are followed back from a result. Most
programs have fewer in a step."""


class Obstacle(Enum):
    """A reason why the parts of a batch would train differently; the value is its key in `memwatch.words.ways`."""

    MIXED = "mixed"
    NOT_LINEAR = "not linear"
    SUM = "sum"
    PICKED = "picked"
    COUNTED = "counted"
    WEIGHED = "weighed"
    CARRIED = "carried"
    ROLLOUT = "rollout"
    RETAINED = "retained"
    CREATED = "created"
    OPTIMIZERS = "optimizers"
    CUT_OFF = "cut off"
    PROCESSES = "processes"
    INPUTS = "inputs"
    LATER_INPUTS = "later inputs"
    LIBRARY = "library"


class Refusal(NamedTuple):
    """Why a batch is not split: the obstacle, and the op that shows it; -1 for none."""

    obstacle: Obstacle
    op: int = NONE


def base_of(name: str) -> str:
    """Return the name of an op without its namespace, its overload and the `_` of an op in place: `add`."""
    base = name.split(".")[1] if name.count(".") > 1 else name
    return base[:-1] if base.endswith("_") else base


def mixes_samples(
    base: str,
    given: list[list[int]],
    results: list[list[int]],
    *,
    derived: list[bool],
    batch: int,
    is_differentiated: bool,
) -> bool:
    """Return True if an op combines each sample with the others.

    Three products do this, for example. The logits `z @ z.T` of a contrastive loss have a row and a column for each
    sample. The covariance `z.T @ z` sums over the samples. If the samples are the nodes of a graph, the product of the
    adjacency matrix with the features sums over the nodes.

    Args:
        base: the op, as `mm`.
        given: the sizes of its arguments, in their order.
        results: the sizes of its results.
        derived: for each argument, whether it comes from the batch.
        batch: the number of samples.
        is_differentiated: whether the backward of the op ran.
    """
    if all(derived):
        if base in _PRODUCTS:
            # a result `[batch, n, m]` has one product for each sample, so it combines no samples
            unstacked = [shape for shape in results if len(shape) < 3 or shape[0] == 1 or shape[0] % batch]
            if any(sum(size > 1 for size in shape) <= 2 for shape in unstacked):  # a matrix
                return True
        elif base in _PAIRED and given:
            # broadcasting `[n, 1]` with `[1, n]` gives a value for each pair of samples
            largest = max(map(math.prod, given))
            leading = {shape[0] for shape in given if shape}
            return any(
                shape.count(size) > 1 and math.prod(shape) >= size * largest
                for size in leading - {1}
                for shape in results
            )
    if not results:
        return False
    shape = results[0]
    if base in _ALONG_ONE_DIMENSION:
        # without a backward it only finds an order of the samples, as for packed sequences
        shape = given[0] if base == "topk" and given else shape
        return is_differentiated and [size % batch for size in shape if size > 1] == [0]
    if base.startswith(
        "_scaled_dot_product"
    ):  # attention between samples: the batch stands where the time should
        return len(shape) > 2 and shape[0] % batch != 0 and shape[-2] % batch == 0
    if (
        base in _RECURRENT_LAYERS and given and len(given[0]) == 3
    ):  # the layer takes the samples for steps in time
        return given[0][0] % batch == 0 and given[0][1] % batch != 0
    return base in MATRIX_PRODUCTS and _sums_over_samples(given, shape, derived, batch)


def _sums_over_samples(given: list[list[int]], result: list[int], derived: list[bool], batch: int) -> bool:
    """Return True if a product of two matrices, or of two stacks of matrices, sums over the samples.

    An argument's sizes are those of its storage. The argument itself may be transposed or flattened. If the product
    sums over the samples, the size of the summed dimension is a multiple of the batch.
    """
    if len(given) < 2:
        return False
    first, second = given[-2:]
    is_first, is_second = derived[-2:]
    has_batch = [
        is_derived and _has_multiple(shape, batch)
        for shape, is_derived in ((first, is_first), (second, is_second))
    ]
    if len(result) == 1:  # a matrix and a vector
        return has_batch[1] and len(second) == 1
    # `t[:, None]` has the storage of the vector `t`: a column, or a row if it is transposed
    first, second = (shape if len(shape) > 1 else [*shape, 1] for shape in (first, second))
    stack, rows, columns = math.prod(result[:-2]), result[-2], result[-1]
    if stack > 1 and stack % batch == 0:
        return False  # one product for each sample
    if all(has_batch):
        return rows % batch == columns % batch == 0  # a value for each pair of samples
    if stack > 1:
        return False
    if has_batch[0]:  # x @ w, or x.T @ w, which sums over the samples
        summed = math.prod(second) // columns
        if _lies_as_matrix(first, rows, summed):
            return False
        return rows == first[-1] and summed == math.prod(first[:-1]) and summed % batch == 0
    if has_batch[1]:  # w @ x, which sums over the samples, or w @ x.T
        if columns == second[-1]:
            return math.prod(second[:-1]) % batch == 0
        return columns != math.prod(second[:-1]) and columns % batch != 0
    return False


def _lies_as_matrix(shape: list[int], rows: int, columns: int) -> bool:
    """Return True if a storage of these sizes is the matrix `[rows, columns]` without a transposition.

    A batch of 32 images `[32, 3, 32, 32]`, flattened for a linear layer, also has the sizes of a transposed matrix,
    because an image is as wide as the batch.
    """
    return any(
        math.prod(shape[:place]) == rows and math.prod(shape[place:]) == columns
        for place in range(1, len(shape))
    )


def _has_multiple(dimensions: list[int], batch: int) -> bool:
    """Return True if a leading dimension may be the batch."""
    return any(size and size % batch == 0 for size in dimensions[:LEADING])


class _Along(NamedTuple):
    """A dimension along which an op works on its first tensor, as a row of the table `numbers` has it.

    Attributes:
        dimension: the dimension, from 0.
        dimensions: the number of dimensions of the tensor.
        size: the size of the tensor in the dimension.
        stride: its stride in the dimension (elements).
    """

    dimension: int
    dimensions: int
    size: int
    stride: int

    def crosses_samples(self, shape: list[int], place: int, batch: int) -> bool | None:
        """Return whether steps along the dimension lead from one sample to another; None if the sizes do not show it.

        Args:
            shape: the sizes of the storage, as it was made. The tensor may be a view of it.
            place: the dimension of the batch among them.
            batch: the number of samples.
        """
        if self.size <= 1 or not self.stride or not all(shape):
            return False
        # a slice, because a damaged file may have any number
        if self.dimensions == len(shape) and shape[self.dimension : self.dimension + 1] == [self.size]:
            return self.dimension == place
        row = math.prod(shape[place + 1 :])
        reach = self.stride * (self.size - 1)
        if reach < row:
            return False
        if shape[place] == batch:
            return self.stride % (row * batch) != 0
        # The batch is merged with another dimension, as in the result of nn.Linear. Either of them may come first.
        others = shape[place] // batch
        is_across = reach >= row * others, self.stride % (row * batch) != 0
        if is_across[0] == is_across[1]:
            return is_across[0]
        if self.size % batch:
            return False
        return True if others % batch else None


class _Numbers:
    """The dimensions and reductions among the arguments of ops. A capture of an earlier memwatch does not have them."""

    def __init__(self, facts: Facts) -> None:
        table = facts.capture.tables["numbers"]
        self._along: dict[int, list[_Along]] = {}
        self._reduction: dict[int, int] = {}
        columns = (
            table[name].tolist() for name in ("op", "argument", "value", "dimensions", "size", "stride")
        )
        for op, argument, value, *rest in zip(*columns, strict=True):
            if argument == OF_REDUCTION:
                self._reduction[op] = value
            else:
                self._along.setdefault(op, []).append(_Along(value, *rest))

    def along(self, op: int) -> list[_Along]:
        """Return the dimensions along which an op works; none if the recording does not show them."""
        return self._along.get(op, [])

    def reduction(self, op: int) -> int:
        """Return torch's number of the `reduction` of a loss; -1 if the op has none."""
        return self._reduction.get(op, NONE)


class _Orders:
    """Follows the order of the samples, and finds ops that combine rows of different samples.

    An index may put the samples into another order, as the permutation of mixup does. An op that reads tensors in both
    orders combines each sample with another one. A tensor that no data went into, such as noise, has no order.

    Args:
        dimensions: a function from a storage to its sizes.
        has_rows: a function that returns True for a storage with a row for each sample.
        is_integer: a function that returns True for a storage of integers.
    """

    def __init__(
        self,
        dimensions: Callable[[int], list[int]],
        has_rows: Callable[[int], bool],
        is_integer: Callable[[int], bool],
    ) -> None:
        self._dimensions, self._has_rows, self._is_integer = dimensions, has_rows, is_integer
        self._order_of: dict[int, int] = {}  # by storage, the storage of the index
        self._made_by: dict[int, int] = {}  # by storage of the index, the op that changed the order

    def mixing_op(
        self, op: int, base: str, given: list[int], changed: list[int], derived: Collection[int]
    ) -> int:
        """Return the op that changed the order of the samples, if an op reads tensors in two orders; -1 if not.

        Args:
            op: its number.
            base: its name.
            given: the storages that it reads.
            changed: those that it makes or writes.
            derived: storages that come from the batch.
        """
        orders = {
            self._order_of.get(each, _AS_THE_BATCH)
            for each in given
            if (each in self._order_of or each in derived) and self._has_rows(each)
        }
        found = NONE
        if base in _PICKS or base == "gather":
            order = _AS_THE_BATCH
            if self._reorders(given, changed) and orders <= {_AS_THE_BATCH}:
                self._order_of.setdefault(given[0], _AS_THE_BATCH)
                order = given[1]
                self._made_by[order] = op
            # a second index may restore the order
        elif base.startswith(_PUT_BACK):
            order = _AS_THE_BATCH
        elif not orders or base in _JOINING:
            return NONE
        else:
            order = next(iter(orders)) if len(orders) == 1 else _AS_THE_BATCH
            if len(orders) > 1:
                found = max(self._made_by.get(each, NONE) for each in orders)
        self._order_of.update((each, order) for each in changed if self._has_rows(each))
        return found

    def _reorders(self, given: list[int], changed: list[int]) -> bool:
        """Return True if an op picks as many rows of a storage by one index as the storage has."""
        if len(given) != 2 or len(changed) != 1 or not self._is_integer(given[1]):
            return False
        shape, index, left = map(self._dimensions, (given[0], given[1], changed[0]))
        if len(index) != 1 or not shape or not left or left[0] != index[0] or not self._has_rows(given[0]):
            return False
        if shape[0] != index[0]:  # the batch is merged with another dimension, as in the result of nn.Linear
            return self._has_rows(given[1]) and math.prod(left) == math.prod(shape)
        return shape[0] not in shape[1:LEADING]


def _combines(base: str) -> bool:
    """Return True if an op with a dimension among its arguments combines the values along it."""
    return not base.startswith(_PLACING) and base not in _WITHOUT_VALUES


class BatchMeans:
    """Follows the means over the batch through a forward, and finds losses that are not linear in them.

    Only an op whose backward ran counts: a metric that the program prints may be any function of the loss.

    Args:
        facts: what the capture shows.
        batch: the number of samples.
        dimensions: a function from a storage to its sizes.
        passes: the number of forwards with a backward.

    Attributes:
        prepared_by: an op that reduces data of the whole batch before the program calls its model, and whose result
            reaches the loss; -1 for none. The recording does not show whether the parts get the same result.
        read_by: an op that gives a number of the whole batch to the program before a backward (`item()`); -1 for none.
            The recording does not show whether the loss depends on the number.
        has_other_terms: True if the loss has terms beside one cross entropy, or cross entropies with other targets.
    """

    def __init__(
        self, facts: Facts, batch: int, dimensions: Callable[[int], list[int]], passes: int = 1
    ) -> None:
        self._batch, self._dimensions = batch, dimensions
        self.prepared_by = NONE
        self._prepared: dict[int, int] = {}  # by storage, the reduction that it comes from
        self._passes, self._pass = passes, 0
        ops = facts.capture.tables["ops"]
        makers = maker_of_node(facts.capture)
        self._is_differentiated = np.zeros(len(makers), dtype=bool)
        self._is_differentiated[makers[makers != NONE]] = True
        self._places = list(zip(ops["stack"].tolist(), ops["module"].tolist(), strict=True))
        self._classes = facts.places.module_tree.classes
        self._entropies: set[tuple[int, int]] = set()  # calls of cross_entropy
        self._means: set[int] = set()  # storages
        self._mixed: dict[int, Refusal] = {}
        # results that add a value of the whole batch to the samples, such as targets minus their mean. Adding leaves
        # the gradients of the samples as they are.
        self._shifted: set[int] = set()
        self._sums: set[int] = set()  # sums over the batch that no op has divided
        # values that come from data of the whole batch, such as the number of valid tokens
        self._counts: set[int] = set()
        self._has_begun = False  # whether the forward of this pass has read the batch
        self._strings, self._shapes = facts.strings, facts.capture.tables["births"]["shape"]
        self._picks = _Picks(batch, dimensions, self._is_mask)
        self._orders = _Orders(dimensions, self._has_rows, self._is_integer)
        self._numbers = _Numbers(facts)
        self._constants: set[int] = set()  # values that are the same for any data
        self._whole: set[int] = set()  # as `_counts`, but also the values from before the forward has begun
        self.read_by = NONE
        self.has_other_terms = False
        self._targets: set[int] = set()  # of cross entropies
        self._other_terms: set[int] = set()  # sums and means over the batch outside cross entropies
        phase = ops["phase"]
        is_backward = phase == BACKWARD
        turns = np.flatnonzero(np.isin(phase, (BACKWARD, OPTIMIZER)))
        # for each op, the next op of a backward or an optimizer step
        following = np.append(turns, -1)[np.searchsorted(turns, np.arange(len(phase)))]
        self._precedes_backward = (following >= 0) & is_backward[following]
        begins = np.flatnonzero(~is_backward[:-1] & is_backward[1:])
        begins = begins[[base_of(str(facts.strings[name])) == "ones_like" for name in ops["name"][begins]]]
        uses = facts.capture.tables["uses"]
        # the losses: a backward begins with ones_like(loss)
        self._losses = set(
            uses["storage"][np.isin(uses["op"], begins) & (uses["access"] != _OUTPUT)].tolist()
        )
        self._prepared_orders: set[int] = set()

    def refusal(
        self, op: int, base: str, given: list[int], changed: list[int], derived: Collection[int]
    ) -> Refusal | None:
        """Return why an op of the forward makes the parts of the batch train differently; None if it does not.

        Call this for each op in turn: it also notes which results are means, sums and picked values.

        Args:
            op: its number.
            base: its name, as `add`.
            given: the storages that it reads, and those that it writes in place.
            changed: those that it makes or writes, without parameters and buffers.
            derived: storages that come from the batch.
        """
        self._has_begun |= self.is_differentiated(op)
        is_mean_of_picks = self._picks.are_reduced(base, given, changed)
        if base == _ITEM and given:
            self._note_number(op, given[0], is_of_batch=self._has_begun and not self._has_rows(given[0]))
        if base in _WITHOUT_VALUES:
            return None
        is_along = self._is_along_samples(op, given[0]) if given else None
        reordered_by = self._orders.mixing_op(op, base, given, changed, derived)
        if base in _NLL:
            self._entropies.add(self._places[op])
            targets = given[1:2]
            self.has_other_terms |= bool(self._targets) and not self._targets.issuperset(targets)
            self._targets.update(targets)
        if self.prepared_by == NONE and self.is_differentiated(op):
            self.prepared_by = next((self._prepared[each] for each in given if each in self._prepared), NONE)
        if base in _PLACED_BY_INTEGERS or base.startswith(_PUT_BACK):
            given = given[:1] + [
                each for each in given[1:] if each not in self._mixed or not self._is_integer(each)
            ]
        found = next((self._mixed[each] for each in given if each in self._mixed), None)
        if found is None and is_mean_of_picks:
            found = Refusal(Obstacle.PICKED, op)
        if found is None and reordered_by != NONE:
            if reordered_by in self._prepared_orders or not self._has_begun:
                self._prepared.update(dict.fromkeys(changed, reordered_by))
            else:
                found = Refusal(Obstacle.MIXED, reordered_by)
        if found is None and is_along and _combines(base) and base not in _SUMS | _OTHER_REDUCTIONS:
            found = Refusal(Obstacle.MIXED, op)
        means = [each for each in given if each in self._means]
        samples = [each for each in given if each in derived and each not in self._means]
        is_sum_scaled = not self._sums.isdisjoint(given) and not self._prepared.keys().isdisjoint(given)
        if found is None and (
            self._is_scaled_by_count(op, base, given, changed, derived)
            # The program divides a sum by a number of the whole batch, and each part would do this too. The printed
            # code would divide it by the number of parts once more.
            or (is_sum_scaled and base not in _SHIFTING)
        ):
            found = Refusal(Obstacle.COUNTED, op)
        if means and found is None:
            if self._is_other_than_linear(op, base, given, len(means)) or any(map(self._has_rows, samples)):
                found = Refusal(Obstacle.NOT_LINEAR, op)
            self._follow_sums(base, given, changed)
        elif samples and found is None:
            if self._is_unknown_reduction(base, samples, changed, is_along):
                found = Refusal(Obstacle.NOT_LINEAR, op)
            elif base in _SUMS:
                # a cross entropy has a second result, the sum of the weights, also if it has a loss for each sample
                reduced = [
                    each
                    for each in changed
                    if (self._is_reduced(samples, each) if is_along is None else is_along)
                ]
                self._means.update(reduced)
                if not self._is_in_entropy(op):
                    self._other_terms.update(reduced)
                if base in _PLAIN_SUMS or self._numbers.reduction(op) == _SUM:
                    self._sums.update(reduced)
        if self.is_differentiated(op):
            # the backward of a sum is only a view, so look at the sums that an op with a backward reads
            self.has_other_terms |= not self._other_terms.isdisjoint([*given, *changed])
        if found is not None:
            self._mixed.update(dict.fromkeys(changed, found))
        elif means:
            self._means.update(changed)
        return found if self.is_differentiated(op) else None

    def follow_data(self, op: int, base: str, given: list[int], changed: list[int]) -> None:
        """Follow an op of the forward that reads data only, such as targets and masks.

        Args:
            op: its number.
            base: its name.
            given: the storages that it reads.
            changed: those that it makes or writes.
        """
        self._picks.are_reduced(base, given, changed)
        if base == _ITEM and given:  # a sparse tensor has no storage
            self._note_number(op, given[0], is_of_batch=given[0] in self._whole)
        if base in _WITHOUT_VALUES:
            return
        reordered_by = self._orders.mixing_op(op, base, given, changed, ())
        if not self._has_begun:
            self._prepared_orders.add(op)
        is_constant = bool(given) and self._constants.issuperset(given) and base not in _RANDOM
        if base in _CONSTANTS or is_constant:
            self._constants.update(changed)
        else:
            self._constants.difference_update(changed)
        if base in _PLACED_BY_INTEGERS:
            given = given[:1] + [
                each for each in given[1:] if each not in self._counts or not self._is_integer(each)
            ]
        # Positions have a row for each sample only by chance, where a sequence has as many tokens as a batch samples.
        with_rows = [
            each
            for each in given
            if each not in self._counts and each not in self._constants and self._has_rows(each)
        ]
        is_count = not self._counts.isdisjoint(given)
        is_reduced = reordered_by != NONE or self._combines_data(op, base, given, changed, with_rows)
        if is_reduced or not self._whole.isdisjoint(given):
            self._whole.update(changed)
        prepared = next((self._prepared[each] for each in given if each in self._prepared), NONE)
        if reordered_by in self._prepared_orders:
            is_reduced, prepared = False, reordered_by
        if not self._has_begun:
            is_count = False  # the program prepares the batch, and gives each part its rows
            # the first of several passes may begin with the whole data set
            if is_reduced and (self._passes == 1 or self._pass > 1):
                prepared = op
        if prepared != NONE:
            self._prepared.update(dict.fromkeys(changed, prepared))
        if self._has_begun and (is_count or (with_rows and is_reduced)):
            self._counts.update(changed)

    def _combines_data(
        self, op: int, base: str, given: list[int], changed: list[int], with_rows: list[int]
    ) -> bool:
        """Return True if an op that reads data only combines the samples.

        Args:
            op: its number.
            base: its name.
            given: the storages that it reads.
            changed: those that it makes or writes.
            with_rows: the storages that it reads with a row for each sample.
        """
        if base in _COUNTS:
            return True
        if not with_rows:
            return False
        is_along = self._is_along_samples(op, given[0])
        if is_along is not None:
            return is_along and _combines(base)
        if base in _SUMS | _OTHER_REDUCTIONS:
            return any(self._is_reduced(with_rows, each) for each in changed)
        return mixes_samples(
            base,
            list(map(self._dimensions, given)),
            list(map(self._dimensions, changed)),
            derived=[each in with_rows for each in given],
            batch=self._batch,
            is_differentiated=True,
        )

    def _is_along_samples(self, op: int, first: int) -> bool | None:
        """Return whether an op combines its first tensor along the batch; None if the recording does not tell."""
        along, shape = self._numbers.along(op), self._dimensions(first)
        places = self._places_of_batch(shape)
        if not along or not places or first in self._means:
            return None
        if len(places) > 1 and shape[places[0]] != self._batch:
            return None
        found = [each.crosses_samples(shape, places[0], self._batch) for each in along]
        return True if True in found else None if None in found else False

    def knows_dimension(self, op: int, given: list[int]) -> bool:
        """Return True if the recording shows along which dimension an op combines values."""
        return bool(given) and self._is_along_samples(op, given[0]) is not None

    def reduction(self, op: int) -> int:
        """Return torch's number of the reduction of a loss; -1 if it is unknown."""
        return self._numbers.reduction(op)

    def _note_number(self, op: int, storage: int, *, is_of_batch: bool) -> None:
        """Note that the program reads a number before a backward, unless it is the loss itself or a truth value."""
        if self.read_by != NONE or not (is_of_batch and self._precedes_backward[op]):
            return
        if storage not in self._losses and not self._is_mask(storage):
            self.read_by = op

    def begin_forward(self) -> None:
        """Note that a backward has ended. Until the next forward begins, the program prepares its next batch.

        The next forward has a loss of its own, also if the program accumulates gradients.
        """
        self._has_begun = False
        self._targets.clear()

    def begin_pass(self) -> None:
        """Note that a pass begins. Until the program calls its model, it prepares the batch."""
        self.begin_forward()
        self._pass += 1

    def is_differentiated(self, op: int) -> bool:
        """Return True if the backward of an op ran."""
        return bool(self._is_differentiated[op])

    def picked(self) -> Collection[int]:
        """Return the storages with values that a mask or an index picked: their sizes depend on the values."""
        return self._picks.storages()

    def is_sum(self, loss: int) -> bool:
        """Return True if a term of a loss is a sum over the batch that no op divides."""
        return loss in self._sums

    def _follow_sums(self, base: str, given: list[int], changed: list[int]) -> None:
        """Note which results of an op that reads means are still sums over the batch."""
        # a product with a tensor counts as divided, because the tensor may hold one over the number of samples
        is_divided = base in _DIVIDING or (base == "mul" and len(given) > 1)
        if is_divided or self._sums.isdisjoint(given):
            self._sums.difference_update(changed)
        else:
            self._sums.update(changed)

    def _is_unknown_reduction(
        self, base: str, samples: list[int], changed: list[int], is_along: bool | None
    ) -> bool:
        """Return True if an op that reads samples removes the batch dimension, and not by a sum or a mean.

        Args:
            base: its name.
            samples: the storages that it reads.
            changed: those that it makes or writes.
            is_along: whether it combines values along the batch; None if this is unknown.
        """
        if base in _COUNTS:
            return True
        if base in _OTHER_REDUCTIONS:
            if is_along is not None:
                return is_along
            return any(self._is_reduced(samples, each) for each in changed)
        if base in _SUMS or base in _LINEAR or base in _PICKS or base in _PRODUCTS:
            return False
        samples = [each for each in samples if self._has_rows(each)]
        return bool(samples and changed) and all(
            self._is_reduced(samples, each)
            or not (self._has_batch(each) or self._is_part_of_batch(samples, each))
            for each in changed
        )

    def _has_batch(self, storage: int) -> bool:
        """Return True if some dimension may be the batch."""
        return any(size and size % self._batch == 0 for size in self._dimensions(storage))

    def _is_part_of_batch(self, given: list[int], result: int) -> bool:
        """Return True if a result may come from a part of the batch, because the program divides the batch itself."""
        left = self._dimensions(result)
        return any(
            len(shape) == len(left) and 1 < left[0] < shape[0] and self._batch % left[0] == 0
            for shape in map(self._dimensions, given)
            if shape
        )

    def _is_other_than_linear(self, op: int, base: str, given: list[int], count: int) -> bool:
        """Return True if an op that reads some means is not linear in them."""
        if base == "mul":
            return count > 1
        if base == "div":
            if len(given) < 2 or self._is_in_entropy(op):
                return False
            return given[-1] in self._means
        return base not in _LINEAR

    def _is_scaled_by_count(
        self, op: int, base: str, given: list[int], changed: list[int], derived: Collection[int]
    ) -> bool:
        """Return True if a gradient depends on a value of the whole batch that is not among the samples.

        There are two cases. An op reads samples or means together with such a value, and does more than add them. Or an
        earlier op has added such a value to the samples, as in targets minus their mean, and this op is not linear.

        The ops of a cross entropy do not count. With label smoothing it divides by the number of its targets, and the
        printed code counts these.
        """
        counts = [each for each in given if each in self._counts and each not in derived]
        if base in _PLACED_BY_INTEGERS:
            counts = [each for each in counts if not self._is_integer(each)]
        if self._is_in_entropy(op):
            return False
        from_samples = [each for each in given if each in derived]
        is_linear = base in _LINEAR and (base not in ("mul", "div") or len(from_samples) < 2)
        is_shifted = not self._shifted.isdisjoint(given)
        if is_linear and (is_shifted or (counts and base in _SHIFTING)):
            self._shifted.update(changed)
        if is_shifted and not is_linear:
            return True
        return bool(counts) and base not in _SHIFTING

    def _is_in_entropy(self, op: int) -> bool:
        stack, module = self._places[op]
        is_module = module != NONE and self._classes[module] == "CrossEntropyLoss"
        return (stack != NONE or is_module) and (stack, module) in self._entropies

    def _is_integer(self, storage: int) -> bool:
        return "int" in self._type_of(storage)

    def _is_mask(self, storage: int) -> bool:
        return self._type_of(storage).startswith(_MASKS)

    def _type_of(self, storage: int) -> str:
        shape = int(self._shapes[storage])
        return "" if shape == NONE else str(self._strings[shape])

    def _has_rows(self, storage: int) -> bool:
        return bool(self._places_of_batch(self._dimensions(storage)))

    def _is_reduced(self, given: list[int], result: int) -> bool:
        """Return True if a reduction removed the batch dimension: an argument has it, and the result does not.

        If two dimensions may be the batch, the sizes do not show which of them the reduction removed. Then return
        False.
        """
        left = self._dimensions(result)
        if all(size == 1 for size in left):
            return True
        for shape in map(self._dimensions, given):
            of_batch = self._places_of_batch(shape)
            if not of_batch:
                continue
            if len(left) == len(shape):  # keepdim=True
                if all(left[place] == 1 != shape[place] for place in of_batch[:1]):
                    return True
                continue
            if len(of_batch) > 1 and shape[of_batch[0]] == self._batch != shape[of_batch[1]]:
                of_batch = of_batch[:1]
            others = [size for place, size in enumerate(shape) if place not in of_batch]
            sizes = [size for size in left if size != 1]
            if not any(size % self._batch == 0 for size in sizes):
                return True
            if _is_within(sizes, others) and not any(
                _is_within_around(sizes, shape, place) for place in of_batch
            ):
                return True
        return False

    def _places_of_batch(self, dimensions: list[int]) -> list[int]:
        return [place for place, size in enumerate(dimensions[:LEADING]) if size and size % self._batch == 0]


class _Picks:
    """Follows values that a mask or an index picks from the batch, and finds the ops that reduce them.

    The parts of a batch have different numbers of these values. So a mean over the picked values of the whole batch is
    not the mean of the means of the parts. A sum counts too, because the program may divide it by a Python number.
    Picked rows may also go back to their places in a tensor with the whole batch, as the tokens of experts do. Then
    nothing depends on their number.

    Args:
        batch: the number of samples.
        dimensions: a function from a storage to its sizes.
        is_mask: a function that returns True for a storage of truth values.
    """

    def __init__(
        self, batch: int, dimensions: Callable[[int], list[int]], is_mask: Callable[[int], bool]
    ) -> None:
        self._batch, self._dimensions, self._is_mask = batch, dimensions, is_mask
        self._count_of: dict[int, int] = {}  # by storage, the number of picked values or rows

    def are_reduced(self, base: str, given: list[int], changed: list[int]) -> bool:
        """Return True if an op reduces picked values. Note the values that it picks itself.

        Args:
            base: its name.
            given: the storages that it reads.
            changed: those that it makes or writes.
        """
        counts = {self._count_of[each] for each in given if each in self._count_of}
        is_reduced = False
        for each in changed:
            shape = self._dimensions(each)
            if self._are_picked(base, given, shape):
                self._count_of[each] = shape[0]
                continue
            if counts and base in _JOINING and shape:
                if shape[0] % self._batch:  # otherwise the picks may be the whole batch together
                    self._count_of[each] = shape[0]
                continue
            kept = [count for count in counts if any(size % count == 0 for size in shape if size)]
            if kept:
                self._count_of[each] = max(kept)
            elif counts and not self._has_batch(shape):
                is_reduced = True
        return is_reduced

    def storages(self) -> Collection[int]:
        """Return the storages with picked values."""
        return self._count_of.keys()

    def _are_picked(self, base: str, given: list[int], result: list[int]) -> bool:
        """Return True if an op picks some of the samples, or some of their values, and the data decide how many."""
        if base not in _PICKS or not given or not result or not result[0]:
            return False
        shape, place = self._dimensions(given[0]), self._place_of_batch(self._dimensions(given[0]))
        if place is None:
            return False
        if base in ("masked_select", "nonzero"):
            return True
        masks = [self._dimensions(each) for each in given[1:] if self._is_mask(each)]
        if masks:
            return any(self._picks_samples(mask, shape, place, result) for mask in masks)
        # the program may divide the batch itself
        is_part = len(shape) == len(result) and 1 < result[0] < shape[0] and self._batch % result[0] == 0
        return not self._has_batch(result) and not is_part

    def _picks_samples(self, mask: list[int], shape: list[int], place: int, result: list[int]) -> bool:
        """Return True if a mask covers the batch dimension, and not only others, such as the time.

        Args:
            mask: the sizes of the mask.
            shape: the sizes of the storage. Its leading dimensions may be merged into one.
            place: the dimension of the batch among them.
            result: the sizes of the result.
        """
        count = math.prod(mask)
        covered = [range(end) for end in range(1, len(shape) + 1) if math.prod(shape[:end]) == count]
        covered += [
            range(start, start + len(mask))
            for start in range(len(shape) - len(mask) + 1)
            if shape[start : start + len(mask)] == mask
        ]
        if covered:
            return place in covered[0]
        return count % self._batch == 0 and not self._has_batch(result)

    def _has_batch(self, dimensions: list[int]) -> bool:
        return any(size and size % self._batch == 0 for size in dimensions)

    def _place_of_batch(self, dimensions: list[int]) -> int | None:
        """Return the leading dimension of the batch: the one of this size, or else the first that is a multiple."""
        leading = dimensions[:LEADING]
        if self._batch in leading:
            return leading.index(self._batch)
        return next((place for place, size in enumerate(leading) if size and size % self._batch == 0), None)


class CarriedResults:
    """Finds results that a forward leaves for the next one, as a stateful recurrent network does.

    With the batch in parts, the second part of the batch would read the results of the first part.

    Args:
        facts: what the capture shows.
        lasting: for each storage, whether it is a parameter, a buffer or state of an optimizer.
    """

    def __init__(self, facts: Facts, lasting: NDArray[np.bool_]) -> None:
        tables = facts.capture.tables
        ops, self._uses, roles = tables["ops"], tables["uses"], tables["roles"]
        self._lasting, self._made_by = lasting, tables["births"]["op"]
        self._phase = ops["phase"]
        self._places = np.stack([ops["name"], ops["stack"], ops["module"]], axis=1)
        begins = np.diff(np.isin(self._phase, IN_BACKWARD).astype(np.int64), prepend=0) == 1
        self._backwards = np.cumsum(begins)  # for each op, how many backwards have begun
        self._inputs = set(roles["storage"][roles["role"] == _INPUT].tolist())
        self._uses_by_op = Grouped(self._uses["op"])
        self._known: dict[int, bool] = {}

    def are_read_by(self, op: int, given: list[int]) -> bool:
        """Return True if an op of a forward reads a result of an earlier forward.

        The op's own forward must make the result anew, at the same line and in the same module. So a result that stays
        the same for the whole training, such as the features of a frozen model, does not count.
        """
        for storage in given:
            made_by = int(self._made_by[storage])
            if made_by == NONE or self._lasting[storage] or self._phase[made_by] != FORWARD:
                continue
            if self._backwards[made_by] == self._backwards[op]:
                continue
            first, end = np.searchsorted(self._backwards, [self._backwards[op], self._backwards[op] + 1])
            is_made_again = (self._places[first:end] == self._places[made_by]).all(axis=1).any()
            if is_made_again and self._comes_from_inputs(storage):
                return True
        return False

    def _comes_from_inputs(self, result: int) -> bool:
        """Return True if the ops that led to a storage read an input of a model."""
        if result not in self._known:
            pending, seen, is_found = [result], {result}, False
            while pending and not is_found and len(seen) < _MOST_OPS:
                made_by = int(self._made_by[pending.pop()])
                if made_by == NONE:
                    continue
                rows = self._uses_by_op.within(made_by, made_by + 1)
                given = set(self._uses["storage"][rows[self._uses["access"][rows] != _OUTPUT]].tolist())
                is_found = not self._inputs.isdisjoint(given)
                pending += [each for each in given - seen if not self._lasting[each]]
                seen |= given
            self._known[result] = is_found
        return self._known[result]


def _is_within(sizes: list[int], of: list[int]) -> bool:
    """Return True if some sizes are among others, in the same order. Other sizes may be between them."""
    rest = iter(of)
    return all(size in rest for size in sizes)


def _is_within_around(sizes: list[int], of: list[int], place: int) -> bool:
    """Return True if `_is_within` holds and the size at `place` of the others is one of the sizes."""
    return any(
        size == of[place]
        and _is_within(sizes[:number], of[:place])
        and _is_within(sizes[number + 1 :], of[place + 1 :])
        for number, size in enumerate(sizes)
    )


def weighs_classes(base: str, given: list[int]) -> bool:
    """Return True for a cross entropy with class weights: it has a third argument."""
    return base in _NLL and len(given) > 2


def is_cross_entropy(base: str) -> bool:
    """Return True for the op of a cross entropy whose targets are classes. It may ignore some of them."""
    return base in _NLL


def runs_nodes_again(facts: Facts, start: int, end: int) -> bool:
    """Return True if several backwards of some ops run the same node: `backward(retain_graph=True)`.

    A backward runs the nodes from the newest to the oldest. Only the nodes that it makes itself, as a checkpoint does,
    may break this order. If a node runs again after an older node, it runs in another backward.
    """
    ops = facts.capture.tables["ops"]
    sequence = ops["sequence"][start:end][ops["phase"][start:end] == BACKWARD]
    sequence = sequence[sequence != NONE]
    if not len(sequence):
        return False
    runs = sequence[np.append(True, np.diff(sequence) != 0)]
    nodes, first, counts = np.unique(runs, return_index=True, return_counts=True)
    last = len(runs) - 1 - np.unique(runs[::-1], return_index=True)[1]
    return any(
        bool((runs[first[place] : last[place]] < nodes[place]).any())
        for place in np.flatnonzero(counts > 1).tolist()
    )


class StateOfForward(NamedTuple):
    """The parameters and buffers that the model changes in its own forward.

    Attributes:
        read: names of those whose values reach the results. Each part of a batch would read the values of the part
            before it.
        unread: names of the others, such as a count of calls.
        attributes: the names of all of them in their modules.
    """

    read: tuple[str, ...]
    unread: tuple[str, ...]
    attributes: tuple[str, ...]


def state_of_forward(facts: Facts, replaced: dict[int, str]) -> StateOfForward:
    """Return the parameters and buffers that modules write in place or replace in their forward.

    Args:
        facts: what the capture shows.
        replaced: the modules that replace a parameter or buffer, or change a number, with the name of the attribute.
    """
    tables = facts.capture.tables
    ops, uses, roles = tables["ops"], tables["uses"], tables["roles"]
    states = roles["storage"][np.isin(roles["role"], _STATES)]
    is_write = (uses["access"] == _WRITE) & np.isin(uses["storage"], states)
    is_write &= (ops["phase"][uses["op"]] == FORWARD) & (ops["module"][uses["op"]] != NONE)
    is_write &= ~_is_harmless_write(facts)[uses["op"]]
    # a module may make its parameters in its first forward, as nn.LazyLinear does
    made_by = tables["births"]["op"][uses["storage"]]
    is_write &= (made_by == NONE) | (ops["module"][made_by] == NONE)
    written = set(uses["storage"][is_write].tolist())
    for module, attribute in replaced.items():
        rows = np.flatnonzero((roles["module"] == module) & np.isin(roles["role"], _STATES))
        rows = rows[[str(facts.strings[name]) == attribute for name in roles["name"][rows].tolist()]]
        written.update(roles["storage"][rows].tolist())
    if not written:
        return StateOfForward((), (), ())
    names = _names_of_state(facts, written)
    first_op = int(
        uses["op"][np.isin(uses["storage"], list(written)) & (ops["module"][uses["op"]] != NONE)].min()
    )
    read = _read_by_results(facts, written, first_op)
    of_read = {names[storage] for storage in read}
    unread = sorted(set(names.values()) - of_read)
    attributes = {name.rpartition(".")[2] for name in names.values()}
    return StateOfForward(tuple(sorted(of_read)), tuple(unread), tuple(sorted(attributes)))


def _names_of_state(facts: Facts, storages: set[int]) -> dict[int, str]:
    """Return the names of some storages that were parameters or buffers."""
    roles, tree = facts.capture.tables["roles"], facts.places.module_tree
    found = {}
    is_wanted = np.isin(roles["role"], _STATES) & np.isin(roles["storage"], list(storages))
    for row in np.flatnonzero(is_wanted).tolist():
        module, name = int(roles["module"][row]), str(facts.strings[roles["name"][row]])
        is_inside = module != NONE and tree.parents[module] != NONE
        prefix = tree.names[module] if is_inside else ""
        found[int(roles["storage"][row])] = f"{prefix}.{name}" if prefix else name
    return found


def _is_harmless_write(facts: Facts) -> NDArray[np.bool_]:
    """Return for each op whether the values that it writes do not matter to the training, as running statistics."""
    ops, strings = facts.capture.tables["ops"], facts.strings
    classes = facts.places.module_tree.classes
    norms = {each for each in set(classes) if any(name in each for name in _NORMS)}
    of_norm = np.array([*map(norms.__contains__, classes), False], dtype=bool)
    chosen = [
        number for number in np.unique(ops["name"]).tolist()
        if any(name in str(strings[number]) for name in _HARMLESS_WRITES)
    ]  # fmt: skip
    is_harmless: NDArray[np.bool_] = np.isin(ops["name"], chosen) | of_norm[ops["module"]]
    return is_harmless


def _read_by_results(facts: Facts, state: set[int], first_op: int) -> set[int]:
    """Return the storages of some state whose values reach an op whose backward ran."""
    uses, ops = facts.capture.tables["uses"], facts.capture.tables["ops"]
    makers = maker_of_node(facts.capture)
    differentiated = set(makers[makers != NONE].tolist())
    uses_by_op = Grouped(uses["op"])
    origins: dict[int, frozenset[int]] = {storage: frozenset((storage,)) for storage in state}
    read: set[int] = set()
    for op in range(first_op, min(first_op + _MOST_OPS, len(ops["op"]))):
        if ops["phase"][op] != FORWARD:
            continue
        rows = uses_by_op.within(op, op + 1)
        storages, access = uses["storage"][rows].tolist(), uses["access"][rows].tolist()
        given = [each for each, kind in zip(storages, access, strict=True) if kind != _OUTPUT]
        reached = frozenset().union(*(origins.get(each, ()) for each in given))
        if not reached:
            continue
        if op in differentiated:
            read |= reached
        for each, kind in zip(storages, access, strict=True):
            if kind in (_WRITE, _OUTPUT) and each not in state:
                origins[each] = origins.get(each, frozenset()) | reached
    return read
