"""Pages without a test of their own: their commands run, as dry runs; links and lines of all pages."""

import re
from pathlib import Path

import pytest
from break_lines import WIDTH
from checkpoint_files import write_checkpoint
from pages import ROOT, checkout, commands, shell

from placebench.spec.workload_reading import build_workload

PAGES = [
    *(ROOT / "docs").rglob("*.md"),
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "runs/README.md")
    ),
    *(ROOT / "runs" / "reference").rglob("*.md"),
]
# A cluster to start Ray on, or to submit to.
ELSEWHERE = ("ray start ", "--ray-address ", "slurm submit --nodes 2 --gpus-per-node 4 --time ")


STARTING = ("placebench run", "placebench calibrate", "make")


@pytest.mark.parametrize("name", ["async", "checkpoints", "clusters", "first", "gpus", "grpo", "install"])
def test_the_commands_of_a_page_run(tmp_path: Path, name: str) -> None:
    environment = checkout(tmp_path)
    write_checkpoint(
        tmp_path / "runs/20260101T000000Z-first/trials/01-split/checkpoints", 200, build_workload({"steps": 200})
    )
    found = commands((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"))
    assert found
    for command in found:
        if not any(word in command for word in ELSEWHERE):
            shell(command + (" --dry-run" if command.startswith(STARTING) else ""), tmp_path, environment)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {path}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {path}#{anchor}"


def long_lines(text: str) -> list[str]:
    """The lines of prose that are too long, but for those that a long command or address makes so."""
    prose = re.sub(r"^```.*?^```|^\|.*?$|^!\[.*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [
        line for line in prose.splitlines() if len(line) > WIDTH and not re.search(r"`[^`]{81,}`|\]\(\S{61,}\)", line)
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name == "README.md" or "runs" not in page.parts])
def test_its_lines_are_broken(page: Path) -> None:
    name = page.relative_to(ROOT)
    assert not long_lines(page.read_text(encoding="utf-8")), f"run python scripts/break_lines.py {name}"
