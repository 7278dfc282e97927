"""What a prediction is asked for, beside measurements: on which devices, and of which job."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from placebench.errors import UsageError
from placebench.predict.measured import tells_devices
from placebench.predict.peaks import device_peak, device_peaks, known_peak, sizes_of
from placebench.predict.phases import PhaseModel
from placebench.predict.step import StepModel
from placebench.record.calibration_file import CalibrationFile, MeasuredCase
from placebench.spec.check import Facts, collect
from placebench.spec.devices import Device, DeviceSpec, Kind, devices_per_node, parse_devices
from placebench.spec.legible import shown
from placebench.spec.model_checks import MODEL_CHECKS
from placebench.spec.nested import flatten, merge
from placebench.spec.phases import PHASE
from placebench.spec.placement import Placement
from placebench.spec.shapes import job_shapes
from placebench.spec.text import listing
from placebench.spec.words import parse_placement
from placebench.spec.workload import MOST_SEQUENCES, Workload
from placebench.spec.workload_reading import build_workload

# Of a device, another memory than this much of the calibrated ones' tells of another kind of device.
_ALIKE = 0.15
# How a launch goes on with its work: what was measured tells nothing of how another is to.
_OF_LAUNCH = ("steps", "warmup_steps", "trace_kernels")
# Settings by which all times become others, and those by which a phase does what no part of it tells.
_OF_KIND = ("precision", "rollout.backend")
_OF_SPEED = ("torch_compile", "rollout.cuda_graphs")
_LOG_PROBS = "rollout.log_probs"


@contextmanager
def explain_lookups(device: str, *, is_known_work: bool = True) -> Iterator[None]:
    """Turn a phase of which nothing is known on a device of this name into a line for the user.

    Args:
        device: its name.
        is_known_work: whether it is known what phases compute, which of a job of the user's it is not.
    """
    try:
        yield
    except LookupError as error:
        if not is_known_work:
            raise UsageError(
                f"{error.args[0]} was not measured on {device} and cannot be scaled to it, as what a job of yours"
                f" computes is not known: name a run of the job on {device}"
            ) from None
        raise UsageError(
            f"{error.args[0]} was not measured for this work, and the peaks of {device} are not known:"
            " name a run that has it, or a GPU whose peaks are known"
        ) from None


def known_gpu(name: str) -> str:
    """A GPU's name in full, of the first that has these words in its name, and of its sizes of memory the largest.

    Raises:
        UsageError: none has, or several that are called by other names, as by their vendor's.
    """
    known = list(device_peaks())
    if name in known:
        return name
    words = _words(name)
    found = [one for one in known if words and words <= _words(one)]
    if not found:
        raise UsageError(f"gpu {shown(name)}: its peaks are not known; choose one of {', '.join(known)}")
    if len({one.replace("-", " ").split()[1] for one in found}) > 1:
        raise UsageError(f"gpu {shown(name)}: it may be any of {', '.join(found)}: name one of them")
    return next(one for one in sizes_of(found[0]) if one in found)


def _words(name: str) -> set[str]:
    return {*name.lower().replace("-", " ").split()}


def asked_devices(
    text: str | None, files: Sequence[CalibrationFile], name: str, *, by_name: bool, origin: str = "devices"
) -> tuple[Device, ...]:
    """The devices that are asked about: those described, else as many as were calibrated.

    Those of another GPU than was calibrated have the memory of its data sheet, where none is described.

    Args:
        text: what describes them; None for those that were calibrated.
        files: the calibrations.
        name: of the devices.
        by_name: whether the user has named them.
        origin: what to call the source of the text in a message.
    """
    file = next((one for one in files if one.device == name), files[0])
    asked = DeviceSpec(file.kind, nodes=file.nodes) if text is None else parse_devices(text, origin)
    _refuse_untold(f"{origin} {text}", asked.kind, name, file, files, by_name=by_name)
    is_gpu = asked.kind == "gpu"
    usual = known_peak(name).memory_bytes if is_gpu and name != file.device else file.device_bytes
    memory = asked.memory_bytes or usual
    if not by_name and is_gpu and abs(memory - file.device_bytes) > _ALIKE * file.device_bytes:
        raise UsageError(
            f"{origin} {text}: the calibration is of {file.device} with {file.device_bytes >> 30} GiB; say with gpu"
            " (--gpu NAME) which GPUs these are"
        )
    return tuple(
        Device(
            f"node{node}/{asked.kind}:{index}",
            asked.kind,
            index,
            f"node{node}",
            name if is_gpu else file.device,
            memory,
            tuple(range(file.device_cores)),
        )
        for node in range(asked.nodes or 1)
        for index in range(asked.count or max(1, file.device_count // file.nodes))
    )


def _refuse_untold(
    what: str, kind: Kind, name: str, file: CalibrationFile, files: Sequence[CalibrationFile], *, by_name: bool
) -> None:
    """Refuse devices of a kind of which calibrations tell nothing."""
    if kind != file.kind:
        raise UsageError(
            f"{what}: the calibration is of {file.kind} devices ({file.device}): name one of {kind} devices"
        )
    if kind == "gpu" and not any(one.device == name or device_peak(one.device) for one in files):
        raise UsageError(
            f"gpu {shown(name)}: the calibration is of {file.device}, whose peaks are not known, so it cannot be scaled"
            f" to another GPU: name a run on {name}, or leave gpu (--gpu) out"
        )
    if kind == "cpu" and by_name:
        raise UsageError(
            f"gpu {shown(name)}: the calibration is of {file.kind} devices ({file.device}), which say nothing about"
            " GPUs: name one of a GPU, or leave gpu (--gpu) out"
        )


def asked_workload(
    files: Sequence[CalibrationFile], asked: Mapping[str, Any], origin: Callable[[str], str]
) -> Workload | None:
    """The job: that of the first calibration, with what is asked for laid over it; its steps are those of any run."""
    base = next(_jobs(files), None)
    if base is None:
        if asked:
            raise UsageError(
                "the calibration is of a job of yours, whose work is not known: only other placements of it can be"
                " predicted; leave out its model, sizes and other keys"
            )
        _refuse_unplaced(files)
        return None
    base = {key: value for key, value in base.items() if key not in _OF_LAUNCH}
    if (size := following_mini_batch(files, asked)) is not None:
        asked = merge(asked, {"batch": {"mini_batch_size": size}})
    if asked.get("model"):
        base = {**base, "critic_model": None}
    name = flatten(asked).get("algorithm.name")
    if name not in (None, flatten(base).get("algorithm.name")):
        # Its settings, and how many responses a prompt has, are another algorithm's.
        rest = {key: value for key, value in base.get("batch", {}).items() if key != "group_size"}
        base = {**base, "algorithm": {}, "batch": rest}
    workload = build_workload(merge(base, asked), origin)
    unusable = collect(MODEL_CHECKS, Facts(workload=workload)).lines
    if reasons := [*unusable, *_of_other_kind(files, workload)]:
        raise UsageError(*reasons)
    return workload


def _of_other_kind(files: Sequence[CalibrationFile], workload: Workload) -> Iterator[str]:
    """Settings of a job of which nothing that was measured tells, one line each."""
    for key, asked, measured in _unmeasured(files, workload, _OF_KIND):
        yield (
            f"{key} {asked}: the calibration is of {measured} only, which says nothing about {asked}: measure it with"
            f" placebench run --set {key}={asked}, and name that run"
        )


def tells_of(file: CalibrationFile, workload: Workload) -> bool:
    """Whether a calibration tells of a job's kind of work."""
    return not any(_of_other_kind((file,), workload))


