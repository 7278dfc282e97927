"""How every command ends: with one line on stderr and its exit code, whatever goes wrong."""

import errno
import os
import sys
from typing import Any, NoReturn

import click

from placebench.commands.console import let_everything_be_printed, progress_on_stderr
from placebench.commands.options import in_words
from placebench.errors import PlacebenchError

# click's own exit code for a wrong command line, the shell's for SIGINT, and sysexits.h's for a fault of the program:
# 1 says that a check has found a regression.
USAGE, _INTERRUPTED, _UNEXPECTED = 2, 130, 70
# What is wrong with a file or disk, and not with the program that meets it.
_OF_THE_HOST = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP)
)

# What writing to an open stream meets; such an error names no file.
OF_A_STREAM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO))


class PlacebenchGroup(click.Group):
    """Turns every error into one line on stderr and its exit code, wherever in a command it comes from."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command line and exit."""
        kwargs["standalone_mode"] = False
        let_everything_be_printed()
        try:
            with progress_on_stderr():
                code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = USAGE
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else "placebench"
            code = fail(f"{in_words(error)} (see {command} --help)", USAGE)
        except click.ClickException as error:
            code = fail(error.format_message(), error.exit_code)
        except PlacebenchError as error:
            code = fail(str(error), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            code = fail("stopped", _INTERRUPTED)
        except BrokenPipeError:
            drop_stdout()
            code = 0
        except OSError as error:
            code = _fail_at_the_host(error)
        except Exception as error:  # noqa: BLE001 - the last resort: one line, and the traceback in a file
            code = _fail_unexpectedly(error)
        sys.exit(code if isinstance(code, int) else 0)


def fail(message: str, code: int) -> int:
    """Say on stderr what went wrong; returns the exit code."""
    for line in message.splitlines():
        click.echo(f"placebench: {line}", err=True)
    return code


def _fail_unexpectedly(error: Exception) -> int:
    import tempfile
    import traceback

    if os.environ.get("PLACEBENCH_DEBUG"):
        traceback.print_exception(error)
        return _UNEXPECTED
    with tempfile.NamedTemporaryFile("w", prefix="placebench-", suffix=".log", delete=False) as stream:
        traceback.print_exception(error, file=stream)
    return fail(
        f"unexpected {type(error).__name__}: {error}; the traceback is in {stream.name}: please report it", _UNEXPECTED
    )


def _fail_at_the_host(error: OSError) -> int:
    if error.filename is not None and error.errno in _OF_THE_HOST:
        return fail(f"{error.filename}: {error.strerror}", USAGE)
    if error.filename is None and error.errno in OF_A_STREAM:
        drop_stdout()
        return fail(f"cannot write to standard output or a file: {error.strerror}", USAGE)
    return _fail_unexpectedly(error)


def drop_stdout() -> None:
    """Let nothing more be written where it cannot be, the interpreter's last flush included."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
