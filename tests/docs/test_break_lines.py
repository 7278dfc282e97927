"""scripts/break_lines.py breaks prose at sentences, and leaves all else as it is."""

import re

import pytest
from break_lines import WIDTH, break_lines
from hypothesis import given
from hypothesis import strategies as st

WORDS = st.lists(
    st.sampled_from(["placebench", "step.", "a", "`make docs`", "22 %", "**bold**", "(why?)", "+", "-", "1."]),
    min_size=1,
)


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("One. Two\nthree.\n", "One.\nTwo three.\n"),
        ("- One. Two.\n  Three\n- Four\n", "- One.\n  Two.\n  Three\n- Four\n"),
        ("See *this.* placebench `is. it`.\n", "See *this.*\nplacebench `is. it`.\n"),
        ("Shao et al. 2024, e.g. this ... all\n", "Shao et al. 2024, e.g. this ... all\n"),
        (f"{'x' * (WIDTH - 3)} 22 %\n", f"{'x' * (WIDTH - 3)}\n22 %\n"),
    ],
)
def test_a_sentence_has_a_line(text: str, broken: str) -> None:
    assert break_lines(text) == broken


@pytest.mark.parametrize(
    "text",
    ["# One. Two.\n", "| One. Two. |\n", "```text\nOne. Two.\n```\n", "> One. Two.\n", "![One. Two.](a.svg)\n", "\n\n"],
)
def test_what_is_no_prose_stays(text: str) -> None:
    assert break_lines(text) == text


@given(WORDS)
def test_no_word_is_lost_and_broken_lines_stay(words: list[str]) -> None:
    text = " ".join(["First", *words]) + "\n"
    broken = break_lines(text)
    assert broken.split() == text.split()
    assert not any(re.match(r"([-+]|\d+\.) ", line) for line in broken.splitlines())
    assert break_lines(broken) == broken