def unmeasured_settings(files: Sequence[CalibrationFile], workload: Workload | None) -> Iterator[str]:
    """Settings that were measured otherwise, and whose times are taken to be those of what was measured."""
    for key, asked, measured in _unmeasured(files, workload, _OF_SPEED) if workload else ():
        yield f"{key} {asked} was not measured: times are those of {measured}"


def uncounted_log_probs(model: StepModel, placements: Sequence[Placement]) -> Iterator[str]:
    """Says where engines are to tell log-probabilities in every step, and launches of this work never did."""
    workload = model.phases.workload
    # Torch's decoding computes them in any case.
    if workload is None or workload.rollout.backend != "vllm":
        return
    always = workload.rollout.log_probs == "always"
    stale = any(one.staleness for one in placements)
    launches = [case for file in model.phases.calibrations for case in file.cases if case.workload and case.step_s]
    # Versions whose engines told them in every step had no such key.
    told = [case for case in launches if _tells_log_probs(case)]
    if not (always or stale) or len(told) == len(launches) or any(map(model.phases.is_same, told)):
        return
    what = f"{_LOG_PROBS} always" if always else "log-probabilities from engines, which staleness needs"
    counted = "counted only in part" if told else "not counted"
    yield f"{what}: not measured for this work, and the time that this adds to generation is {counted}"


