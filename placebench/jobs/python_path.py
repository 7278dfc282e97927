"""Whether a user's shell script replaces `PYTHONPATH`, by which the job's processes find modules of placebench's."""

import re

from placebench.jobs.scripts import Given

_SET = re.compile(
    r"(?<![\w$.-])(?:PYTHONPATH=(?P<value>(?:\"[^\"]*\"|'[^']*'|\\.|[^\s;&|\"'])*)|unset\s[^;&|]*\bPYTHONPATH\b)"
)
_NAMED = re.compile(r"\$\{?(\w+)")


def replaced_path(given: Given) -> str | None:
    """The line of a shell script, or of the command, that sets `PYTHONPATH` without what it was; None for none."""
    for where, line in given.shell_lines:
        for match in _SET.finditer(line):
            names = set(_NAMED.findall(match["value"] or ""))
            if "PYTHONPATH" not in names and not any(_keeps(given, name) for name in names):
                return f"{where}: {' '.join(match[0].split())[:100]!r}"
    return None


def _keeps(given: Given, name: str) -> bool:
    """Whether a variable is set from `PYTHONPATH`, which is then in it."""
    keeps = re.compile(rf"(?<!\w){name}=\S*\$\{{?PYTHONPATH\b")
    return any(keeps.search(line) for _, line in given.shell_lines)
