"""What `placebench predict` and `search` are asked: by what measurements, which job, on which devices."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from placebench.commands.completion import complete_devices, complete_models, complete_runs, complete_settings
from placebench.commands.options import FiniteRange, option, option_group
from placebench.errors import UsageError
from placebench.spec.text import listing

if TYPE_CHECKING:
    from placebench.jobs.job import Job
    from placebench.predict.step import StepModel
    from placebench.record.calibration_file import CalibrationFile
    from placebench.report.predicted import Question
    from placebench.spec.devices import Device
    from placebench.spec.workload import Workload

_Function = TypeVar("_Function", bound=Callable[..., Any])
_VERSIONS = ("torch", "vllm", "placebench")
# GPUs of one server; who describes more in one is likely to have meant several.
_USUAL_NODE = 8


def prediction_options(function: _Function) -> _Function:
    """Give a command the options that say by what, for which job and devices it predicts."""
    work = option_group(
        "Job",
        option("--model", metavar="MODEL", shell_complete=complete_models, help="A preset, a folder, or a hub id."),
        option("--batch-size", type=int, metavar="N", help="Sequences per step, over all devices."),
        option("--mini-batch-size", type=int, metavar="N", help="Sequences per optimizer step."),
        option("--max-prompt-length", type=int, metavar="N", help="Tokens of a prompt."),
        option("--max-response-length", type=int, metavar="N", help="Tokens of a response."),
        option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            shell_complete=complete_settings,
            help="Any workload key; repeatable.",
        ),
    )
    measured = option_group(
        "Measurements and devices",
        option(
            "--from",
            "sources",
            metavar="RUN[,RUN...]",
            shell_complete=complete_runs,
            help="Runs, or calibration files.  [default: shipped with placebench]",
        ),
        option(
            "--devices",
            metavar="SPEC",
            shell_complete=complete_devices,
            help="gpu:N, or nodes: gpu:NxM@GGiB.  [default: as calibrated]",
        ),
        option("--gpu", metavar="NAME", help="Which GPU they are, such as H200.  [default: as calibrated]"),
        option(
            "--price",
            type=FiniteRange(min=0, min_open=True, max=1e6),
            metavar="PRICE",
            help="Price of one device for an hour; adds the cost of a million tokens.",
        ),
    )
    return measured(work(function))


@dataclass(frozen=True)
class AskedPrediction:
    """What a prediction is asked for."""

    calibrations: "tuple[CalibrationFile, ...]"
    workload: "Workload | None"
    """None of a job of the user's."""
    job: "Job | None"
    """The user's job; None of placebench's own, and where it is not known how it is started."""
    devices: "tuple[Device, ...]"
    steps: "StepModel"
    elsewhere: bool
    """Whether nothing was measured on the host that is meant: all calibrations are shipped ones."""
    question: "Question"
    """The same for people."""


def read_asked(given: Mapping[str, Any]) -> AskedPrediction:
    """Read the options of `prediction_options`.

    Raises:
        UsageError: one line for every reason why nothing can be predicted.
    """
    from placebench.commands.calibrated_job import calibrated_job
    from placebench.commands.deciding import deciding_run
    from placebench.commands.run_options import read_request
    from placebench.predict.asking import (
        asked_devices,
        asked_workload,
        following_mini_batch,
        known_gpu,
        step_model,
        unmeasured_settings,
    )
    from placebench.predict.known import counted_once
    from placebench.report.calibrations import named_calibrations, shipped_for
    from placebench.report.predicted import Question

    request = read_request({**given, "sources": None, "gpu": None, "price": None})
    if request.wrong:
        raise UsageError(*request.wrong)
    gpu = given.get("gpu")
    sources = given.get("sources")
    files, is_shipped = (shipped_for(gpu), True) if sources is None else named_calibrations(sources)
    device = files[0].device if gpu is None else known_gpu(gpu)
    devices = asked_devices(given.get("devices"), files, device, by_name=gpu is not None, origin="--devices")
    workload = asked_workload(files, request.workload, request.origin)
    notes = [*_notes(files, devices, is_shipped=is_shipped), *unmeasured_settings(files, workload)]
    if (size := following_mini_batch(files, request.workload)) is not None:
        notes.append(f"the mini-batch follows --batch-size: {size}; --mini-batch-size sets another")
    if devices[0].kind == "cpu" or workload is None:
        notes.append("predictions were compared only with runs of placebench's own job on GPUs; here they may err more")
    distinct = counted_once(files)
    notes += _counted_once(files, distinct)
    steps = step_model(distinct, workload, devices)
    deciding = deciding_run(workload, devices, files, names_devices=given.get("devices") is not None)
    question = Question(tuple(file.source for file in files), workload, devices, tuple(notes), deciding)
    job = calibrated_job(files) if workload is None else None
    return AskedPrediction(files, workload, job, devices, steps, is_shipped, question)


