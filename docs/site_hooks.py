"""Hooks of the site's generator: the reports that the pages link to are pages of the site too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

REPORTS = Path(__file__).parents[1] / "reports"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reports."""
    for report in sorted([*REPORTS.glob("*.md"), *REPORTS.glob("*.py")]):
        files.append(File.generated(config, f"reports/{report.name}", abs_src_path=str(report)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to the reports lead to where they are in the site."""
    return markdown.replace("](../reports/", "](reports/") if "/" not in page.file.src_uri else markdown
