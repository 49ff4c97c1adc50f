"""Hooks of the site's generator. Pages may link to reports, which become pages, and to sources, which do not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
REPORT_LINK = re.compile(r"\]\(\.\./(reports/[^)#]+)")
SOURCE_LINK = re.compile(r"\[([^\[\]]+)\]\([^)#]+\.py(?:#[^)]*)?\)")
"""A link to a script or a test. They are not on the site, so a page shows the link's text alone."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reports, and the pictures of reports that a page shows."""
    pages = Path(__file__).parent.glob("*.md")
    linked = {ROOT / link for page in pages for link in REPORT_LINK.findall(page.read_text(encoding="utf-8"))}
    pictures = {path for path in linked if path.suffix in {".png", ".svg"}}
    beside = {path for page in ROOT.glob("reports/*.md") for path in _pictures_of(page)}
    for file in sorted({*ROOT.glob("reports/*.md"), *pictures, *beside}):
        files.append(File.generated(config, str(file.relative_to(ROOT)), abs_src_path=str(file)))
    return files


def _pictures_of(report: Path) -> set[Path]:
    names = re.findall(r"\]\(([^):#]+\.(?:png|svg))\)", report.read_text(encoding="utf-8"))
    return {report.parent / name for name in names}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to reports lead to their pages on the site, and turn links to source files into their text."""
    if page.file.src_uri.startswith("reports/"):
        page.meta["search"] = {
            "exclude": True
        }  # their tables of figures would hide the guides among the results
    markdown = SOURCE_LINK.sub(r"\1", markdown)
    return REPORT_LINK.sub(r"](\1", markdown) if "/" not in page.file.src_uri else markdown
