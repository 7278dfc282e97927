"""What `placebench predict` and `search` are asked: by what measurements, which job, on which devices."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from placebench.commands.completion import complete_devices, complete_models, complete_runs, complete_settings
from placebench.commands.options import FiniteRange, option, option_group
from placebench.errors import UsageError
from placebench.spec.legible import shown

if TYPE_CHECKING:
    from placebench.predict.step import StepModel
    from placebench.record.calibration_file import CalibrationFile
    from placebench.spec.devices import Device
    from placebench.spec.workload import Workload

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Of a device, another memory than this much of the calibrated ones' tells of another kind of device.
_ALIKE = 0.15
_VERSIONS = ("torch", "vllm")


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
            help="Of a device for an hour: adds the cost of a million tokens.",
        ),
    )
    return measured(work(function))


@dataclass(frozen=True)
class AskedPrediction:
    """What a prediction is asked for."""

    calibrations: "tuple[CalibrationFile, ...]"
    workload: "Workload | None"
    """None of a job of the user's."""
    devices: "tuple[Device, ...]"
    steps: "StepModel"
    elsewhere: bool
    """Whether the calibration is of another host: a shipped one, or of another host than this, where this is meant."""
    notes: tuple[str, ...]
    """What the reader should know of the calibration, one line each."""


def read_asked(given: Mapping[str, Any]) -> AskedPrediction:
    """Read the options of `prediction_options`.

    Raises:
        UsageError: one line for every reason why nothing can be predicted.
    """
    from placebench.commands.run_options import read_request
    from placebench.predict.phases import PhaseModel
    from placebench.predict.step import StepModel
    from placebench.spec.devices import devices_per_node
    from placebench.spec.shapes import job_shapes

    request = read_request({**given, "sources": None, "gpu": None, "price": None})
    if request.wrong:
        raise UsageError(*request.wrong)
    files, is_shipped = _calibrations(given.get("sources"), given.get("gpu"))
    device = _gpu(given["gpu"]) if given.get("gpu") else files[0].device
    devices = _devices(given.get("devices"), files, device, by_name=bool(given.get("gpu")))
    workload = _workload(files, request.workload, request.origin)
    shapes = job_shapes(workload) if workload else None
    phases = PhaseModel(workload, shapes, files, devices[0], max(devices_per_node(devices)))
    notes = tuple(_notes(files, devices, is_shipped=is_shipped))
    return AskedPrediction(files, workload, devices, StepModel(phases, devices), is_shipped, notes)


@contextmanager
def explain_lookups(asked: AskedPrediction) -> Iterator[None]:
    """Turn a phase of which nothing is known into a line for the user."""
    try:
        yield
    except LookupError as error:
        raise UsageError(
            f"{error.args[0]} was not measured of this work, and the peaks of {asked.devices[0].name} are not known:"
            " name a run that has it, or a GPU with --gpu"
        ) from None


def _calibrations(sources: str | None, gpu: str | None) -> "tuple[tuple[CalibrationFile, ...], bool]":
    """The calibrations that are named, else the one shipped for a GPU; and whether it is that."""
    from placebench.commands.runs import find_run
    from placebench.predict.known import shipped_calibrations
    from placebench.report.calibrations import load_calibration

    shipped = shipped_calibrations()
    if sources is None:
        if gpu is None:
            raise UsageError(
                f"name what to predict from: --from RUN, or --gpu with a GPU that a calibration is shipped for:"
                f" {', '.join(shipped) or 'none'}"
            )
        found = tuple(file for file in shipped.values() if file.device == _gpu(gpu))
        if not found:
            raise UsageError(f"--gpu {gpu}: no calibration is shipped for it: name a run of yours with --from RUN")
        return found, True
    words = [word.strip() for word in sources.split(",")]
    if not all(words):
        raise UsageError(f"--from {shown(sources)}: there is an empty entry; name a run, or a calibration file")
    files = tuple(
        shipped[word]
        if word in shipped and not Path(word).exists()
        else load_calibration(path if (path := Path(word)).is_file() else find_run(word))
        for word in words
    )
    return files, all(word in shipped for word in words)


