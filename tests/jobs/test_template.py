"""A job file to begin with."""

import shlex
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from placebench.jobs.template import write_template
from placebench.spec.config import load_yaml

# Of any signs but NUL, which no word of a command line has; bytes that are no UTF-8 come as surrogates.
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=20)


@given(st.lists(WORDS, min_size=1, max_size=4))
@example(["python", "-c", "print(1)\nprint(2)"])
@example(["python", "-c", "\tprint('a  b')\r\n\n  \\n # no: comment\n"])
@example(["echo", "\x85\u2028\ufeff\x1b\x7f", "\udcff", "\N{GRINNING FACE}"])
def test_any_command_is_read_back_as_it_was(command: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.yaml")
        write_template(path, "command", command)
        text = load_yaml(path)["command"]
    assert shlex.split(text) == ([*command] if any("{args}" in word for word in command) else [*command, "{args}"])
