"""The command line: thin; whatever is heavy is imported inside the commands, so that --help answers at once."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from placebench import __version__
from placebench.errors import PlacebenchError

if TYPE_CHECKING:
    from placebench.plan import Plan, RunRequest
    from placebench.runner import RunResult

# click's own exit code for a wrong command line, and the shell's for SIGINT.
_USAGE, _INTERRUPTED = 2, 130


class PlacebenchGroup(click.Group):
    """Turns every error into one line on stderr and its exit code, wherever in a command it comes from."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command line and exit."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except click.UsageError as error:
            code = _fail(f"{error.format_message()} (see {_command_path(error)} --help)", _USAGE)
        except click.ClickException as error:
            code = _fail(error.format_message(), error.exit_code)
        except PlacebenchError as error:
            code = _fail(str(error), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            code = _fail("stopped", _INTERRUPTED)
        except BrokenPipeError:
            _drop_stdout()
            code = 0
        except Exception as error:  # noqa: BLE001 - the last resort: one line, and the traceback in a file
            code = _fail_unexpectedly(error)
        sys.exit(code if isinstance(code, int) else 0)


def _command_path(error: click.UsageError) -> str:
    return error.ctx.command_path if error.ctx else "placebench"


def _fail(message: str, code: int) -> int:
    for line in message.splitlines():
        click.echo(f"placebench: {line}", err=True)
    return code


def _fail_unexpectedly(error: Exception) -> int:
    import tempfile
    import traceback

    if os.environ.get("PLACEBENCH_DEBUG"):
        traceback.print_exception(error)
        return 1
    with tempfile.NamedTemporaryFile("w", prefix="placebench-", suffix=".log", delete=False) as stream:
        traceback.print_exception(error, file=stream)
    return _fail(f"unexpected {type(error).__name__}: {error}; the traceback is in {stream.name}: please report it", 1)


def _drop_stdout() -> None:
    """Let nothing more reach a pipe that its reader has closed, the interpreter's last flush included."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=PlacebenchGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="placebench")
def main() -> None:
    """Measure which placement of PPO roles on devices is faster, and why.

    \b
    Examples:
      placebench run                                  standard against split, here
      placebench run --placements split,split/overlap=none --rounds 5
      placebench run --devices gpu:4 --model qwen2.5-1.5b --dry-run
      placebench run --config bench.yaml --set batch.size=64
      placebench run --resume runs/20260301T100000Z-standard-split
      placebench show runs/20260301T100000Z-standard-split

    \b
    Shell completion (bash; zsh and fish likewise):
      eval "$(_PLACEBENCH_COMPLETE=bash_source placebench)"
    """
    from placebench.ownership import sweep

    for run in sweep():
        click.echo(f"placebench: cleaned up after {run}, which had been killed", err=True)


_POSITIVE = click.IntRange(min=1)
_SECONDS = click.FloatRange(min=0, min_open=True)

# Options of `run` that are short for a workload key.
_WORKLOAD_OPTIONS = {
    "model": "model",
    "steps": "steps",
    "warmup_steps": "warmup_steps",
    "seed": "seed",
    "batch_size": "batch.size",
    "mini_batch_size": "batch.mini_batch_size",
    "max_prompt_length": "batch.max_prompt_length",
    "max_response_length": "batch.max_response_length",
    "rollout": "rollout.backend",
    "ignore_eos": "rollout.ignore_eos",
}
