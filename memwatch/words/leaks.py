"""The words for leaks: headlines, holders, advice, and the verdicts of `memwatch leaks`."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol

from memwatch.device_names import CPU, is_host
from memwatch.kinds.leaks import LeakKind, Remedy, RoundPlace
from memwatch.sizes import format_bytes
from memwatch.words.edges import edge_line, edge_phrase, reference_phrase
from memwatch.words.places import place
from memwatch.words.processes import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memwatch.kinds.edges import Edge
    from memwatch.kinds.known_leaks import KnownLeak

ON_DEVICE: Final = "{size} on {device}"
AND: Final = " and "
HEADLINE: Final = "{kind}: {amount}{each}, {held_by} {holder}"
PATH_FROM_ROOT: Final = "Path from the root"
CYCLE: Final = "The cycle"
"""The two titles of a leak's path on the page."""
TEXT_FROM_ROOT: Final = "path from the root:"
TEXT_CYCLE: Final = "cycle:"
"""The two titles of a leak's path in the terminal."""
GRAPH_NODES: Final = "  and {nodes}{each}, about {size}"
NODES_OF_SEVERAL: Final = "; other leaks below may keep some of these nodes"
"""Follows `GRAPH_NODES` if several leaks keep nodes. memwatch counts all nodes once, at the largest leak."""
LEAKED_EACH: Final = "Each {repeat} leaks {amounts}."
LEAKED: Final = "{amounts} leaked."
TO_DO: Final = "To end it, cut this reference: {holder}."
TO_DO_LARGEST: Final = "Begin with the largest. To end it, cut this reference: {holder}."
"""The first sentences of the page of leaks."""
ON_EACH: Final = " on each {repeat}"
RISING: Final = " on average, more on each {repeat}"
"""Replaces ` on each {repeat}` if each call adds more than the call before."""
ON_ONE_IN: Final = " on one {repeat} in {every}"
MADE_AT: Final = "  made at: {site} ({tensor})"
WITH_GRAPH: Final = "{tensor}; graphs keep most of these bytes"
"""The tensor of the line above, if most bytes of the leak are saved for a backward."""
CALLED_FROM: Final = ", called from {caller}"
ADDED_AT: Final = "{site}: `{code}`"
ADDED_AT_LINE: Final = "  added at: {lines}"
ONE_OR_OTHER: Final = ", or "
FREED_SINCE: Final = "  freed before the session ended: {freed} of its {told} tensors"
ALL_FREED_SINCE: Final = (
    "  freed before the session ended: all {told} of its tensors. Probably a window that was filling, or a buffer "
    "that is emptied now and then"
)
ONE_FREED_SINCE: Final = (
    "  freed before the session ended: its only tensor. Probably a window that was filling, or a buffer that is "
    "emptied now and then"
)
UNKNOWN_LINE: Final = "unknown line"
HOOK: Final = "hook `{function}`{on}, defined at {place}"
ON_OBJECT: Final = " on {holder}"
HOOK_LINE: Final = "  {hook}"
HELD_FOR: Final = "  held for {seconds:.3f} s so far; the next collection of gc would free it"
BESIDE: Final = "  and {objects} per {repeat}"
MORE_OBJECTS: Final = "{count} more objects of type {name}"
MORE_OBJECT: Final = "1 more object of type {name}"
ALSO: Final = "  also kept by: {holders}"
KNOWN: Final = "known leak of {library}: {what} ({link})"
KNOWN_LINE: Final = "  " + KNOWN
KNOWN_REMEDY: Final = "{known}. If it is one here, {remedy}"
"""A known leak with its remedy, below a line about memory that grew."""
ADVICE: Final = "  advice: {advice}"
CYCLES_OF_TORCH: Final = (
    "not counted: {cycles} ({size}) that torch's own code made; the garbage collector frees this memory"
)
NO_LEAKS: Final = "No leaks found"
TOTAL: Final = "{size} of tensors leaked ({count} in {groups})"
TOTAL_OF_ALL: Final = "{amounts} leaked ({groups})"
NOTE: Final = "note: {sentence}"
MAY_BE_FILLING: Final = (
    "after one run, growth looks the same as a window or a cache that is still filling; `find_leaks(fn)` repeats "
    "the call until it can decide"
)
FILLING_NOTE: Final = NOTE.format(sentence=MAY_BE_FILLING)
ONE_GROUP: Final = "1 group"
GROUPS: Final = "{count} groups"
SITE: Final = "{place} in {function}"
CAUSE: Final = "cause-{digest}"

