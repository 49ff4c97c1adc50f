"""The text of a page: a template, a stylesheet, a script, and the model as data that the browser cannot run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import jinja2
from markupsafe import Markup, escape

from memwatch._version import __version__
from memwatch.kinds.roles import CATEGORY_ROWS
from memwatch.report.meta import format_duration
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        licences=asset("licences.txt"),
        version=__version__,
    )


def marked(text: str) -> Markup:
    """Return a text as HTML. Text between backticks becomes code, as in `dom.ts`."""
    parts = (escape(part) for part in _BETWEEN_BACKTICKS.split(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else part for index, part in enumerate(parts)
    )


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


def _hash_source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"
