"""How a holder is known: seen, read in torch's books, inferred by a rule that has a name, or not at all."""

from __future__ import annotations

from enum import Enum, unique


@unique
class HolderEvidence(Enum):
    """How a holder is known; the values are those of the column `holder_evidence`."""

    SEEN = "seen"  # the reference was observed in that very op
    STRUCTURE = (
        "structure"  # torch's own books: packs, parameters, `.grad`, optimizer state, allocator events
    )
    INFERRED = "inferred"  # by one of the rules below
    NONE = "none"


@unique
class Inference(Enum):
    """The rules by which a holder is inferred; the words for each are in `memwatch.words.holders`."""

    EARLIER = "earlier"  # seen before, and it cannot be told whether the reference ended since
    LATER = "later"  # seen afterwards, and it cannot be told whether the reference had begun
    BETWEEN = "between"  # seen both before and after, and no look was just then
    TWIN = "twin"  # another one that the same line made was seen so
    WITHIN_REGION = (
        "within region"  # made when its region ran again, and no pack has it while the backward runs
    )
    MADE_WITH = "made with"  # born while torch made it, and alive after that; its books do not tell its parts
    RETURNED = "returned"  # seen through a variable of a call that has returned; the object is still alive
    SAME_CALL = "same call"  # on the evaluation stack of the innermost call that made it and still runs
    NO_VARIABLE = "no variable"  # it, or its twin, was looked for in vain, and a call that made it still runs
    ROLE_LATER = "role later"  # it is seen in that role only later
    ROLE_EARLIER = "role earlier"  # it was seen in that role before, and at the next look in it no more
    ROLE_BETWEEN = "role between"  # it was seen in that role before and after, and no look was just then
    ROLE_UNCONFIRMED = "role unconfirmed"  # it was seen in that role before, and at no look since
    IN_FLIGHT = "in flight"  # made in backward, and a later op of the same backward reads it
    AWAITED = (
        "awaited"  # made in forward, in no variable that a look saw, and a later op of backward reads it
    )
    WITHIN_NODE = "within node"  # made by a node of backward that still runs
    WITHIN_CPP = "within C++"  # made and still needed by one call into C++
    WITHIN_COMPILED = (
        "within compiled"  # made in a call of a compiled function, or in its backward, that still runs
    )
    WITHIN_STEP = "within step"  # made in a step of the optimizer, and dropped before it ends