FAILURE: Final = "Test leaked {amount}{each}, {held_by} {holder} ({cause}){more}"
ON_EACH_RUN: Final = " on each run"
AND_MORE: Final = " (and {count} more)"
LINE_NOT_SEEN: Final = "not seen; @pytest.mark.no_tensor_leaks on such a test may show it"
MARK_FOR_LINES: Final = "To see where a tensor was made, mark the test: @pytest.mark.no_tensor_leaks"

FROM_CYCLE: Final = "(and from the cycle) {line}"
"""The first line of a path that leaves the cycle above it."""
NO_PYTHON_REFERENCE: Final = "no Python reference: held by C code alone"
"""The path of a leak that no Python object holds."""

IN_A_CYCLE: Final = ", "
ALONG_A_PATH: Final = " -> "
LEFT_OUT: Final = "..."

MORE_REFERENCES: Final = "... {count} more references, within C++ ..."
"""Replaces the middle of a long row of references within C++, such as those of an autograd graph."""
SAME_LINE_AGAIN: Final = "... {more} more references like the last one ..."
SAME_LINES_AGAIN: Final = "... {more} more rows like the last {count} references ..."
"""Replace references of a path that repeat, for example if each wrapper holds another wrapper."""
_MOST_IN_STRETCH: Final = 4  # references that repeat together; `leaks/advice.py` has the reason
_FEWEST_LEFT_OUT: Final = 2  # lines; one line takes no more room than the words in its place
_MOST_HIDDEN: Final = 8  # references in a row within C++ that the terminal shows; a guess
_AT_AN_END: Final = 3  # of these references are shown at each end of a longer row; a guess
_COMPREHENSIONS: Final = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_MOST_ROUNDS: Final = 2  # loops that the verdict names; a guess
MOST_HELD: Final = 3  # holders that a line names, and lines of the program below it. A guess

ROOT: Final = "root"
"""The first box of a drawn retention path."""
NO_GRAPHVIZ: Final = (
    "cannot draw {target}: the package graphviz is not installed: pip install 'memwatch[draw]'. "
    "The leak as text:\n{leak}"
)
NO_DOT: Final = (
    "cannot draw {target}: graphviz's program 'dot' is not installed (apt install graphviz, "
    "brew install graphviz). The leak as text:\n{leak}"
)
NOT_DRAWN: Final = "cannot draw {target}: {error}. The leak as text:\n{leak}"

