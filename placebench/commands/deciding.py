"""Of what was predicted, the run that decides it: the options that ask for its job and devices."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from placebench.commands.calibrated_job import job_words
from placebench.commands.options import WORKLOAD_KEYS
from placebench.errors import UsageError
from placebench.report.deciding import DecidingRun
from placebench.spec.config import parse_settings
from placebench.spec.devices import Device, DeviceSpec, devices_per_node
from placebench.spec.nested import flatten, merge, nest
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload

if TYPE_CHECKING:
    from placebench.record.calibration_file import CalibrationFile

# What tells how fast a host is.
_SHORT = {"steps": 5, "warmup_steps": 2}
# Options of a run that say which launches it has, which another run has otherwise.
_CHOICES = ("--placements", "--rounds", "--precision", "--max-rounds", "--max-time", "--name")


def deciding_run(
    workload: Workload | None, devices: Sequence[Device], files: "Sequence[CalibrationFile]", *, names_devices: bool
) -> DecidingRun:
    """The run of a job on devices.

    Args:
        workload: the job; None of a job of the user's.
        devices: that are asked about.
        files: by which it was predicted.
        names_devices: whether the user has said which devices, so that a job of theirs is to have others than it had.
    """
    if workload is None:
        return _of_users_job(devices, files, names_devices=names_devices)
    asked, hint = _devices(devices, over_nodes="--ray-address auto --devices {}")
    options, short = (
        (*workload_options(one), "--devices", asked) for one in (workload, workload.model_copy(update=_SHORT))
    )
    return DecidingRun(options, short, hint)


def _of_users_job(devices: Sequence[Device], files: "Sequence[CalibrationFile]", *, names_devices: bool) -> DecidingRun:
    """Its own command, on other devices where these are asked for, or those that it had are not here."""
    if not (started := job_words(files)):
        return DecidingRun(None)
    own = started[: started.index("--")] if "--" in started else started
    address = _value_of("--ray-address", own)
    on_cluster = f"--ray-address {address} --devices {{}}"
    asked, hint = _devices(
        devices,
        on_node=on_cluster if address else "--devices {}",
        over_nodes=on_cluster if address else "--devices {} in a SLURM job, or with --ray-address HOST:PORT",
    )
    if not names_devices and not hint:
        return DecidingRun(tuple(_without_choices(started, _CHOICES)))
    # A plan of devices that are described asks no cluster for them.
    words = tuple(_without_choices(started, (*_CHOICES, "--devices", *(["--ray-address"] if hint else []))))
    end = words.index("--") if "--" in words else len(words)
    return DecidingRun((*words[:end], "--devices", asked, *words[end:]), hint=hint)


def _value_of(option: str, words: Sequence[str]) -> str | None:
    """The value that an option is given, the last one if there are several; None without."""
    values = [
        value if is_one else following
        for word, following in zip(words, (*words[1:], ""), strict=True)
        for name, is_one, value in [word.partition("=")]
        if name == option
    ]
    return values[-1] if values else None


def workload_options(workload: Workload) -> tuple[str, ...]:
    """The fewest options of a run that ask for a workload, over what its model starts from."""
    wanted = flatten(workload.model_dump(mode="json"))
    given = dict(wanted)
    for key in wanted:
        rest = {name: value for name, value in given.items() if name != key}
        if _asks_for(rest, workload):
            given = rest
    return tuple(word for key, value in given.items() for word in _option(key, value))


def _asks_for(given: Mapping[str, Any], workload: Workload) -> bool:
    content: dict[str, Any] = {}
    for key, value in given.items():
        content = merge(content, nest(key.split("."), value))
    try:
        return build_workload(content) == workload
    except UsageError:  # without that key the others do not go together
        return False


def _option(key: str, value: Any) -> Iterator[str]:
    """The words that set a workload key."""
    flags = {dotted: f"--{name.replace('_', '-')}" for name, dotted in WORKLOAD_KEYS.items()}
    if key == "rollout.ignore_eos":
        yield "--ignore-eos" if value else "--stop-at-eos"
    elif key in flags:
        yield from (flags[key], str(value))
    else:
        yield from ("--set", f"{key}={_text(key, value)}")


def _text(key: str, value: Any) -> str:
    """A value as `--set` reads it: a text as it is, where it is not read as something else."""
    if isinstance(value, str):
        try:
            if parse_settings([f"{key}={value}"]) == nest(key.split("."), value):
                return value
        except UsageError:  # it has a meaning in YAML
            pass
    return json.dumps(value, ensure_ascii=False)


def _devices(devices: Sequence[Device], *, over_nodes: str, on_node: str = "--devices {}") -> tuple[str, str]:
    """What `--devices` asks for, and what to mind: GPUs that are not on this host can be no more than planned for.

    Args:
        devices: that are asked about.
        over_nodes: the options that ask for several nodes where these are, `{}` for the devices of each.
        on_node: those that ask for one.
    """
    from placebench.host.gpus import list_gpus

    nodes, first = devices_per_node(devices), devices[0]
    here = str(DeviceSpec(first.kind, nodes[0]))
    several = len(nodes) > 1
    if not several and first.kind == "cpu":
        return here, ""
    if not several and sum(gpu.name == first.name for gpu in list_gpus().gpus) >= nodes[0]:
        return here, ""
    described = DeviceSpec(first.kind, nodes[0], len(nodes) if several else None, first.memory_bytes)
    there = (over_nodes if several else on_node).replace("{}", here)
    return str(described), f"add --dry-run to plan it here; on such devices write {there}"


def _without_choices(words: Sequence[str], left_out: Sequence[str]) -> Iterator[str]:
    """The words of a command, up to what stands behind --, without options that are left out and their values."""
    own = list(words[: words.index("--")] if "--" in words else words)
    while own:
        word = own.pop(0)
        name, has_value, _ = word.partition("=")
        if name not in left_out:
            yield word
        elif not has_value and own:
            own.pop(0)
    yield from words[list(words).index("--") :] if "--" in words else ()
