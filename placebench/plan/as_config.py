"""A plan as the YAML file that asks for it: every key with its value and what it means."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from textwrap import indent
from typing import Any

import yaml
from pydantic import BaseModel

from placebench.plan.plan import Plan
from placebench.plan.request import DEFAULT_PLACEMENTS, RunRequest
from placebench.spec.devices import DeviceSpec, devices_per_node
from placebench.spec.legible import visible
from placebench.spec.words import split_words
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import RUN_KEYS

# What of a request the file does not hold: options of the command.
_OPTIONS = (
    *("precision", "max_rounds", "max_time_s", "min_effect", "step_timeout_s", "time_limit_s", "sample_hz"),
    *("checkpoint_every", "resume_from", "ray_address", "placement_timeout_s"),
)


def config_text(plan: Plan, request: RunRequest, command: Sequence[str]) -> str:
    """The file that asks for a plan, with what its keys mean behind them; options that no file holds are in its head.

    Args:
        plan: what is asked for, checked.
        request: what has asked for it.
        command: the words of the command line to which the file is given.
    """
    defaults = {field.name: field.default for field in fields(RunRequest) if field.default is not MISSING}
    given = {name: getattr(request, name) for name in _OPTIONS if getattr(request, name) != defaults[name]}
    options = [part for name, value in given.items() for part in (_flag(name), str(value))]
    head = visible(f"# {shlex.join([*command, '--config', 'FILE', *options])}")
    run = {
        "placements": list(split_words(request.placements or DEFAULT_PLACEMENTS)),
        "rounds": "auto" if plan.auto else plan.rounds,
        "devices": request.devices or _devices(plan),
        "name": request.name,
        "out": str(plan.folder.path.parent),
        "launcher": plan.launcher,
    }
    workload = plan.workload.model_dump(
        mode="json", exclude={"steps"} if plan.auto and plan.auto.chooses_steps else None
    )
    return "\n".join([head, *_run_lines(run), "", *_lines(Workload, workload)]) + "\n"


def _flag(name: str) -> str:
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def _devices(plan: Plan) -> str | None:
    """What asks for the devices of a plan; None where its nodes differ, of which all is taken."""
    counts = set(devices_per_node(plan.devices))
    return str(DeviceSpec(plan.devices[0].kind, counts.pop())) if len(counts) == 1 else None


def _run_lines(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        yield f"# {key}:  # {RUN_KEYS[key]}" if value is None else _line(key, value, RUN_KEYS[key])


def _lines(model: type[BaseModel], values: Mapping[str, Any]) -> Iterator[str]:
    """Each key of a model with its value and description; a section indented below its name."""
    for key, field in model.model_fields.items():
        if key not in values:
            yield f"# {key}:  # {field.description}"
        elif isinstance(values[key], Mapping):
            section = type(field.default)
            yield f"\n{key}:  # {(section.__doc__ or '').splitlines()[0]}"
            yield indent("\n".join(_lines(section, values[key])), "  ")
        else:
            yield _line(key, values[key], field.description or "")


def _line(key: str, value: Any, meaning: str) -> str:
    flow = None if isinstance(value, list) else False
    as_it_is = str(value).isprintable()  # or a line end that only YAML knows would be one in a quoted text
    text = yaml.safe_dump({key: value}, default_flow_style=flow, allow_unicode=as_it_is, width=sys.maxsize)
    return f"{text.removesuffix(chr(10))}  # {meaning}"
