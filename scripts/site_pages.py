"""The pages of the site, each at its place in the repository: a link leads to the same here and on a code host."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
_ALONE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "runs/README.md")
_REPORTS = "runs/reference"
_SHORT_CODE = re.compile(r"<code>(?=[^<\s]{1,24}</code>)")
_KINDS = (".md", ".svg", ".png", ".json", ".css")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by all that the site shows, under their paths in the repository."""
    for file in tuple(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    folders = (path for folder in ("docs", _REPORTS) for path in sorted((ROOT / folder).rglob("*")))
    for path in (*(ROOT / name for name in _ALONE), *(path for path in folders if path.suffix in _KINDS)):
        name = path.relative_to(ROOT).as_posix()
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Leave reports of single runs out of the search: their tables would be most of what it finds."""
    if page.file.src_uri.startswith(_REPORTS):
        page.meta["search"] = {"exclude": True}


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark short words of code, such as `--resume`, which docs/site.css keeps in one line."""
    return _SHORT_CODE.sub('<code class="whole">', html)