GROW_BY_ROUND: Final = "The program leaks {parts}. The holders and the fixes:"
GREW_BY_ROUND: Final = "The program leaked {parts} until it failed. The holders and the fixes:"
AS_ABOVE: Final = "the same as for the leak before this one"
"""Replaces an advice that equals the advice of the leak before."""
WITH_EACH: Final = "{amounts} with each {round}"
WITH_ONE_IN: Final = "{amounts} with one {round} in {every}"
OF_STEPS: Final = "step"
OF_LOOP: Final = "iteration"
OF_POOL: Final = "task"
OF_TEST: Final = "run"
FIXTURE: Final = "fixture `{name}` ({scope} scope, {place})"
IN_FIXTURES: Final = "Kept by fixtures that outlive the tests, so not counted as leaks"
CHECK_FIXTURES: Final = (
    "  To check whether a test adds tensors with every run, mark it: @pytest.mark.no_tensor_leaks"
)
ROUND_OF_STEPS: Final = "optimizer step"
ROUND_OF_LOOP: Final = "iteration of the loop at {place}"
ROUND_OF_POOL: Final = "task of the thread pool that runs {place}"
LEFT_NOTHING: Final = (
    "{verdict}{searched}. An object that a global variable, a model or an optimizer keeps once, "
    "such as a cache, is not a leak"
)
NO_LEAKS_IN: Final = ": no {rounds} left a graph or a hook behind"
OR_OF_EACH: Final = " and no "
OR_EACH: Final = " and each "
VERDICT: Final = "no leaks"
VERDICT_AT_END: Final = "no leaks at the end"
VERDICT_BESIDE_KEPT: Final = "no certain leaks"
VERDICT_BESIDE_GROWTH: Final = "no other leaks"
NOT_SEARCHED: Final = (
    "not checked for growth: the program made {steps}, and memwatch saw no loop run ops in {passes} iterations (a loop "
    "that awaits tasks does not count, nor a generator that `sum()` reads). To check it, run at least {fewest} "
    "steps{optimizer} or {passes} iterations, or call memwatch.find_leaks(step). For a loop that awaits tasks, "
    "decorate the `async` function of one task with `watch = memwatch.LeakWatch(every=10)`, and print "
    "`watch.report()` at the end"
)
STEPS_NOT_SEARCHED: Final = (
    "not searched for leaks of each optimizer step: the program made {steps}. To search for them, run at least "
    "{fewest} steps{optimizer}"
)
LATER_OPTIMIZERS: Final = (
    "memwatch searched after the {steps} steps of the first of {optimizers} optimizers, and the program made others "
    "after it. It did not check what each of these leaves behind, such as a model that a loop over trials keeps. To "
    "check it, run at least {passes} trials"
)
UNSEEN: Final = (
    "not decided: each {round} left about {nodes} ({size}), and memwatch does not know what keeps them. It may be a "
    "container of `ctx` or `grad_fn` objects, or C++ code, such as a list attribute of a scripted module"
)
SELDOM: Final = (
    "not decided: in {number} rounds ({round}), {holder} got tensors with the graphs of {count} and kept them. It may "
    "be a leak in a part of the program that runs seldom, such as a validation. A longer run would show it"
)
COUNT_OF_STEPS: Final = "{count} optimizer steps"
FIRST_OF_OPTIMIZERS: Final = (
    "{steps} with {optimizers} optimizers, but only {first} with the first optimizer, "
    "and memwatch follows that one"
)
WITH_FIRST: Final = " with it"
COUNT_OF_STEP: Final = "1 optimizer step"
NO_STEPS: Final = "no optimizer step"
NOT_JUDGED: Final = "the program ended with {cause}{after}, so memwatch did not judge its leaks{until_then}"
END_NOT_JUDGED: Final = (
    "the program ended with {cause}{after}, so memwatch did not judge what it still held at its end"
)
"""Replaces `NOT_JUDGED` if memwatch found leaks of the program's steps or loops."""
NOT_SAID: Final = "memwatch could not print the leaks that it had found until then: {error}"
EXIT_CODE: Final = "exit code {code}"
AFTER_STEPS: Final = " after {steps}"
UNTIL_THEN: Final = ". Until then no {rounds} left a graph or a hook behind"
EACH: Final = "each {round}"
ONE_IN: Final = "not every {round} but about one in {every}"
KEPT_BY_ROUND: Final = (
    "memory grew: {rounds} added to {held}. It is a leak unless the program needs these tensors later"
)
PLACES_FILLED_BY_ROUND: Final = (
    "memory grew: {rounds} put a tensor with its graph into an empty place of {held}. It grows until all places are "
    "full. If no backward needs these graphs, it is a leak until then: store `value.item()` or `value.detach()`"
)
LARGER_BY_ROUND: Final = (
    "memory grew: {rounds} made a tensor larger: {held}. If the program does not need all of it, limit its size or "
    "begin it again"
)
FREED_LATER: Final = (
    "{rounds} added {amounts} to {holder}, and the program freed them later. This is not a leak, but memory grows "
    "until then. If no backward needs these graphs, store `value.detach()` or `value.item()`"
)
SEARCHES_SKIPPED: Final = (
    "the searches took too long, so memwatch stopped them: it may have missed growth with each {rounds}"
)
HELD_AT_END: Final = (
    "not judged, because a global variable holds it: {held}. If it is not a result, delete it"
)
GRAPHS_AT_END: Final = (
    "not judged, because a global variable holds it: {held}. These tensors keep their autograd graphs, and the "
    "graphs keep activations. If you need the values alone, store `value.item()` or `value.detach()`"
)
HOOKS_OF_MORE: Final = "{holder} and on {count} more objects"
HOOKS_OF_ONE_MORE: Final = "{holder} and on 1 more object"
HOOKS_WITH_TENSORS: Final = "{hooks} with {size} of tensors"
TENSORS_OF_HOOKS: Final = "  and {size} of tensors{each}, which the hooks keep"
HELD: Final = "{holder} ({amount})"
LARGER: Final = "{holder}, by {size}"
MORE_HOLDERS: Final = "{count} more"
EVERY: Final = "every={every}: write how many calls there are from one mark to the next, or 0"
GREW: Final = "{size} more of tensors at mark {last} than at mark {first}, and more at each mark between"
NOTHING_GREW: Final = "no holder had more tensors at each of the last {marks} marks"
TOO_FEW_MARKS: Final = "{marks} marks are too few to find growth: set at least 3"

WHY_ALIVE: Final = "{tensor}, {size}, is alive because of"
WHY_C_CODE: Final = "  C code alone, or a temporary of a running call: no Python reference was found"
WHY_KEEPS: Final = ", which alone keeps {size}"
WHY_LOOP: Final = "  a loop that no root reaches:"
NOT_A_TENSOR: Final = "why_alive() takes a tensor, not {given}"