def _notes(files: "Sequence[CalibrationFile]", devices: "Sequence[Device]", *, is_shipped: bool) -> "list[str]":
    from importlib.metadata import PackageNotFoundError, version

    from placebench.host.gpus import list_gpus

    notes = []
    for file in files:
        where = f"{file.source}, {file.device_count} × {file.device}"
        notes.append(f"{'shipped calibration' if is_shipped else 'calibrated by'} {where}")
        if not file.is_traced:
            notes.append(
                f"no kernels were traced in {file.source}: the host's time cannot be told from that of the devices"
            )
        # Those of libraries matter for what is run here next, which is not on the file's devices where there are none.
        for name in _VERSIONS if file.kind == "cpu" or list_gpus().gpus else ("placebench",):
            try:
                here, there = version(name), file.versions.get(name)
            except PackageNotFoundError:
                continue
            if there and here.split("+")[0] != there.split("+")[0]:
                notes.append(f"{file.source} ran with {name} {there}; {here} is installed here")
    names = {file.device for file in files}
    if devices[0].name not in names:
        notes.append(f"{devices[0].name} is scaled from {', '.join(sorted(names))} by the data sheets' peaks")
        notes.extend(_on_memory(devices[0]))
    node = max(Counter(one.node for one in devices).values())
    if devices[0].kind == "gpu" and node > max(_USUAL_NODE, *(file.device_count // file.nodes for file in files)):
        notes.append(f"{node} GPUs are taken to share the links of one node; gpu:8x2 would be two nodes of eight")
    most = max(file.device_count for file in files)
    if node == len(devices) > most:
        notes.append(f"{node} devices, at most {most} were measured: few held-out cases are of more than were measured")
    return notes


def _counted_once(files: "Sequence[CalibrationFile]", distinct: "Sequence[CalibrationFile]") -> "Iterator[str]":
    """Of calibrations that have the same launches, those of whose measurements some are not counted."""
    from placebench.predict.known import counted_once

    for file, left in zip(files, distinct, strict=True):
        if (more := len(file.cases) - len(left.cases)) > 0:
            pairs = ((one, counted_once((file, one))) for one in files if one is not file)
            others = listing(one.source for one, pair in pairs if pair != (file, one))
            are = "is" if more == 1 else "are"
            yield f"{more} of {len(file.cases)} measurements of {file.source} {are} also in {others}, and count once"


def _on_memory(device: "Device") -> "Iterator[str]":
    """Which memory a GPU is taken to have that nobody has described, and under what name it is sold with another."""
    from placebench.predict.peaks import known_peak, sizes_of

    if device.memory_bytes == known_peak(device.name).memory_bytes:
        others = [one for one in sizes_of(device.name) if one != device.name]
        other = f"; as {', '.join(others)} it has another size: name that with --gpu" if others else ""
        yield f"its memory is taken from the data sheet, {device.memory_bytes >> 30} GiB{other}"
