"""Kinds of options, and the words that they take."""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import click

from placebench.errors import UsageError
from placebench.spec.auto_rounds import MOST_ROUNDS
from placebench.spec.legible import shown
from placebench.telemetry.samples import MAX_HZ

# How much alike an unknown option is to one of the command, whatever else goes by its name, and to a workload key, of
# which there are many long ones.
_ALMOST, _LIKE_A_KEY = 0.85, 0.82
# A rarer sample than this says nothing of a phase.
_LEAST_HZ = 0.1


class WholeRange(click.IntRange):
    """A range of whole numbers that says in words what is wrong with a value."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that a word stands for."""
        number = click.INT.convert(value, param, ctx)
        return number if _is_in(number, self) else self.fail(_out_of_range(number, self), param, ctx)


class FiniteRange(click.FloatRange):
    """A range of numbers, of which nan and infinity are none, that says in words what is wrong with a value."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that a word stands for."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a {self.name}.", param, ctx)
        return number if _is_in(number, self) else self.fail(_out_of_range(number, self), param, ctx)


class SecondsRange(FiniteRange):
    """A range of seconds, which have no other unit."""

    name = "number of seconds, such as 600"


def _is_in(number: float, numbers: WholeRange | FiniteRange) -> bool:
    above = numbers.min is None or number > numbers.min or (number == numbers.min and not numbers.min_open)
    # A whole number may be too large for isfinite, and is finite.
    is_finite = isinstance(number, int) or math.isfinite(number)
    return is_finite and above and (numbers.max is None or number <= numbers.max)


def _out_of_range(number: float, numbers: WholeRange | FiniteRange) -> str:
    least = [] if numbers.min is None else [f"{'above' if numbers.min_open else 'at least'} {numbers.min:,g}"]
    most = [] if numbers.max is None else [f"at most {numbers.max:,.0f}"]
    return f"must be {' and '.join(least + most)} (got {shown(number)})"


class FilledPath(click.Path):
    """A path to read. An empty word, as of a variable that is not set, is refused: it would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path that a word names."""
        if not str(value):
            self.fail("it is empty: name one, or check whether a variable is unset", param, ctx)
        return super().convert(value, param, ctx)


class NearChoice(click.Choice[str]):
    """A choice of words that says which of them an unknown one may have been meant to be."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            from placebench.spec.nearest import did_you_mean

            self.fail(error.message.removesuffix(".") + did_you_mean(value, self.choices), param, ctx)


def in_words(error: click.UsageError) -> str:
    """What is wrong with a command line; an unknown option comes with what it may have been meant to be."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error.format_message()
    import difflib

    from placebench.spec.nearest import nearest
    from placebench.spec.workload import workload_keys

    word = error.option_name.lstrip("-").replace("-", "_")
    options = (param.opts[0] for param in error.ctx.command.params if isinstance(param, click.Option))
    flags = {name.lstrip("-").replace("-", "_"): name for name in options}
    keys = workload_keys() if "set" in flags else ()
    almost = difflib.get_close_matches(word, flags, n=1, cutoff=_ALMOST)
    meant = next(iter(almost), None) or nearest(word, (*flags, *keys), _LIKE_A_KEY) or nearest(word, flags)
    if meant is None:
        return error.message
    short = next((name for name, key in WORKLOAD_KEYS.items() if key == meant), meant)
    return f"{error.message} Did you mean {flags.get(short) or f'--set {meant}=…'}?"


# Where a command finds why options of it cannot be read, by their names.
WRONG_OPTIONS = "wrong_options"

# Options of `run` that are short for a workload key.
WORKLOAD_KEYS = {
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


_Function = TypeVar("_Function", bound=Callable[..., Any])


class Option(click.Option):
    """An option that stands under a heading in the help, and leaves its range to the message about a wrong value."""

    heading = "Options"

    def get_help_extra(self, ctx: click.Context) -> Any:
        """What stands in brackets behind the help."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


option = partial(click.option, cls=Option)
verbose_option = option("--verbose", is_flag=True, help="Print everything: all tables, numbers and reasons.")


def option_group(heading: str, *options: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    """Give a command options, in this order, that stand under one heading in its help."""

    def decorate(function: _Function) -> _Function:
        for add in reversed(options):
            function = add(function)
        added: list[click.Parameter] = getattr(function, "__click_params__", [])
        for param in added[-len(options) :]:
            if isinstance(param, Option):
                param.heading = heading
        return function

    return decorate


class GroupedCommand(click.Command):
    """A command whose help has its options under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections; what has no heading of its own comes last."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record:
                rows.setdefault(heading_of(param), []).append(record)
        for heading in sorted(rows, key=lambda heading: heading == Option.heading):
            with formatter.section(heading):
                formatter.write_dl(rows[heading])


class StartingCommand(GroupedCommand):
    """A command that starts one of the user's, which stands behind --."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; one before -- that belongs to no option would else begin the user's command."""
        _, behind = split_at_dashes(args)
        rest = super().parse_args(ctx, args)
        words = ctx.params.get("command") or ()
        if (stray := words[: len(words) - len(behind)]) and not ctx.resilient_parsing:
            has_placements = any("--placements" in param.opts for param in self.params)
            more = ", and commas between placements" if has_placements else ""
            ctx.fail(f"{shown(' '.join(stray))} is no option: write -- before a command of yours{more}")
        return rest


def split_at_dashes(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command line before the first --, and those behind it."""
    words = list(args)
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def heading_of(param: click.Parameter) -> str:
    """Under which heading a parameter stands in the help of its command."""
    return param.heading if isinstance(param, Option) else Option.heading


class LenientOption(Option):
    """An option whose wrong value does not end the command line: it is reported with all else that is wrong."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """The option's value; None, and the reason kept among the parameters, where it cannot be read."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            error.param = self
            reason = f"{error.format_message()} (see {ctx.command_path} --help)"
        except UsageError as error:
            reason = str(error)
        ctx.params.setdefault(WRONG_OPTIONS, {})[self.name] = reason
        return None


def parse_share(option: str, text: str) -> float:
    """A share, `5%` or `0.05`.

    Raises:
        UsageError: it is neither, or not between 0 and 1.
    """
    number = text.strip()
    is_percent = number.endswith("%")
    try:
        value = float(number.removesuffix("%")) / (100 if is_percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UsageError(f"{option} {shown(text)}: write a share, such as 5% or 0.05, from 0 to below 100 %")
    return value


def read_share(_: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """An option that is a share, for `callback`."""
    return None if text is None else parse_share(param.opts[0], text)


def read_hz(_: click.Context, param: click.Parameter, hz: float | None) -> float | None:
    """An option that is a number of samples a second, for `callback`."""
    if hz is None or hz == 0 or _LEAST_HZ <= hz <= MAX_HZ:
        return hz
    raise UsageError(f"{param.opts[0]} {hz:g}: must be 0, for no samples, or from {_LEAST_HZ:g} to {MAX_HZ:g}")


def read_rounds(_: click.Context, param: click.Parameter, text: str | None) -> int | Literal["auto"] | None:
    """An option that is a number of rounds or `auto`, for `callback`."""
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= MOST_ROUNDS:
        raise UsageError(f"{param.opts[0]} {shown(text)}: must be a number from 1 to {MOST_ROUNDS}, or auto")
    return int(text)
