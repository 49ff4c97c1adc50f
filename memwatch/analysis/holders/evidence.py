"""How a holder is known: seen, read in torch's books, inferred by a rule that has a name, or not at all."""

from __future__ import annotations

from enum import Enum, unique


@unique
class HolderEvidence(Enum):
    """The source of the knowledge about a holder; the values of the column `holder_evidence`."""

    SEEN = (
        "seen"  # in that very op, or later in the same run of torch's code if it could not change meanwhile
    )
    STRUCTURE = (
        "structure"  # torch's own books: packs, parameters, `.grad`, optimizer state, allocator events
    )
    INFERRED = "inferred"  # by one of the rules below
    NONE = "none"


@unique
class Inference(Enum):
    """The rules that infer a holder. `memwatch.words.holders` has the words for each."""

    EARLIER = "earlier"  # an earlier sample saw it; the reference may have ended since
    LATER = "later"  # a later sample saw it; the reference may not have existed yet
    BETWEEN = "between"  # an earlier and a later sample saw it, and none was taken at this op
    TWIN = "twin"  # a sample saw this holder for another allocation of the same line
    # made when its region was recomputed, and no pack holds it while the backward runs
    WITHIN_REGION = "within region"
    # born while torch built an object that is still alive; torch's own records do not list its parts
    MADE_WITH = "made with"
    RETURNED = "returned"  # seen through a variable of a call that has returned; the object is still alive
    SAME_CALL = "same call"  # on the evaluation stack of the innermost call that made it and still runs
    # a sample searched for it, or for its twin, and found no variable; a call that made it still runs
    NO_VARIABLE = "no variable"
    ROLE_LATER = "role later"  # the first sample that saw it in this role is later
    ROLE_EARLIER = "role earlier"  # an earlier sample saw it in this role, and the next one did not
    ROLE_BETWEEN = "role between"  # samples before and after saw it in this role, and none at this op
    ROLE_UNCONFIRMED = "role unconfirmed"  # an earlier sample saw it in this role; there was none since
    IN_FLIGHT = "in flight"  # made in backward, and a later op of the same backward reads it
    # a forward op made it, no sample found a variable that refers to it, and a later backward op reads it
    AWAITED = "awaited"
    WITHIN_NODE = "within node"  # made by a node of backward that still runs
    WITHIN_CPP = "within C++"  # made and still needed by one call into C++
    # made in a call of a compiled function, or in its backward, that still runs
    WITHIN_COMPILED = "within compiled"
    WITHIN_STEP = "within step"  # made in a step of the optimizer, and dropped before it ends
