"""Where the arguments of a placement go in a user's command, and where a shell would lose them."""

import re
from collections.abc import Sequence
from pathlib import Path

from placebench.jobs.scripts import PYTHON_PROGRAMS, SHELLS, Given, code_lines

ARGS = re.compile(r"(?<!\{)\{args\}(?!\})")
"""What stands for the arguments in a command."""
# What starts the program that stands behind its own options.
_STARTERS = (
    *("env", "nohup", "setsid", "stdbuf", "time", "timeout", "nice", "ionice", "chrt", "taskset", "numactl", "exec"),
    *("command", "sudo", "unshare", "xvfb-run", "srun", "mpirun", "mpiexec", "flux", "ray", "nsys", "ncu"),
    *("uv", "uvx", "poetry", "pdm", "pixi", "rye", "hatch", "pipenv", "conda", "mamba", "micromamba"),
    *("apptainer", "singularity", "docker", "podman", "enroot"),
)
_SUFFIXES = (".sh", ".bash", ".zsh", ".ksh")
_SHEBANG = re.compile(rf"#!.*\b(?:{'|'.join(SHELLS)})\b")
_HANDS_ON = re.compile(r"\$(?:[@*]|\{[@*]\}|\{@[:#%/])")
# One that is given them by its own user's wish may take them one by one.
_READS = re.compile(rf"{_HANDS_ON.pattern}|\$(?:[#1-9]|\{{[1-9])|\bshift\b|\bgetopts\b")
_TAKES_TEXT = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
_TAKES_VALUE = re.compile(r"[-+][A-Za-z]*[oO]|--rcfile|--init-file")


def lost_arguments(given: Given, framework: str) -> str | None:
    """Why arguments that a command is given, where it says `{args}` or else at its end, do not reach its program.

    Args:
        given: the command with its scripts.
        framework: whose arguments they are.

    Returns:
        What drops them, and what to do instead; None where nothing is seen to drop them.
    """
    says_where = any(map(ARGS.search, given.command))
    words = [*given.command, *([] if says_where else ["{args}"])]
    place = _shell_in(words, given)
    lost = f"and those of --job {framework} would be lost"
    if place is None or any(map(ARGS.search, words[:place])):
        return None
    takes_text, what = (False, place) if words[place] in given.scripts else _behind_options(words, place)
    if what >= len(words):
        return None
    if takes_text:
        # The first word behind the text is its $0.
        hands_on = _HANDS_ON.search(words[what]) and not any(map(ARGS.search, words[what + 1 : what + 2]))
        if ARGS.search(words[what]) or hands_on:
            return None
        shell = Path(words[place]).name
        return f"what {shell} -c runs takes no arguments, {lost}: write {{args}} in it, where they belong"
    text = given.scripts.get(words[what])
    if text is None or any(map((_READS if says_where else _HANDS_ON).search, code_lines(text))):
        return None
    instead = "" if says_where else ", or write {args} where they belong"
    return f'{words[what]} takes no arguments, {lost}: put "$@" after its program\'s own{instead}'


def _shell_in(words: Sequence[str], given: Given) -> int | None:
    """The place of the shell, or shell script, that a command starts, also behind what starts another program."""
    for place, word in enumerate(words):
        name = Path(word).name
        if name in SHELLS or _is_of_a_shell(word, given.scripts.get(word)):
            return place
        is_python = name.endswith(".py") or name.rstrip("0123456789.") in PYTHON_PROGRAMS
        if is_python or (not place and name not in _STARTERS):
            return None
    return None


def _is_of_a_shell(name: str, text: str | None) -> bool:
    return text is not None and (Path(name).suffix in _SUFFIXES or _SHEBANG.match(text) is not None)


def _behind_options(words: Sequence[str], shell: int) -> tuple[bool, int]:
    """Whether a shell is given its program as text, and the place of that, or of its script."""
    takes_text, place = False, shell + 1
    while place < len(words) and words[place][:1] in ("-", "+"):
        takes_text = takes_text or _TAKES_TEXT.fullmatch(words[place]) is not None
        place += 2 if _TAKES_VALUE.fullmatch(words[place]) else 1
    return takes_text, place