def _tells_log_probs(case: MeasuredCase) -> bool:
    if flatten(case.workload).get(_LOG_PROBS, "always") == "always":
        return True
    try:
        return parse_placement(case.name, None).staleness > 0
    except UsageError:  # of a file it is not known
        return False


def _unmeasured(
    files: Sequence[CalibrationFile], workload: Workload, keys: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Of keys whose value no case has: the key, the value asked for, and those measured."""
    asked = flatten(workload.model_dump(mode="json"))
    cases = [flatten(case.workload) for file in files for case in file.cases if case.workload]
    for key in keys:
        measured = [case[key] for case in cases if key in case]
        if measured and asked[key] not in measured:
            yield key, _word(asked[key]), listing(dict.fromkeys(map(_word, measured)))


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _jobs(files: Sequence[CalibrationFile]) -> Iterator[Mapping[str, Any]]:
    """The jobs of calibrations, of each as its run asked for it, else as placements ran it that leave it as it is."""
    for file in files:
        if file.workload:
            yield file.workload
        cases = [case for case in file.cases if case.workload]
        yield from (case.workload for case in sorted(cases, key=lambda case: _changes_work(case.name)))


def _changes_work(word: str) -> bool:
    """Whether a word's placement changes the work: replicas do, and engines of its own size; files are not known."""
    try:
        placement = parse_placement(word, None)
    except UsageError:
        return False
    return placement.scaling is not None or placement.tensor_parallel is not None


def _refuse_unplaced(files: Sequence[CalibrationFile]) -> None:
    """Refuse a job of the user's of which no phase of a role is known with the devices that it ran on."""
    cases = [case for file in files for case in file.cases]
    phases = [(case, phase) for case in cases for phase in case.phases if phase.name in PHASE]
    if not any(PHASE[phase.name].role and tells_devices(case, phase) for case, phase in phases):
        names = listing(shown(name) for name in dict.fromkeys(case.name for case in cases))
        raise UsageError(
            f"{', '.join(file.source for file in files)}: a job of yours, and it is not known which roles of {names}"
            " work on which devices, so no other placement can be predicted: measure that in a run of the job"
        )


def following_mini_batch(files: Sequence[CalibrationFile], asked: Mapping[str, Any]) -> int | None:
    """The mini-batch where the batch alone is asked for: as many optimizer steps as were calibrated, or the most below.

    None where it is asked for too, or the batch is no size of a batch.
    """
    base = next(_jobs(files), {})
    batch, old = asked.get("batch", {}), base.get("batch", {})
    size = batch.get("size") if isinstance(batch, Mapping) and "mini_batch_size" not in batch else None
    if type(size) is not int or not 1 <= size <= MOST_SEQUENCES or not old.get("size"):
        return None
    steps = max(1, old["size"] // max(1, old.get("mini_batch_size", old["size"])))
    return size // next(count for count in range(min(steps, size), 0, -1) if size % count == 0)


def step_model(files: tuple[CalibrationFile, ...], workload: Workload | None, devices: Sequence[Device]) -> StepModel:
    """What a step of the job takes on the devices, by the calibrations."""
    shapes = job_shapes(workload) if workload else None
    return StepModel(PhaseModel(workload, shapes, files, devices[0], max(devices_per_node(devices))), devices)
