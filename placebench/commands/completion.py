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
    ShellComplete,
    ZshComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from placebench.errors import UsageError

Items = list[CompletionItem[str]]

_EXAMPLES = """\b
Examples, each a line for your shell's file:
  eval "$(placebench completion bash)"       # in ~/.bashrc
  eval "$(placebench completion zsh)"        # in ~/.zshrc, after compinit
  placebench completion fish | source        # in ~/.config/fish/config.fish
"""
_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_PLACEBENCH_COMPLETE"
# Offered where --devices does not say how many there are.
_DEVICES = 4
_COUNTS = (1, 2, 4, 8)
# As `logs.registry` and `compare.metrics` have them, which are heavy to load; tests see that they agree.
FORMATS = (
    *("tensorboard", "placebench", "verl-jsonl", "trl-state", "jsonl", "verl", "openrlhf", "slime", "skyrl", "areal"),
    *("nemo-rl", "open-instruct", "prime-rl", "trl", "csv"),
)
METRICS = ("tokens_per_s", "tokens_per_s_per_device", "peak_memory", "idle", "energy")


class _WordsFirst(ShellComplete):
    """Offers files only where no word fits: a file whose name begins as that of a run does is in nobody's way."""

    def get_completions(self, args: list[str], incomplete: str) -> Items:
        """Words, or else files or folders."""
        if args[:2] == ["slurm", "submit"] and "--" in args:
            args = args[args.index("--") + 1 :]
            if not args:
                return _items(["run"], incomplete)
        found = super().get_completions(args, incomplete)
        return [item for item in found if item.type == "plain"] or found


@add_completion_class
class WholeWordBashComplete(_WordsFirst, BashComplete):
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
class WholeWordZshComplete(_WordsFirst, ZshComplete):
    """Completion in zsh of values behind the = of an option, and without a blank behind words that go on."""

    source_template = """\
%(complete_func)s() {
    local type value help
    local -a found whole open described
    found=("${(@f)$(
        COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) %(complete_var)s=zsh_complete $words[1] 2>/dev/null
    )}")
    [[ $PREFIX == -*=* ]] && compset -P 1 '*='
    for type value help in "${found[@]}"; do
        case $type in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            plain)
                if [[ $help != _ ]]; then
                    described+=("$value:$help")
                elif [[ $value == *[=:/] ]]; then
                    open+=("$value")
                else
                    whole+=("$value")
                fi
                ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described
    (( $#whole )) && compadd -V unsorted -a whole
    (( $#open )) && compadd -V unsorted -S '' -a open
}

compdef %(complete_func)s %(prog_name)s
"""


@add_completion_class
class WholeWordFishComplete(_WordsFirst, FishComplete):
    """Completion in fish of words with commas, only the first of which sets the kind of an item apart, and with =."""

    source_template = FishComplete.source_template.replace('string split "," ', 'string split -m 1 "," ')
    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is completed, and that one."""
        words, incomplete = super().get_completion_args()
        self._before = incomplete[: incomplete.find("=") + 1] if incomplete.startswith("-") else ""
        return words, incomplete

    def format_completion(self, item: CompletionItem[str]) -> str:
        """A line for the script: fish takes whole words."""
        return super().format_completion(CompletionItem(self._before + item.value, item.type, item.help))


@click.command(epilog=_EXAMPLES, short_help="Print the script for Tab completion in bash, zsh or fish.")
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


def complete_formats(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Formats of logs."""
    return _items(FORMATS, incomplete)


def complete_metrics(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Numbers that can regress, whatever their words: phases by name, the others by key."""
    from placebench.spec.phases import PHASE_ORDER

    return _items(("step", *PHASE_ORDER, *METRICS), incomplete)


def _items(words: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _runs(incomplete: str) -> list[str]:
    from placebench.record.named_runs import completed_runs

    with contextlib.suppress(OSError):
        return completed_runs(incomplete)
    return []


def _placements_of(run: str) -> list[str]:
    from placebench.record.folder import RunFolder
    from placebench.record.named_runs import find_run
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
