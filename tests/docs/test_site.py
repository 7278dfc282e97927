"""The site: it builds strictly, loads nothing from elsewhere, has every page in its menu and in its search."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from pages import ROOT

DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """What a page loads, and the text of its paragraphs."""

    LOADED: ClassVar = {
        "script": "src",
        "img": "src",
        "source": "src",
        "iframe": "src",
        "link": "href",
        "form": "action",
    }

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.paragraphs: list[str] = []
        self._in_paragraph = self._in_code = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if address := values.get(self.LOADED.get(tag, "")):
            self.loads.append(address)
        if tag == "p":
            self.paragraphs.append("")
        self._in_paragraph |= tag == "p"
        self._in_code |= tag == "code"

    def handle_endtag(self, tag: str) -> None:
        self._in_paragraph &= tag != "p"
        self._in_code &= tag != "code"

    def handle_data(self, data: str) -> None:
        if self._in_paragraph and not self._in_code:
            self.paragraphs[-1] += data


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(DOCS)
    assert [(page.name, load) for page in pages for load in Page(page).loads if re.match(r"(\w+:)?//", load)] == []
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles
    assert [
        found for style in styles for found in re.findall(r"(?:url\(|@import )[\"']?(?:\w+:)?//[^)\"']+", style)
    ] == []


def test_what_is_a_list_or_table_on_a_code_host_is_one_here(site: Path) -> None:
    for page in site.rglob("*.html"):
        for paragraph in Page(page).paragraphs:
            assert not re.search(r"^\s*(- |\* (?!its interval)|\d+\. |\|)", paragraph, re.MULTILINE), (
                f"{page}: {paragraph}"
            )


def test_the_menu_has_every_page_in_four_groups() -> None:
    class Loader(yaml.SafeLoader):
        """Of a file with objects of Python's in it."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)["nav"]
    assert [name for group in nav for name in group] == ["Start", "Guides", "Reference", "Why"]
    named = re.findall(r"docs/[\w/.-]+\.md", json.dumps(nav))
    assert sorted(named) == DOCS


def test_the_search_finds_every_page(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {name.removesuffix(".md") + ".html" for name in DOCS} <= found
    assert not any(location.startswith("runs/reference/4x") for location in found)  # reports of single runs
    (entry,) = (entry for entry in index["docs"] if entry["location"] == "docs/glossary.html")
    assert "staleness" in entry["text"]