FURTHER_CUTS: Final = (
    "{advice}; this edit alone frees nothing, because other cycles keep the tensors too. "
    "Also remove {references}"
)
MORE_CUTS: Final = "{references} and {count} more"
MORE_CYCLES: Final = "{references}, and references in further cycles that memwatch did not search"
_MOST_CUTS: Final = 12
"""References that one advice names. A guess: Lightning's trainer needs 9."""
AND_THE_STORAGE: Final = (
    "{advice}. The tensor shows only a small part of its storage, and `.detach()` alone keeps all of it: keep "
    "`.detach().clone()`, or a number (`.item()`)"
)
AND_THE_GRAPH: Final = "{advice}; {graph}"
ADD_WEAK_SLOT: Final = (
    '{advice}. For a weak reference, add `"__weakref__"` to the `__slots__` of `{name}` (to a dataclass '
    "`weakref_slot=True`): without it, `weakref.ref` raises TypeError"
)


def headline(
    kind: LeakKind,
    *,
    sizes: Mapping[str, int],
    count: int,
    per_call: bool,
    holder: str,
    every: int = 1,
    repeat: str = "call",
    rises: bool = False,
) -> str:
    """Return a leak in one line."""
    each = RISING.format(repeat=repeat) if rises else _on_each(repeat, every)
    return HEADLINE.format(
        kind=kind,
        amount=_amount(kind, sizes, count),
        each=each if per_call else "",
        held_by=kind.held_by,
        holder=holder,
    )


def _counted(kind: LeakKind, count: int) -> str:
    """Return the number of tensors, hooks or nodes of a leak, with the word for them."""
    return f"{count} {kind.row.one if count == 1 else kind.row.many}"


def round_phrase(place: RoundPlace | None) -> str:
    """Return the name of a step of the optimizer, an iteration of a loop, or a task of a thread pool."""
    if place is None:
        return ROUND_OF_STEPS
    template = ROUND_OF_POOL if place.is_task else ROUND_OF_LOOP
    return template.format(place=site_phrase(place.file, place.line, place.function))


def rounds_phrase(place: RoundPlace | None, every: int) -> str:
    """Return which rounds added something: `each {round}`, or `about one in {every}`."""
    return (EACH if every == 1 else ONE_IN).format(round=round_phrase(place), every=every)


def grow_line(place: RoundPlace | None, leaks: Sequence[Leaked], *, has_failed: bool = False) -> str:
    """Return the line above leaks that grow with each round: how much each round adds, or added until it failed."""
    of_period: dict[int, list[Leaked]] = {}
    for leak in leaks:
        of_period.setdefault(leak.every, []).append(leak)
    parts = (
        (WITH_EACH if every == 1 else WITH_ONE_IN).format(
            amounts=AND.join(_amounts(several)),
            round=round_phrase(place),
            every=every,
        )
        for every, several in sorted(of_period.items())
    )
    return (GREW_BY_ROUND if has_failed else GROW_BY_ROUND).format(parts=AND.join(parts))


def _amounts(leaks: Sequence[Leaked]) -> list[str]:
    """Return how much of each kind of thing leaked, the largest part first.

    Leaks of tensors keep autograd nodes too, which often have more bytes than the tensors.
    """
    nodes = sum(leak.graph_nodes for leak in leaks)
    of_nodes = sum(leak.graph_bytes for leak in leaks)
    others = [leak for leak in leaks if leak.kind is not LeakKind.GRAPH]
    parts = [(sum(sizes_of(several).values()), text) for several, text in _by_kind(others)]
    if nodes:
        parts.append((of_nodes, _amount(LeakKind.GRAPH, {CPU: of_nodes}, nodes)))
    return [text for _, text in sorted(parts, key=lambda part: -part[0])]


def cycles_of_torch_line(leaks: Sequence[Leaked]) -> str:
    """Return the sentence about the cycles that torch's own code closed at the end of a program."""
    size = format_bytes(sum(leak.nbytes for leak in leaks))
    return CYCLES_OF_TORCH.format(cycles=counted(len(leaks), "cycle"), size=size)


def page_headline(leaks: Sequence[Leaked], repeats: Sequence[str]) -> str:
    """Return how much leaked in a sentence.

    Args:
        leaks: the leaks.
        repeats: the name of the call that each leak is about; "" if its figures are not of each call.
    """
    amounts = amounts_phrase(leaks)
    (repeat, *others) = dict.fromkeys(repeats)
    if not repeat or others:
        return LEAKED.format(amounts=amounts)
    return LEAKED_EACH.format(repeat=repeat, amounts=amounts)


def page_to_do(holders: Sequence[str]) -> str:
    """Return which reference to cut first. The first of `holders` belongs to the largest leak."""
    return (TO_DO_LARGEST if len(holders) > 1 else TO_DO).format(holder=holders[0])


def amounts_phrase(leaks: Sequence[Leaked]) -> str:
    """Return how much leaked in all, each kind of thing once: `4 B in 1 tensor and 2 hooks`."""
    return AND.join(text for _, text in _by_kind(leaks))


