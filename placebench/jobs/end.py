"""How a launch ended, by the exception that ended it: its kind, whose worker it was about, and one line."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from placebench.errors import JobExit, NodeLostError, PlacementTimeoutError, UsageError, fault_of
from placebench.record.end_file import AllocatorState, EndFile

# What torch says of its allocator when it is refused memory, and nowhere but in that message.
_ALLOCATOR = re.compile(
    r"(?:this process has (?P<process>[\d.]+ \w+) memory in use\. )?Of the allocated memory (?P<allocated>[\d.]+ \w+)"
    r" is allocated by PyTorch.*?(?P<reserved>[\d.]+ \w+) is reserved by PyTorch but unallocated",
    re.IGNORECASE | re.DOTALL,
)
_EXCEPTION = re.compile(
    r"(?:[\w.]+\.)?(?P<name>\w*(?:Error|Exception|Exit|Interrupt|Timeout))\b(?:\([\w.]+\))?: (?P<text>.+)"
)
_OF_A_LAUNCHER = "CalledProcessError"
# Of an exception in C++ that nobody caught, below the line with its class.
_ABORTED = re.compile(r"\s*what\(\):\s+(?P<text>.+)")
# NCCL says in the third line behind the exception which error of CUDA it met.
_LINES = 4
_OF_A_LOG = re.compile(r"\b(?:DEBUG|INFO|WARNING)\b")


def end_by(error: BaseException) -> EndFile:
    """What the exception that ended a launch says of its end."""
    causes = [*_causes(error)]
    fault = next((fault for fault in map(fault_of, causes) if fault), None)
    message = _in_one_line(error)
    if message and (dead := fault_of(error)) and dead.has_died:
        message += f" (worker of {dead.device})"
    allocator = next((match for match in (_ALLOCATOR.search(str(cause)) for cause in causes) if match), None)
    return EndFile(
        kind=classify(error),
        message=message,
        device=fault.device if fault else None,
        role=fault.role if fault else None,
        held=fault.held if fault else None,
        allocator=AllocatorState(**allocator.groupdict()) if allocator else None,
    )


def classify(error: BaseException) -> JobExit:
    """What ended a launch, from the chain of causes of its exception.

    Libraries have classes of their own for this, or none but RuntimeError: their words tell them apart.
    """
    if isinstance(error, NodeLostError | PlacementTimeoutError):
        return JobExit.NODE_LOST if isinstance(error, NodeLostError) else JobExit.NOT_PLACED
    kind = kind_in(" ".join(f"{type(cause).__name__}: {cause}" for cause in _causes(error)))
    is_usage = kind is JobExit.FAILED and any(isinstance(cause, UsageError) for cause in _causes(error))
    return JobExit.USAGE if is_usage else kind


def end_by_words(text: str, otherwise: str) -> EndFile:
    """How a launch ended by what its job printed last, for a job that says it in no other way.

    Args:
        text: the last lines.
        otherwise: what to say where they name no exception.
    """
    found = [*_printed(text.splitlines())]
    # Of several processes the last one may say no more than that another has failed, as a launcher does.
    telling = (
        [one for one in found if one.kind is not JobExit.FAILED]
        or [one for one in found if one.name != _OF_A_LAUNCHER]
        or found
    )
    return EndFile(kind=telling[-1].kind, message=telling[-1].message) if telling else _without_exception(otherwise)


@dataclass(frozen=True)
class _Printed:
    """An exception that a job has printed."""

    name: str
    message: str
    kind: JobExit


def _printed(lines: Sequence[str]) -> Iterator[_Printed]:
    """The exceptions in lines, each with those behind it that belong to its text."""
    for place, line in enumerate(lines):
        if aborted := _ABORTED.match(line):
            yield _Printed("", aborted["text"], kind_in(aborted["text"]))
        elif match := _EXCEPTION.search(line.strip()):
            more = takewhile(lambda one: one.strip() and not _OF_A_LOG.search(one), lines[place + 1 : place + _LINES])
            kind = kind_in("\n".join((line, *more)))
            yield _Printed(match["name"], f"{match['name']}: {_unbracketed(match['text'])}", kind)


def _without_exception(said: str) -> EndFile:
    """An end of which only this is known: a program that is not Python's may say why in its last line."""
    return EndFile(kind=JobExit.FAILED if _OF_A_LOG.search(said) else kind_in(said), message=said)


def _unbracketed(text: str) -> str:
    """A text without the bracket that closes one before it: python -m puts its exception into brackets."""
    return text.removesuffix(")") if text.count(")") > text.count("(") else text


def kind_in(texts: str) -> JobExit:
    """What the words of exceptions mean: memory, a lost device, or no more than a failure."""
    if any(word in texts for word in ("OutOfMemoryError", "MemoryError", "annot allocate memory", "out of memory")):
        return JobExit.OOM
    if any(word in texts for word in ("GPU is lost", "device unavailable", "uncorrectable ECC")):
        return JobExit.DEVICE_LOST
    return JobExit.FAILED


def _in_one_line(error: BaseException) -> str | None:
    """The exception, that of the worker where it was raised in one; None without a word.

    One that could not be sent, or was raised as a worker began, is known by the traceback in the other's text alone.
    """
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    lines = f"{type(error).__name__}: {error}".splitlines()
    found = [match for match in (_EXCEPTION.match(line.strip()) for line in lines) if match]
    return f"{found[-1]['name']}: {found[-1]['text']}" if found else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # an error may be made the cause of itself
        seen.add(id(error))
        yield error
        error = getattr(error, "cause", None) or error.__cause__
