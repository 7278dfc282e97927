"""American spelling everywhere that users read: pages, and the texts of the program."""

import ast
import re
from collections.abc import Iterator

from pages import ROOT

BRITISH = re.compile(
    r"[a-z]*(?:colour|behaviour|neighbour|favour|honour|artefact|defence|catalyse|programme\b)[a-z]*"
    r"|(?:centre|centred|grey|metre|labelled|travelled|fulfil)\b"
    r"|(?:util|optim|normal|organ|recogn|summar|initial|serial|minim|maxim)is(?:e|es|ed|er|ers|ing|ation)\b",
    re.IGNORECASE,
)
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("runs/**/*.md"), *ROOT.glob("examples/**/*.md")]
MODULES = sorted((ROOT / "placebench").rglob("*.py"))


def texts() -> Iterator[tuple[str, str]]:
    """Where a text stands, and the text."""
    for page in PAGES:
        yield str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{module.relative_to(ROOT)}:{node.lineno}", node.value


def test_words_are_spelled_the_american_way() -> None:
    found = [(where, word[0]) for where, text in texts() for word in BRITISH.finditer(text)]
    assert found == []


def test_the_other_spelling_is_seen() -> None:
    for word in ("colours", "Behaviour", "utilisation", "grey", "centred", "initialise"):
        assert BRITISH.search(f"a {word} b")
    for word in ("color", "utilization", "center", "greyhound", "programmed", "serialize", "promise"):
        assert not BRITISH.search(f"a {word} b")