def _by_kind(leaks: Sequence[Leaked]) -> list[tuple[list[Leaked], str]]:
    """Return the leaks of each kind of thing, with how much leaked."""
    of_kind: dict[LeakKind, list[Leaked]] = {}
    for leak in leaks:
        of_kind.setdefault(LeakKind.RETAINED if leak.kind.is_of_tensors else leak.kind, []).append(leak)
    return [(several, _amount_of(kind, several)) for kind, several in of_kind.items()]


def _amount_of(kind: LeakKind, leaks: Sequence[Leaked]) -> str:
    sizes = sizes_of(leaks)
    amount = _amount(kind, sizes, sum(leak.count for leak in leaks))
    if kind is LeakKind.HOOKS and any(sizes.values()):
        return HOOKS_WITH_TENSORS.format(hooks=amount, size=sizes_phrase(sizes))
    return amount


def repeat_name(place: RoundPlace | None) -> str:
    """Return the short name of a round, for the lines of its leaks: a step, an iteration or a task."""
    if place is None:
        return OF_STEPS
    return OF_POOL if place.is_task else OF_LOOP


def searched_places(
    places: Sequence[RoundPlace | None], *, has_unsearched_steps: bool
) -> list[RoundPlace | None]:
    """Return the places that the verdict mentions.

    A comprehension is a loop too, but seldom the loop that a reader thinks of. The verdict mentions comprehensions only
    if memwatch searched nothing else. If the optimizer made too few steps to search, it mentions no comprehension.

    Args:
        places: where the loops begin that were searched; None for the steps of the optimizer.
        has_unsearched_steps: True if the optimizer made steps, but too few to search.
    """
    loops = [place for place in places if place is None or place.function not in _COMPREHENSIONS]
    return loops if loops or has_unsearched_steps else list(places)


def searched_line(
    places: Sequence[RoundPlace | None], *, has_grown: bool, is_certain: bool, has_graphs: bool
) -> str:
    """Return the verdict on a program without leaks.

    Args:
        places: where the loops begin that were searched; None for the steps of the optimizer.
        has_grown: whether each round added to something that may be a result. The line before says so.
        is_certain: False if something may be a result that is alive at the end.
        has_graphs: True if graphs of several rounds are alive at the end. Then "no round left a graph" would be false.
    """
    verdict = VERDICT_BESIDE_GROWTH if has_grown else VERDICT if is_certain else VERDICT_BESIDE_KEPT
    searched = NO_LEAKS_IN.format(rounds=_rounds_phrase(places)) if places and not has_graphs else ""
    return LEFT_NOTHING.format(verdict=verdict if places else VERDICT_AT_END, searched=searched)


def unseen_line(place: RoundPlace | None, nodes: int, nbytes: int) -> str:
    """Return that each round left autograd nodes whose holder memwatch did not find."""
    counted = f"{nodes} more {LeakKind.GRAPH.row.one if nodes == 1 else LeakKind.GRAPH.row.many}"
    return UNSEEN.format(round=round_phrase(place), nodes=counted, size=format_bytes(nbytes))


def seldom_line(place: RoundPlace | None, holder: str, count: int, number: int) -> str:
    """Return that a holder kept the graphs of a few rounds, too few to show growth.

    Args:
        place: the loop; None for steps.
        holder: the holder in words.
        count: the number of rounds whose graphs it kept.
        number: the number of all rounds.
    """
    return SELDOM.format(round=round_phrase(place), holder=holder, count=count, number=number)


def skipped_line(places: Sequence[RoundPlace | None]) -> str:
    """Return that memwatch stopped searching, and the steps and loops whose later rounds it did not search."""
    return SEARCHES_SKIPPED.format(rounds=OR_EACH.join(map(round_phrase, places[:_MOST_ROUNDS])))


def freed_line(place: RoundPlace | None, leak: Leaked, holder: str) -> str:
    """Return what rounds added to a holder and the program freed later."""
    rounds = rounds_phrase(place, leak.every)
    return FREED_LATER.format(rounds=rounds, amounts=amounts_phrase([leak]), holder=holder)


def kept_line(
    place: RoundPlace | None,
    every: int,
    rows: Sequence[tuple[str, int, Mapping[str, int]]],
    *,
    grows: bool,
    has_graphs: bool,
) -> str:
    """Return the holders that grew: rounds added tensors to them, or made their tensors larger.

    Args:
        place: the loop; None for steps.
        every: 1 if each round did so; N if about one in N rounds did.
        rows: the holders, with the tensors and the bytes by device that a round adds.
        grows: True if their tensors became larger.
        has_graphs: True if the rounds put tensors with a graph into empty places of lists or arrays.
    """
    if has_graphs:
        return PLACES_FILLED_BY_ROUND.format(rounds=rounds_phrase(place, every), held=held_phrase(rows))
    if not grows:
        return KEPT_BY_ROUND.format(rounds=rounds_phrase(place, every), held=held_phrase(rows))
    held = [LARGER.format(size=sizes_phrase(sizes), holder=holder) for holder, _, sizes in rows]
    return LARGER_BY_ROUND.format(rounds=rounds_phrase(place, every), held=_first_of(held))


