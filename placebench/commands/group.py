"""How every command ends: with one line on stderr and its exit code, whatever goes wrong."""

import errno
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

import click

from placebench.commands.console import let_everything_be_printed, progress_on_stderr
from placebench.commands.options import in_words
from placebench.errors import PlacebenchError, UsageError
from placebench.host.terminal import say
from placebench.spec.legible import encodable, one_line

# click's own exit code for a wrong command line, the shell's for SIGINT, and sysexits.h's for a fault of the program:
# 1 says that a check has found a regression.
USAGE, _INTERRUPTED, UNEXPECTED = 2, 130, 70
# New objects after which Python looks for circles of them. Most of what is imported and drawn lives to the end of the
# command: looked through at every 700, it costs a tenth of the command's time. A report makes fewer than these.
_OBJECTS = 300_000
# More than a person causes at once, and less than a file can.
_MOST_REASONS = 100
# What is wrong with a file or disk, and not with the program that meets it.
_OF_THE_HOST = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP)
)

# What writing to an open stream meets; such an error names no file.
OF_A_STREAM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO))
# Where click's context keeps that some output could not be written.
_UNWRITTEN = f"{__name__}.unwritten"


class PlacebenchGroup(click.Group):
    """Turns every error into one line on stderr and its exit code, wherever in a command it comes from."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands alone, so that the help is one screen: its usage names the two options."""
        self.format_commands(ctx, formatter)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """As click does, which prints the help here."""
        with _closed_pipes_past_click():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does; a command whose output could not be written does not end with 0."""
        with _closed_pipes_past_click():
            result = super().invoke(ctx)
        ended_well = not (isinstance(result, int) and result)
        return USAGE if ended_well and _UNWRITTEN in ctx.meta else result

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command line and exit."""
        kwargs["standalone_mode"] = False
        let_everything_be_printed()
        gc.set_threshold(_OBJECTS)
        try:
            refuse_undecodable(sys.argv[1:] if (given := kwargs.get("args", *args[:1])) is None else given)
            with progress_on_stderr():
                code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = USAGE
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else "placebench"
            code = fail(USAGE, f"{in_words(error)} (see {command} --help)")
        except click.ClickException as error:
            code = fail(error.exit_code, error.format_message())
        except PlacebenchError as error:
            code = fail(error.exit_code, *error.args)
        except (click.Abort, KeyboardInterrupt):
            code = fail(_INTERRUPTED, "stopped")
        except BrokenPipeError:
            drop_stdout()
            code = 0
        except OSError as error:
            code = _fail_at_the_host(error)
        except Exception as error:  # noqa: BLE001 - the last resort: one line, and the traceback in a file
            code = _fail_unexpectedly(error)
        gc.freeze()  # what is alive ends with the process, which need not look through it
        sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _closed_pipes_past_click() -> Iterator[None]:
    """Keep from click, which knows it by its number, that a pipe has no reader: its exit code 1 means a regression."""
    try:
        yield
    except BrokenPipeError as error:
        raise BrokenPipeError from error


def fail(code: int, *reasons: str, name: str = "placebench") -> int:
    """Say on stderr what went wrong, one line a reason, behind the program's name; returns the exit code."""
    try:
        for reason in reasons[:_MOST_REASONS]:
            say(f"{name}: {one_line(reason)}", sys.stderr)
        if len(reasons) > _MOST_REASONS:
            say(f"{name}: and {len(reasons) - _MOST_REASONS:,} more reasons", sys.stderr)
    except OSError:
        _drop(sys.stderr)  # nobody reads it, and the exit code still says it
    return code


def refuse_undecodable(words: Iterable[str]) -> None:
    """See that the words of a command line are UTF-8, as all text in records, reports and messages is.

    Raises:
        UsageError: one is not, most likely the name of a file.
    """
    for word in words:
        if not word.isprintable() and encodable(word) != word:
            raise UsageError(f"{word}: not UTF-8: rename the file, or make a link to it with another name")


def _fail_unexpectedly(error: Exception) -> int:
    import tempfile
    import traceback

    if os.environ.get("PLACEBENCH_DEBUG"):
        traceback.print_exception(error)
        return UNEXPECTED
    try:
        with tempfile.NamedTemporaryFile("w", prefix="placebench-", suffix=".log", delete=False) as stream:
            traceback.print_exception(error, file=stream)
        where = f"the traceback is in {stream.name}"
    except OSError:
        where = "its traceback could not be written to a file, PLACEBENCH_DEBUG=1 prints it"
    what = f"unexpected {type(error).__name__}: {one_line(str(error))}"
    return fail(UNEXPECTED, f"{what}; {where}: please report it")


def _fail_at_the_host(error: OSError) -> int:
    if error.filename is not None and error.errno in _OF_THE_HOST:
        return fail(USAGE, f"{error.filename}: {error.strerror}")
    if error.filename is None and error.errno in OF_A_STREAM:
        drop_stdout()
        return fail(USAGE, f"cannot write to standard output or a file: {error.strerror}")
    if error.errno == errno.EFBIG:
        return fail(USAGE, f"{error.filename or 'a file'}: {error.strerror}: raise what ulimit -f sets")
    if isinstance(error, FileNotFoundError):
        import tempfile

        if not _is_there(os.getcwd):
            return fail(USAGE, "the working directory no longer exists: cd to one that does")
        if not _is_there(tempfile.gettempdir):
            return fail(USAGE, "no folder for temporary files can be written: free some space in /tmp, or set TMPDIR")
    return _fail_unexpectedly(error)


def _is_there(folder: Callable[[], str]) -> bool:
    try:
        folder()
    except FileNotFoundError:
        return False
    return True


@contextmanager
def readers_may_leave(instead: str = "") -> Iterator[None]:
    """Let a command go on whose output nobody takes any more: its exit code says all the same how it ended.

    So it does where the output cannot be written, as to a full disk, except that 0 becomes 2 unless the output is
    somewhere else too.

    Args:
        instead: where else it is, in words.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
    except OSError as error:
        if error.filename is not None or error.errno not in OF_A_STREAM:
            raise
        drop_stdout()
        fail(USAGE, f"cannot write to standard output: {error.strerror}{instead}")
        if not instead and (context := click.get_current_context(silent=True)):
            context.meta[_UNWRITTEN] = True


def drop_stdout() -> None:
    """Let nothing more be written where it cannot be, the interpreter's last flush included."""
    _drop(sys.stdout)


def _drop(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