def _gpu(name: str) -> str:
    """A GPU's name in full, of the first that has it in its name.

    Raises:
        UsageError: none has, or several that are called by other names, as by their vendor's.
    """
    from placebench.predict.peaks import device_peaks

    known = list(device_peaks())
    found = [one for one in known if name.lower() in one.lower().replace("-", " ").split() or name == one]
    if not found:
        raise UsageError(f"--gpu {shown(name)}: its peaks are not known; choose one of {', '.join(known)}")
    if len({one.replace("-", " ").split()[1] for one in found}) > 1:
        raise UsageError(f"--gpu {shown(name)}: it may be any of {', '.join(found)}: name one of them")
    return found[0]


def _devices(text: str | None, files: "Sequence[CalibrationFile]", name: str, *, by_name: bool) -> "tuple[Device, ...]":
    """The devices that are asked about: those described, else as many as were calibrated."""
    from placebench.spec.devices import Device, parse_devices

    file = next((one for one in files if one.device == name), files[0])
    spec = parse_devices(text) if text else None
    kind = spec.kind if spec else file.kind
    if kind != file.kind:
        raise UsageError(
            f"--devices {text}: the calibration is of {file.kind} devices ({file.device}): name one of {kind} devices"
        )
    nodes = (spec.nodes or 1) if spec else file.nodes
    count = (spec.count if spec else None) or max(1, file.device_count // file.nodes)
    memory = (spec.memory_bytes if spec else None) or file.device_bytes
    if not by_name and kind == "gpu" and abs(memory / file.device_bytes - 1) > _ALIKE:
        raise UsageError(
            f"--devices {text}: the calibration is of {file.device} with {file.device_bytes >> 30} GiB; say which GPUs"
            " these are with --gpu NAME"
        )
    return tuple(
        Device(
            f"node{node}/{kind}:{index}",
            kind,
            index,
            f"node{node}",
            name if kind == "gpu" else file.device,
            memory,
            tuple(range(file.device_cores)),
        )
        for node in range(nodes)
        for index in range(count)
    )


def _workload(
    files: "Sequence[CalibrationFile]", asked: Mapping[str, Any], origin: Callable[[str], str]
) -> "Workload | None":
    """The job: that of the first calibration, with what is asked for laid over it."""
    from placebench.spec.config import merge
    from placebench.spec.workload_reading import build_workload

    base = next((case.workload for file in files for case in file.cases if case.workload), None)
    if base is None:
        if asked:
            raise UsageError(
                "the calibration is of a job of yours, whose work is not known: it can be predicted for other"
                " placements alone; leave out --model, --set and the sizes"
            )
        return None
    batch, old = dict(asked.get("batch", {})), base.get("batch", {})
    if isinstance(batch.get("size"), int) and "mini_batch_size" not in batch and old.get("size"):
        # As many optimizer steps as before, where the batch allows it.
        mini_batches = max(1, old["size"] // max(1, old.get("mini_batch_size", old["size"])))
        if batch["size"] % mini_batches == 0:
            asked = merge(asked, {"batch": {"mini_batch_size": batch["size"] // mini_batches}})
    if asked.get("model"):
        base = {**base, "critic_model": None}
    return build_workload(merge(base, asked), origin)


def _notes(files: "Sequence[CalibrationFile]", devices: "Sequence[Device]", *, is_shipped: bool) -> "list[str]":
    from importlib.metadata import PackageNotFoundError, version

    notes = []
    for file in files:
        where = f"{file.source}, {file.device_count} × {file.device}"
        notes.append(f"{'shipped calibration' if is_shipped else 'calibrated by'} {where}")
        if not file.is_traced:
            notes.append(
                f"no kernels were traced in {file.source}: what its host takes is not known apart from its devices"
            )
        for name in _VERSIONS:
            try:
                here, there = version(name), file.versions.get(name)
            except PackageNotFoundError:
                continue
            if there and here.split("+")[0] != there.split("+")[0]:
                notes.append(f"{file.source} ran with {name} {there}; {here} is installed here")
    names = {file.device for file in files}
    if devices[0].name not in names:
        notes.append(f"{devices[0].name} is scaled from {', '.join(sorted(names))} by the data sheets' peaks")
    return notes