def known_line(known: KnownLeak) -> str:
    """Return that memory which grew is the known leak of a library, and the remedy."""
    line = KNOWN.format(library=known.library, what=known.what, link=known.link)
    return KNOWN_REMEDY.format(known=line, remedy=known.remedy) if known.remedy else line


def not_judged_line(cause: str, steps: int, places: Sequence[RoundPlace | None], *, are_clean: bool) -> str:
    """Return the sentence about a program that failed, with the result of the searches until then.

    Args:
        cause: the class of the exception, or the exit code in words.
        steps: the steps of all optimizers.
        places: where the loops begin that were searched; None for the steps of the optimizer.
        are_clean: True if none of these left anything.
    """
    after = AFTER_STEPS.format(steps=_steps_phrase(steps)) if steps else ""
    if not are_clean:
        return END_NOT_JUDGED.format(cause=cause, after=after)
    until_then = UNTIL_THEN.format(rounds=_rounds_phrase(places)) if places else ""
    return NOT_JUDGED.format(cause=cause, after=after, until_then=until_then)


def _steps_phrase(steps: int) -> str:
    return COUNT_OF_STEP if steps == 1 else COUNT_OF_STEPS.format(count=steps)


def _rounds_phrase(places: Sequence[RoundPlace | None]) -> str:
    return OR_OF_EACH.join(list(dict.fromkeys(map(round_phrase, places)))[:_MOST_ROUNDS])


def not_searched_line(
    steps: int, *, all_steps: int, optimizers: int, fewest_steps: int, fewest_passes: int, has_loops: bool
) -> str:
    """Return the reason why memwatch did not search for growth, or only in loops.

    Args:
        steps: the steps of the first optimizer.
        all_steps: the steps of all optimizers.
        optimizers: the number of optimizers.
        fewest_steps: the steps that memwatch needs.
        fewest_passes: the iterations that memwatch needs.
        has_loops: whether loops were searched.
    """
    counted, optimizer = _steps_phrase(all_steps), ""
    if optimizers > 1:
        counted = FIRST_OF_OPTIMIZERS.format(steps=counted, optimizers=optimizers, first=steps)
        optimizer = WITH_FIRST
    if has_loops:
        return STEPS_NOT_SEARCHED.format(steps=counted, fewest=fewest_steps, optimizer=optimizer)
    return NOT_SEARCHED.format(
        steps=counted if steps else NO_STEPS, fewest=fewest_steps, passes=fewest_passes, optimizer=optimizer
    )


def held_phrase(held: Sequence[tuple[str, int, Mapping[str, int]]]) -> str:
    """Return holders with their contents: the words, the tensors, and the bytes by device."""
    return _first_of(
        [
            HELD.format(holder=holder, amount=_amount(LeakKind.RETAINED, sizes, count))
            for holder, count, sizes in held
        ]
    )


def _first_of(holders: Sequence[str]) -> str:
    """Return the first `MOST_HELD` holders, and how many more there are."""
    more = len(holders) - MOST_HELD
    return IN_A_CYCLE.join([*holders[:MOST_HELD], *[MORE_HOLDERS.format(count=more)] * (more > 0)])


def _amount(kind: LeakKind, sizes: Mapping[str, int], count: int) -> str:
    return kind.row.amount.format(size=sizes_phrase(sizes), counted=_counted(kind, count))


def _on_each(repeat: str, every: int) -> str:
    return ON_EACH.format(repeat=repeat) if every == 1 else ON_ONE_IN.format(repeat=repeat, every=every)


def nodes_line(
    nodes: int, nbytes: int, *, per_call: bool, repeat: str, every: int, of_several: bool = False
) -> str:
    """Return the autograd nodes that a leak keeps beside tensors, as a line under it."""
    counted = _counted(LeakKind.GRAPH, nodes)
    each = _on_each(repeat, every) if per_call else ""
    line = GRAPH_NODES.format(nodes=counted, each=each, size=format_bytes(nbytes))
    return line + NODES_OF_SEVERAL if of_several else line


def tensors_of_hooks_line(device: str, nbytes: int, *, per_call: bool, repeat: str, every: int) -> str:
    """Return the tensors that the hooks of a leak keep, as a line under it."""
    each = _on_each(repeat, every) if per_call else ""
    return TENSORS_OF_HOOKS.format(size=sizes_phrase({device: nbytes}), each=each)


