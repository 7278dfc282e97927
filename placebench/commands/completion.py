"""What a shell completes: the words of options and arguments, and the scripts that ask for them.

A shell asks at every press of Tab, so that nothing heavy is loaded, and what cannot be read offers nothing.
"""

import contextlib
import os
from collections.abc import Iterable

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from placebench.errors import UsageError

Items = list[CompletionItem[str]]

_LINES = """\b
Add a line to your shell's file:
  bash: eval "$(placebench completion bash)"       to ~/.bashrc
  zsh:  eval "$(placebench completion zsh)"        to ~/.zshrc, behind compinit
  fish: placebench completion fish | source        to ~/.config/fish/config.fish
"""
_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_PLACEBENCH_COMPLETE"
# Offered where --devices does not say how many there are.
_DEVICES = 4
_COUNTS = (1, 2, 4, 8)


@add_completion_class
class WholeWordBashComplete(BashComplete):
    """Completion in bash of words with : and =, at which bash breaks them: what it is given are the parts behind."""

    source_template = """\
%(complete_func)s() {
    local type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                COMPREPLY+=("$value")
                [[ $value == *[=:/] ]] && compopt -o nospace
                ;;
        esac
    done < <(COMP_LINE=${COMP_LINE:0:COMP_POINT} %(complete_var)s=bash_complete "$1" 2>/dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is completed, and that one."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() else words.pop()
        value = incomplete.partition("=")[2] if incomplete.startswith("-") else incomplete
        self._before = value[: max(map(value.rfind, ":=")) + 1]
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[str]) -> str:
        """A line for the script."""
        return f"{item.type},{item.value.removeprefix(self._before)}"


@add_completion_class
class WholeWordFishComplete(FishComplete):
    """Completion in fish of words with commas: only the first one sets the kind of an item apart."""

    source_template = FishComplete.source_template.replace('string split "," ', 'string split -m 1 "," ')


@click.command(epilog=_LINES, short_help="Print the script for Tab completion in bash, zsh or fish.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which a shell completes commands, options, runs, placements, keys and files."""
    found = get_completion_class(shell)
    assert found is not None
    script = found(ctx.find_root().command, {}, "placebench", _VARIABLE).source()
    click.echo(script, nl=False)  # noqa: TID251 - for a shell, nothing in it is from outside


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """A RUN: names, and folders where a name is not enough."""
    return [CompletionItem(incomplete, "file"), *_items(_runs(incomplete), incomplete)]


def complete_sources(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Runs, placements of them behind a colon, and files; behind a comma or the name of an arm, too."""
    found: list[str] = []
    for before in ("", incomplete[: incomplete.rfind(",") + 1], incomplete[: incomplete.find("=") + 1]):
        word = incomplete.removeprefix(before)
        run, colon, _ = word.partition(":")
        offered = (f"{run}:{name}" for name in _placements_of(run)) if colon else _runs(word)
        found = found or [f"{before}{one}" for one in offered if one.startswith(word)]
    return [CompletionItem(incomplete, "file"), *_items(found, incomplete)]


def complete_placements(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Placement words, their settings behind a slash, and placement files; behind a comma, too."""
    import glob

    from placebench.spec.presets import DDP, PRESETS
    from placebench.spec.words import SETTINGS, names_file, preset_of, split_words

    word = split_words(incomplete)[-1]
    before = incomplete.removesuffix(word)
    head, slash, _ = word.rpartition("/")
    if slash and (preset_of(head) or names_file(head)):
        keys = [key for key in SETTINGS if key != "scaling" or preset_of(head) is DDP]
        offered = [f"{head}/{key}={value}" for key in keys for value in _choices(SETTINGS[key].form)]
    else:
        nodes = _nodes(ctx.params.get("devices"))
        offered = [usual for preset in PRESETS for usual in preset.usual(nodes)]
        offered += (file for file in sorted(glob.glob(f"{glob.escape(word)}*")) if names_file(file))
    return [CompletionItem(incomplete, "file"), *_items((before + one for one in offered), incomplete)]


def complete_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """KEY=VALUE: workload keys, and the values of those that have a few."""
    from placebench.spec.workload import choices_of, workload_keys

    key, equals, _ = incomplete.partition("=")
    if equals:
        return _items((f"{key}={value}" for value in choices_of(key)), incomplete)
    return _items((f"{key}=" for key in workload_keys()), incomplete)


def complete_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Presets, and folders."""
    from placebench.spec.shapes import PRESETS as MODELS

    return [CompletionItem(incomplete, "dir"), *_items(MODELS, incomplete)]


def complete_devices(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Devices of this host, by kind and count."""
    return _items((word for kind in ("cpu", "gpu") for word in (kind, *(f"{kind}:{n}" for n in _COUNTS))), incomplete)


def _items(words: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _runs(incomplete: str) -> list[str]:
    from placebench.commands.runs import completed_runs

    with contextlib.suppress(OSError):
        return completed_runs(incomplete)
    return []


def _placements_of(run: str) -> list[str]:
    from placebench.commands.runs import find_run
    from placebench.record.folder import RunFolder
    from placebench.record.run_file import read_run_file

    with contextlib.suppress(OSError, UsageError):
        return [placement.name for placement in read_run_file(RunFolder(find_run(run))).placements]
    return []


def _choices(form: str) -> list[str]:
    """The values that a form such as none|updates|all lists; an empty one for a number."""
    return form.split("|") if "|" in form else [""]


def _nodes(devices: str | None) -> tuple[int, ...]:
    from placebench.spec.devices import parse_devices

    with contextlib.suppress(UsageError):
        spec = parse_devices(devices or "")
        return (spec.count or _DEVICES,) * (spec.nodes or 1)
    return (_DEVICES,)
