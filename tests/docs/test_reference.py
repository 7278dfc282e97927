"""docs/reference is what the program's tables say, as scripts/write_reference.py writes it."""

import pytest
from write_reference import FOLDER, PAGES, content


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_the_program_says(name: str) -> None:
    kept = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert kept == content(name), "run python scripts/write_reference.py, and commit what it writes"


def test_every_page_there_is_written_by_it() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(PAGES)