def path_lines(edges: Sequence[Edge], branch_at: int | None) -> tuple[str, ...]:
    """Return a path, one reference per line.

    Args:
        edges: the references, root first.
        branch_at: the first reference that leaves the cycle above it, or None.
    """
    if not edges:
        return (NO_PYTHON_REFERENCE,)
    lines = [edge_line(edge) for edge in edges]
    if branch_at is not None and branch_at < len(lines):
        lines[branch_at] = FROM_CYCLE.format(line=lines[branch_at])
    return tuple(lines)


def added_at_phrase(lines: Iterable[tuple[str, str]]) -> str:
    """Return the lines that add to a container: each one's place and its code."""
    return ONE_OR_OTHER.join(ADDED_AT.format(site=site, code=code) for site, code in lines)


def also_line(holders: Sequence[str]) -> str:
    """Return what else keeps the tensors of a leak, as a line under it."""
    return ALSO.format(holders=_first_of(holders))


def place_of(edge: Edge) -> str:
    """Return the place where the user can edit a reference; empty if `edge_phrase` already names it."""
    return reference_phrase(edge).removeprefix(edge_phrase(edge))


def shortened(path: Sequence[str], edges: Sequence[Edge]) -> list[str]:
    """Return the lines of a path without the middle of each long row of references within C++, and without repeats.

    Args:
        path: the lines, one for each reference.
        edges: the references; empty if only C code holds the object.
    """
    lines: list[str] = []
    numbered = (
        zip(path, (edge.hidden for edge in edges), strict=True) if edges else ((line, False) for line in path)
    )
    for hidden, row in groupby(numbered, key=itemgetter(1)):
        texts = [line for line, _ in row]
        count = len(texts) - 2 * _AT_AN_END
        if hidden and len(texts) > _MOST_HIDDEN:
            texts[_AT_AN_END:-_AT_AN_END] = [MORE_REFERENCES.format(count=count)]
        lines += texts if hidden else _without_repeats(texts)
    return lines


def _without_repeats(texts: Sequence[str]) -> list[str]:
    """Return the lines with one copy of lines that repeat, and after it a line that counts the other copies."""
    lines: list[str] = []
    at = 0
    while at < len(texts):
        # choose the number of lines whose repeats are longest in all; of equal ones, the smallest number
        count, times = max(
            ((count, _times(texts, at, count)) for count in range(1, _MOST_IN_STRETCH + 1)),
            key=lambda stretch: (stretch[0] * (stretch[1] - 1), -stretch[0]),
        )
        if count * (times - 2) < _FEWEST_LEFT_OUT:
            lines.append(texts[at])
            at += 1
            continue
        again = SAME_LINE_AGAIN if count == 1 else SAME_LINES_AGAIN
        lines += [*texts[at : at + count], again.format(count=count, more=times - 1)]
        at += count * times
    return lines


def _times(texts: Sequence[str], at: int, count: int) -> int:
    """Return how often the `count` lines from `at` come directly after each other."""
    times = 1
    while texts[at : at + count] == texts[at + times * count : at + (times + 1) * count]:
        times += 1
    return times


def holder_phrase(edges: Iterable[Edge | None], *, is_path: bool = True) -> str:
    """Return who holds the tensors, in one phrase; None stands for references that are left out."""
    phrases = [LEFT_OUT if edge is None else edge_phrase(edge) for edge in edges]
    return ALONG_A_PATH.join(phrases) if is_path else IN_A_CYCLE.join(dict.fromkeys(phrases))


def hook_holder_phrase(edges: Sequence[Edge], tables: int) -> str:
    """Return the object that a hook is registered on, and how many more objects have the same hook.

    Args:
        edges: the path to one of the objects.
        tables: the number of objects with this hook. Each object has one table of hooks.
    """
    holder = holder_phrase(edges)
    if tables == 1:
        return holder
    return (HOOKS_OF_ONE_MORE if tables == 2 else HOOKS_OF_MORE).format(holder=holder, count=tables - 1)


def hook_phrase(function: str, file: str, line: int, edges: Sequence[Edge]) -> str:
    """Return the function that is registered as a hook, the object that has the hook, and where `def` is.

    Args:
        function: its name.
        file: its file.
        line: its line.
        edges: the path from the root to the table of hooks.
    """
    on = ON_OBJECT.format(holder=edge_phrase(edges[-2])) if len(edges) > 1 else ""
    return HOOK.format(function=function, place=place(file, line), on=on)


class OnDevice(Protocol):
    """Bytes on one device, such as those of a leak."""

    @property
    def device(self) -> str:
        """The device."""

    @property
    def nbytes(self) -> int:
        """The bytes."""


