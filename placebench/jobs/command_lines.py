"""Command lines of a launch: put together of the user's words and the adapter's, and as lines to copy."""

import shlex
from collections.abc import Collection, Sequence

from placebench.jobs.adapter import Settings
from placebench.jobs.arguments import ARGS
from placebench.record.job_record import JobLaunch


def with_launcher_args(command: Sequence[str], args: Sequence[str]) -> tuple[str, ...]:
    """A command whose launcher of ranks is given arguments: as the last before its script, which count."""
    if not args:
        return tuple(command)
    script = next(
        (place for place, word in enumerate(command) if place and (word.endswith(".py") or word in ("-m", "--module"))),
        len(command),
    )
    return (*command[:script], *args, *command[script:])


def with_args(command: Sequence[str], args: Sequence[str]) -> tuple[str, ...]:
    """A command with arguments where it says `{args}`, else at its end."""
    words: list[str] = []
    for word in command:
        words += args if word == "{args}" else [ARGS.sub(lambda _: shlex.join(args), word)]
    return tuple(words) if any(map(ARGS.search, command)) else (*words, *args)


def lines_of(settings: Settings) -> tuple[str, ...]:
    """Settings as lines of a shell: variables, what runs beside the command, arguments; none where there are none."""
    # Whoever copies them may have paths of their own, which still count.
    more = {"PYTHONPATH": "${PYTHONPATH:+:$PYTHONPATH}"}
    lines = [f"export {_variable(name, text)}{more.get(name, '')}" for name, text in settings.env.items()]
    lines += [f"{shlex.join(one.command)} &  # on the devices of {one.pool}" for one in settings.beside]
    arguments = [shlex.join(args) for args in (settings.launcher_args, settings.args) if args]
    return (*lines, *arguments) or ("nothing: the command as it is",)


def shell_lines(launch: JobLaunch, cores: Collection[int] = ()) -> tuple[str, ...]:
    """What a launch starts, as lines to paste into a shell: first what runs beside its command.

    Args:
        launch: the launch.
        cores: of its CPU devices, to which it is held; none on GPUs.
    """
    folder = f"cd {shlex.quote(launch.cwd)} &&"
    if cores:
        folder += f" taskset -c {','.join(map(str, sorted(cores)))}"
    started = [*((one.env, one.command) for one in launch.companions), ({}, launch.command)]
    lines = []
    for number, (env, command) in enumerate(started, start=1):
        variables = [_variable(name, text) for name, text in {**launch.env, **env}.items()]
        lines.append(" ".join([folder, *(["env", *variables] if variables else []), shlex.join(command)]))
        lines[-1] += "" if number == len(started) else " &"
    for one in launch.elsewhere:
        variables = [_variable(name, text) for name, text in one.env.items()]
        lines.append(f"{folder} env {' '.join(variables)} {shlex.join(one.command)}  # on node {one.node}")
    return tuple(lines)


def _variable(name: str, text: str) -> str:
    """A variable as a word of a shell; its name may have what a shell would read otherwise."""
    return f"{shlex.quote(name)}={shlex.quote(text)}"
