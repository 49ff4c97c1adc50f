"""Write the pages for a reading, for a list of leaks, and for two captures.

The text of a page is a template, a stylesheet, a script, and the model as data that the browser cannot run.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2
from markupsafe import Markup, escape

from memwatch import output_files
from memwatch._version import __version__
from memwatch.analysis.tables import TEXT
from memwatch.kinds.roles import CATEGORIES, CATEGORY_ROWS
from memwatch.output_files import OutputError
from memwatch.progress import working
from memwatch.report.page.columns import Words, pack_frame
from memwatch.report.page.model import Extras, page_model
from memwatch.report.page.sections import leak_page_model
from memwatch.sizes import format_bytes, format_duration
from memwatch.text import visible
from memwatch.words.page import LINES_MEANING, SECTIONS, diff_headline
from memwatch.words.storages import file_remarks

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from memwatch.analysis.compare import Comparison
    from memwatch.analysis.reading import DeviceReading
    from memwatch.leaks import Leak
    from memwatch.planner.plan import Plan
    from memwatch.report.plan import Replayed

_BETWEEN_BACKTICKS: Final = re.compile(r"`([^`]+)`")
ASSETS: Final = files("memwatch.report.page") / "assets"
_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


@cache
def asset(name: str) -> str:
    """Return the text of a file of `assets`."""
    return (ASSETS / name).read_text(encoding="utf-8")


def json_for_script(value: object) -> str:
    """Return JSON without HTML markup, so that it is safe inside a script element."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def content_security_policy(script: str, style: str) -> str:
    """Return a policy that allows this script and this stylesheet, and no network, handlers or HTML from text."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash_source(script)}",
            f"style-src {_hash_source(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def category_styles() -> str:
    """Return the rules of the stylesheet that give each category its colour."""
    return "".join(f'[data-category="{row.name}"]{{--c:{row.color}}}' for row in CATEGORY_ROWS)


def category_meanings() -> str:
    """Return the categories in one phrase, with what they mean where the name alone does not say it."""
    *first, last = (
        row.name if row.meaning is None else f"{row.name} ({row.meaning})" for row in CATEGORY_ROWS
    )
    return f"{', '.join(first)}, or {last}"


def render(
    template: str, model: dict[str, Any], *, others: Sequence[dict[str, Any]] = (), script: str = "page.js"
) -> str:
    """Return a page model (see `model.page_model`, `leaks.leak_page_model`) as one self-contained HTML page.

    Args:
        template: name of the page's template.
        model: plain JSON values, shown by the template and read by the script.
        others: models of the same page for other devices, which a switch shows in place of the first.
        script: name of its script.

    Returns:
        The page's text.
    """
    code, style = asset(script), asset("page.css") + category_styles()
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"bytes": format_bytes, "duration": format_duration, "percent": _percent}
    environment.filters |= {"json_for_script": json_for_script, "marked": marked}
    return environment.get_template(template).render(
        model=model,
        others=others,
        csp=content_security_policy(code, style),
        style=style,
        script=code,
        data=json_for_script(model),
        category_meanings=category_meanings(),
        sections=SECTIONS,
        lines_meaning=LINES_MEANING,
        licences=asset("licences.txt"),
        version=__version__,
    )


def marked(text: str) -> Markup:
    """Return a text as HTML. Text between backticks becomes code, as in `dom.ts`."""
    parts = (_unbroken(escape(part)) for part in _BETWEEN_BACKTICKS.split(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else part for index, part in enumerate(parts)
    )


def _unbroken(text: Markup) -> Markup:
    """Return a text whose arrows stay whole: a browser may break a line inside of `->`."""
    arrow = escape("->")
    return text.replace(arrow, Markup('<span class="nowrap">{}</span>').format("->"))


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


def _hash_source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


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
"""The version of the format of the page about two captures."""


def diff_model(compared: Comparison, *, old: str, new: str) -> dict[str, Any]:
    """Return what the page of a comparison shows.

    Args:
        compared: the two peaks and their sites.
        old: what the old capture is called.
        new: what the new one is called.

    Returns:
        A dict of plain JSON values: `old`, `new`, `headline`, `remarks`, `totals`, `categories`, and `blocks` (packed
        tables).
    """
    words, sites = Words(visible), compared.sites.reset_index()
    by_category = sites.groupby("category")[["old_bytes", "new_bytes"]].sum()
    texts = {name: sites[name].astype(TEXT) for name in ("category", "module", "site")}
    return {
        "model": MODEL_VERSION,
        "old": visible(old),
        "new": visible(new),
        "headline": diff_headline(
            compared.old_peak_bytes,
            compared.new_peak_bytes,
            (by_category["new_bytes"] - by_category["old_bytes"]).astype(int).to_dict(),
        ),
        "remarks": [
            visible(remark)
            for remark in file_remarks(compared.renamed_files, compared.old_files, compared.new_files)
        ],
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
    reading: DeviceReading,
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
    """Write a page. Check first whether its file may be replaced, because making the text may take long."""
    target = Path(path)
    refuse_existing(target, force=force)
    write_whole(target, text(), force=force)
    return target