class Leaked(OnDevice, Protocol):
    """The attributes of a leak that sentences about several leaks use."""

    @property
    def kind(self) -> LeakKind:
        """The kind."""

    @property
    def count(self) -> int:
        """The number of tensors, hooks or nodes."""

    @property
    def graph_nodes(self) -> int:
        """The number of autograd nodes that it keeps beside its tensors. A leaked graph has only nodes."""

    @property
    def graph_bytes(self) -> int:
        """The estimated bytes of these nodes."""

    @property
    def every(self) -> int:
        """The number of calls or rounds per leak of this size; 1 if each one leaks."""


def sizes_of(leaks: Iterable[OnDevice]) -> dict[str, int]:
    """Return the leaked bytes of each device, the accelerators first."""
    sums: dict[str, int] = {}
    for leak in sorted(leaks, key=lambda leak: (is_host(leak.device), leak.device)):
        sums[leak.device] = sums.get(leak.device, 0) + leak.nbytes
    return sums


def sizes_phrase(sizes: Mapping[str, int]) -> str:
    """Return the bytes of each device in words. If all bytes are on the host, no device is named."""
    if all(map(is_host, sizes)):
        return format_bytes(sum(sizes.values()))
    return AND.join(
        ON_DEVICE.format(size=format_bytes(nbytes), device=name) for name, nbytes in sizes.items()
    )


def total_line(leaks: Sequence[Leaked]) -> str:
    """Return the first line of an error: how much leaked in all."""
    groups = ONE_GROUP if len(leaks) == 1 else GROUPS.format(count=len(leaks))
    if not all(leak.kind.is_of_tensors for leak in leaks):
        return TOTAL_OF_ALL.format(amounts=amounts_phrase(leaks), groups=groups)
    count = sum(leak.count for leak in leaks)
    return TOTAL.format(size=sizes_phrase(sizes_of(leaks)), count=count, groups=groups)


def site_phrase(file: str, line: int, function: str) -> str:
    """Return ``file.py:12 in f``."""
    return SITE.format(place=place(file, line), function=function)


def failure_sentence(
    kind: LeakKind,
    *,
    sizes: Mapping[str, int],
    count: int,
    per_run: bool,
    holder: str,
    others: int,
    cause: str,
) -> str:
    """Return what a test leaked and who holds the largest part, in one sentence."""
    return FAILURE.format(
        amount=_amount(kind, sizes, count),
        each=ON_EACH_RUN if per_run else "",
        held_by=kind.held_by_short,
        holder=holder,
        cause=cause,
        more=AND_MORE.format(count=others) if others else "",
    )


def beside_line(classes: Iterable[tuple[str, int]], repeat: str) -> str:
    """Return which other objects grow along with the tensors, as a line under a leak."""
    return BESIDE.format(objects=beside_phrase(classes), repeat=repeat)


def beside_phrase(classes: Iterable[tuple[str, int]]) -> str:
    """Return which other objects grow along with the tensors; empty if none do."""
    return IN_A_CYCLE.join(
        MORE_OBJECT.format(name=name) if count == 1 else MORE_OBJECTS.format(count=count, name=name)
        for name, count in classes
    )


def advice(
    remedy: Remedy,
    *,
    with_graph: bool = False,
    further: Sequence[str] = (),
    is_complete: bool = True,
    shows_part: bool = False,
    name: str | None = None,
    of_objects: bool = False,
    strong: str = "",
) -> str:
    """Return the sentence for a remedy.

    Args:
        remedy: the change.
        with_graph: True if the tensor is kept together with its autograd graph, which the sentence then mentions.
        further: the other references to cut, in words. All of them must be cut.
        is_complete: False if there may be more of these.
        shows_part: True if the tensor shows only a part of its storage and is not a view.
        name: the variable or the attribute that the sentence names.
        of_objects: True if the kept values are no tensors.
        strong: the class of the kept object, if no weak reference can refer to it.
    """
    sentence = (remedy.row.of_objects if of_objects else "") or remedy.row.advice
    if name is not None:
        sentence = sentence.format(name=name)
    if strong and remedy.row.is_weak:
        sentence = ADD_WEAK_SLOT.format(advice=sentence, name=strong)
    if with_graph and remedy.row.has_value and not remedy.row.detaches:
        sentence = AND_THE_GRAPH.format(advice=sentence, graph=Remedy.GRAPH.row.advice)
    if shows_part:
        sentence = AND_THE_STORAGE.format(advice=sentence)
    if not further:
        return sentence
    references = ", ".join(further[:_MOST_CUTS])
    if len(further) > _MOST_CUTS:
        references = MORE_CUTS.format(references=references, count=len(further) - _MOST_CUTS)
    if not is_complete:
        references = MORE_CYCLES.format(references=references)
    return FURTHER_CUTS.format(advice=sentence, references=references)
