"""Hooks of the site's generator: the reports and tests that the pages link to are files of the site too."""

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
LINK = re.compile(r"\]\(\.\./((?:reports|tests)/[^)#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reports, and what the pages in this folder link to beside them."""
    reports = [*ROOT.glob("reports/*.md"), *ROOT.glob("reports/*.py")]
    pages = Path(__file__).parent.glob("*.md")
    linked = {ROOT / link for page in pages for link in LINK.findall(page.read_text(encoding="utf-8"))}
    for file in sorted({*reports, *linked}):
        files.append(File.generated(config, str(file.relative_to(ROOT)), abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to them lead to where they are in the site."""
    return LINK.sub(r"](\1", markdown) if "/" not in page.file.src_uri else markdown
