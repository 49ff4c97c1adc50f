"""Write the pages for a reading, for a list of leaks, and for two captures."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from memwatch import output_files
from memwatch.analysis.texts import TEXT
from memwatch.kinds.roles import CATEGORIES
from memwatch.output_files import OutputError
from memwatch.progress import working
from memwatch.report.page.columns import Words, pack_frame
from memwatch.report.page.leaks import leak_page_model
from memwatch.report.page.model import Extras, page_model
from memwatch.report.page.render import render
from memwatch.text import visible

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from memwatch.analysis.compare import Comparison
    from memwatch.leaks import Leak
    from memwatch.planner.plan import Plan
    from memwatch.report.plan.figures import Replayed
    from memwatch.report.source import Reading


class ReportError(OutputError):
    """A report cannot be written to the path that was given."""


def refuse_existing(*targets: Path, inputs: Iterable[str] = (), force: bool) -> None:
    """Raise `ReportError` if a file exists and may not be replaced, or is an input."""
    with _as_report_error():
        output_files.check_outputs(targets, inputs=inputs, force=force)


def write_whole(target: Path, text: str, *, force: bool = False) -> None:
    """Write a file so that readers see all of it or nothing; see `output_files.write_whole`.

    Raises:
        ReportError: the file exists and `force` is not set, or its folder cannot be written.
    """
    with _as_report_error():
        output_files.write_whole(target, text, force=force)


@contextlib.contextmanager
def _as_report_error() -> Iterator[None]:
    try:
        yield
    except OutputError as error:
        raise ReportError(str(error)) from error


MODEL_VERSION: Final = 1


def diff_model(compared: Comparison, *, old: str, new: str) -> dict[str, Any]:
    """Return what the page of a comparison shows.

    Args:
        compared: the two peaks and their sites.
        old: what the old capture is called.
        new: what the new one is called.

    Returns:
        A dict of plain JSON values: `old`, `new`, `totals`, `categories`, and `blocks` (packed tables).
    """
    words, sites = Words(visible), compared.sites.reset_index()
    by_category = sites.groupby("category")[["old_bytes", "new_bytes"]].sum()
    texts = {name: sites[name].astype(TEXT) for name in ("category", "module", "site")}
    return {
        "model": MODEL_VERSION,
        "old": visible(old),
        "new": visible(new),
        "totals": {
            "device": visible(compared.device),
            "old_bytes": compared.old_peak_bytes,
            "new_bytes": compared.new_peak_bytes,
            "delta_bytes": compared.new_peak_bytes - compared.old_peak_bytes,
            "growth_ratio": compared.growth_ratio if compared.old_peak_bytes else None,
            "sites": len(sites),
        },
        "categories": [
            {
                "name": name,
                **{column: int(by_category[column][name]) for column in ("old_bytes", "new_bytes")},
            }
            for name in CATEGORIES
            if name in by_category.index
        ],
        "blocks": {"sites": pack_frame(sites.assign(**texts), words), "words": words.pack()},
    }


def html(
    reading: Reading,
    path: str | os.PathLike[str],
    *,
    plan: Plan | None = None,
    tradeoff: Sequence[Plan] | None = None,
    result: Replayed | None = None,
    leaks: Sequence[Leak] = (),
    title: str = "",
    source: bool = True,
    force: bool = False,
) -> Path:
    """Write the HTML page of a reading. A switch shows its other devices, without the plan and the leaks.

    Args:
        reading: a profile, from `memwatch.profile` or `memwatch.load`.
        path: the file to write.
        plan: a plan of this reading, shown in a section of its own.
        tradeoff: plans of this reading for other budgets. None searches for them, which takes some seconds
            for a plan that holds its program (see `trade_off`).
        result: result of `memwatch.replay` on the plan.
        leaks: leaks found in the same block, shown in a section of their own.
        title: what the page is about, such as the name of a test.
        source: whether file paths, source lines and the command line may be in the page.
        force: whether an existing file may be replaced.

    Returns:
        The path written.

    Raises:
        ReportError: the file exists and `force` is not set, or its folder cannot be written.
        PlanMismatchError: the result belongs to another plan.
    """
    extras = Extras(plan, tradeoff, result, leaks, title)
    with working("memwatch report") as say:

        def text() -> str:
            say(f"reading {reading.device}")
            model = page_model(reading, extras, source=source)
            rest = (reading.on(device) for device in reading.devices if device != reading.device)
            others = [page_model(other, Extras(title=title), source=source) for other in rest]
            say("writing the page")
            return render("page.html.j2", model, others=others)

        return _write(path, text, force=force)


def leak_page(
    leaks: Sequence[Leak],
    path: str | os.PathLike[str],
    *,
    title: str = "",
    source: bool = True,
    force: bool = False,
) -> Path:
    """Write the HTML page of a list of leaks; no profile is needed.

    Args:
        leaks: from `memwatch.find_leaks`, `check_leaks` or a `TensorLeakError`.
        path: the file to write.
        title: what leaked, such as the name of a test or a command.
        source: whether file paths may be in the page.
        force: whether an existing file may be replaced.

    Returns:
        The path written.

    Raises:
        ReportError: the file exists and `force` is not set, or its folder cannot be written.
    """
    return _write(
        path,
        lambda: render(
            "leaks.html.j2", leak_page_model(leaks, title=title, source=source), script="leaks.js"
        ),
        force=force,
    )


def diff_page(
    compared: Comparison, path: str | os.PathLike[str], *, old: str, new: str, force: bool = False
) -> Path:
    """Write the HTML page that compares two captures: both peaks, and the sites that differ.

    Args:
        compared: from `memwatch.analysis.compare.compare`.
        path: the file to write.
        old: the old capture's name on the page.
        new: the new capture's name on the page.
        force: whether an existing file may be replaced.

    Returns:
        The path written.

    Raises:
        ReportError: the file exists and `force` is not set, or its folder cannot be written.
    """
    return _write(
        path,
        lambda: render("diff.html.j2", diff_model(compared, old=old, new=new), script="diff.js"),
        force=force,
    )


def _write(path: str | os.PathLike[str], text: Callable[[], str], *, force: bool) -> Path:
    """Write a page; that its file may not be replaced is found before its text is made, which may take long."""
    target = Path(path)
    refuse_existing(target, force=force)
    write_whole(target, text(), force=force)
    return target
