"""The cases of `prediction_errors.py`: what was measured and not seen, by the predictor and by simpler ways."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import nan
from pathlib import Path
from statistics import fmean

import numpy as np
from predicted_runs import size_of_case
from scipy.optimize import nnls

from placebench.compare.measure.efficiency import Work
from placebench.predict.interval import HeldOut, PredictionClass
from placebench.predict.kernel_tables import engine_tables
from placebench.predict.known import shipped_calibrations
from placebench.predict.peaks import known_peak
from placebench.predict.phases import PhaseModel
from placebench.predict.prediction import launch_spread
from placebench.predict.step import StepModel
from placebench.predict.walk import step_times
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, read_calibration
from placebench.report.kept import read_summary
from placebench.report.shared_calibration import shared_calibration
from placebench.spec.devices import Device
from placebench.spec.phases import GEN, PHASE, Activity
from placebench.spec.placement import Placement, Role
from placebench.spec.shapes import job_shapes
from placebench.spec.words import parse_placement
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload

OTHER_GPU = PredictionClass.OTHER_GPU
REFERENCE = Path(__file__).parent.parent / "runs" / "reference"
# Phases whose kernels are passes over whole sequences.
PASSES = {Activity.FORWARD: "scoring", Activity.UPDATE: "updates"}


@dataclass(frozen=True)
class Folder:
    """What is kept of a run."""

    name: str
    file: CalibrationFile
    day: str
    gpus: frozenset[str]
    """The day on which it was measured, and the UUIDs of the host's GPUs."""


@dataclass(frozen=True)
class Result:
    """A case as it was predicted, in seconds; NaN where a way to predict says nothing of it."""

    kept: HeldOut
    folder: str
    """Where it was measured; what was measured there counts for no interval of it."""
    spread: float
    """Of launches, as of `prediction.launch_spread`."""
    launches: int
    rivals: Mapping[str, float]
    gen: tuple[float, float, float] = (nan, nan, nan)
    """Generation alone: as measured, by the predictor, by AIConfigurator."""


def read_folders() -> list[Folder]:
    """All shared runs of placebench's own job on H200s whose placements tell what their phases took."""
    folders = []
    for path in (one.parent for one in sorted(REFERENCE.glob("*x-h200/**/summary.json"))):
        summary = read_summary(path)
        # What compares several runs has no host.
        if summary.host and not summary.job:
            gpus = frozenset(gpu["uuid"] for gpu in summary.host["gpus"])
            where, day = str(path.relative_to(REFERENCE)), str(summary.started)[:10]
            folders.append(Folder(where, shared_calibration(path), day, gpus))
    return folders


def results(folders: Sequence[Folder]) -> Iterator[Result]:
    """Every case of the folders, predicted."""
    for folder in folders:
        first, *others = folder.file.cases
        alone = folder.file.model_copy(update={"cases": (first,)})
        group = f"{folder.name} from {first.name}"
        yield from (_result(PredictionClass.SAME_RUN, group, [alone], folder, case) for case in others)
    for source, target in product(folders, folders):
        if source is not target:
            group = f"{source.name} to {target.name}"
            kind = _kind(source, target)
            yield from (_result(kind, group, [source.file], target, case) for case in target.file.cases)


def from_one_gpu(folders: Sequence[Folder]) -> Iterator[Result]:
    """The placements of four GPUs, each by what one GPU took alone."""
    alone = [(one, case) for one in folders for case in one.file.cases if {p.devices for p in case.phases} <= {0, 1}]
    for source, first in alone:
        file = source.file.model_copy(update={"cases": (first,)})
        for target in folders:
            group = f"{source.name}, {first.name} to {target.name}"
            if target.file.device_count == 4:
                yield from (_result(_kind(source, target), group, [file], target, case) for case in target.file.cases)


def _kind(source: Folder, target: Folder) -> PredictionClass:
    if source.day != target.day or source.gpus.isdisjoint(target.gpus):
        return PredictionClass.OTHER_HOST
    models = {file.file.cases[0].workload["model"] for file in (source, target)}
    return PredictionClass.OTHER_SIZE if len(models) == 1 else PredictionClass.OTHER_MODEL


def _result(
    kind: PredictionClass, group: str, sources: Sequence[CalibrationFile], target: Folder, case: MeasuredCase
) -> Result:
    model, placement = model_of(sources, target.file, case)
    step = model.step(placement)
    assert case.step_s is not None
    kept = HeldOut(
        kind,
        group,
        case.name,
        str(case.workload["model"]),
        target.file.device,
        bool(step.is_host_bound),
        step.seconds,
        case.step_s,
        case.launches,
        target.name,
    )
    spread, launches = launch_spread(model)
    measured = {phase.name: phase.seconds for phase in case.phases}
    gen = (measured.get(GEN, nan), step.phases[GEN].total, tabled_generation(model, placement))
    rivals = {"a + b/n": by_amdahl(model, placement), "FLOPs": by_operations(model, placement)}
    return Result(kept, target.name, spread, launches, rivals, gen)


def model_of(
    sources: Sequence[CalibrationFile], target: CalibrationFile, case: MeasuredCase
) -> tuple[StepModel, Placement]:
    """The model of a case's steps by what the sources measured, and its placement."""
    workload = Workload.model_validate(case.workload)
    count = max(target.device_count, 1)
    devices = tuple(
        Device(f"gpu:{index}", target.kind, index, "node0", target.device, target.device_bytes)
        for index in range(count)
    )
    phases = PhaseModel(workload, case.models, sources, devices[0], count)
    return StepModel(phases, devices), parse_placement(case.name, [count], has_critic=workload.algorithm.has_critic)


def by_amdahl(model: StepModel, placement: Placement) -> float:
    """The step by phases of a + b/n seconds on n devices, b/n where one number of devices was measured."""
    times: dict[str, dict[int, float]] = {}
    gaps = []
    for file in model.phases.calibrations:
        for case in filter(model.phases.is_same, file.cases):
            gaps.append(case.gap_s or 0.0)
            for phase in case.phases:
                times.setdefault(phase.name, {})[phase.devices] = phase.seconds
    if not gaps:
        return nan
    return _walked(model, placement, lambda name, devices: _fitted(times.get(name, {0: 0.0}), devices)) + fmean(gaps)


def _fitted(times: Mapping[int, float], devices: int) -> float:
    if devices in times or 0 in times:
        return times.get(devices, times.get(0, 0.0))
    if len(times) == 1:
        ((count, seconds),) = times.items()
        return seconds * count / devices
    counts = np.array(list(times), dtype=np.float64)
    (fixed, divided), _ = nnls(np.column_stack([np.ones_like(counts), 1 / counts]), list(times.values()))
    return float(fixed + divided / devices)


def by_operations(model: StepModel, placement: Placement) -> float:
    """The step by its operations, at the share of the peak that the first measured placement's step had."""
    file = model.phases.calibrations[0]
    first = file.cases[0]
    assert first.step_s
    source, known = model_of([file], file, first)
    share = _operations(source, known, file.device) / first.step_s
    return _operations(model, placement, model.phases.device.name) / share


def _operations(model: StepModel, placement: Placement, device: str) -> float:
    """Seconds of a step at the peak."""
    workload, shapes, peak = model.phases.workload, model.phases.shapes, known_peak(device)
    assert workload is not None
    assert shapes is not None
    batch = workload.batch
    length = batch.max_prompt_length + batch.max_response_length
    work = Work(shapes.actor, shapes.critic, workload.algorithm.epochs, 1, 2)

    def seconds(name: str, devices: int) -> float:
        phase = PHASE[name]
        if not phase.has_sequences or not devices or (name == "reward" and shapes.reward is None):
            return 0.0
        return batch.size * length * work.flops(phase, length) / devices / peak.flops

    return _walked(model, placement, seconds)


def _walked(model: StepModel, placement: Placement, seconds: Callable[[str, int], float]) -> float:
    pools = {one.name: placement.pool_of(one.role) if one.role else None for one in model.graph(placement)}
    _, whole = step_times(
        list(pools),
        {name: seconds(name, pool.size if pool else 0) for name, pool in pools.items()},
        {name: pool.name if pool else "" for name, pool in pools.items()},
        placement.overlap,
        staleness=placement.staleness,
        has_engines=placement.has_engines,
    )
    return whole


def tabled_generation(model: StepModel, placement: Placement) -> float:
    """Seconds of generation by AIConfigurator's tables alone, of responses of full length; NaN without them."""
    workload, shapes = model.phases.workload, model.phases.shapes
    assert workload is not None
    assert shapes is not None
    tables = engine_tables(shapes.actor, model.phases.device.name)
    if tables is None:
        return nan
    batch = workload.batch
    sequences = batch.size / placement.pool_of(Role.ROLLOUT).size
    steps = (tables.decode(sequences, batch.max_prompt_length + step)[0] for step in range(batch.max_response_length))
    prompts = sequences * batch.max_prompt_length / batch.group_size
    return float(sum(steps)) + tables.prefill(prompts, batch.max_prompt_length)


def other_token_budgets(path: Path) -> Iterator[Result]:
    """Steps with one size of micro-batches: each by the same steps with one other, and another host's by all."""
    for folder in sorted(path.glob("grid/*")):
        name = f"{path.name}/{folder.parent.name}/{folder.name}"
        of_host = [read_calibration(one) for one in sorted(folder.glob("calibration-*.json"))]
        for source, target in permutations(of_host, 2):
            group = f"{name}, micro-batches of {_budget(source)} to {_budget(target)} tokens"
            yield from _sizes(PredictionClass.OTHER_SIZE, group, [source], name, target)
        for one in sorted(folder.glob("another-host/calibration-*.json")):
            target = read_calibration(one)
            group = f"{name} to another host, micro-batches of {_budget(target)} tokens"
            yield from _sizes(PredictionClass.OTHER_HOST, group, of_host, f"{name}/{one.parent.name}", target)


def by_what_is_shipped(path: Path) -> Iterator[Result]:
    """Steps with each size of micro-batches, of GPUs of which the calibration that is shipped has none of them."""
    shipped = {file.device: file for file in shipped_calibrations().values()}
    for one in sorted(path.glob("grid/*/calibration-*.json")):
        target = read_calibration(one)
        file = shipped[target.device]
        if not {case.step_s for case in target.cases} & {case.step_s for case in file.cases}:
            name = f"{path.name}/{one.parent.parent.name}/{one.parent.name}"
            group = f"shipped to {name}, micro-batches of {_budget(target)} tokens"
            yield from _sizes(PredictionClass.OTHER_HOST, group, [file], name, target)


def by_another_gpu(path: Path, folders: Sequence[Folder]) -> Iterator[Result]:
    """What was measured of one GPU, runs and steps with each size of micro-batches, by what is shipped of others."""
    for name, file in shipped_calibrations().items():
        for folder in folders:
            group = f"shipped {name} to {folder.name}"
            if folder.file.device != file.device:
                yield from (_result(OTHER_GPU, group, [file], folder, case) for case in folder.file.cases)
        for one in sorted(path.glob("grid/*/**/calibration-*.json")):
            target = read_calibration(one)
            if target.device != file.device:
                where = f"{path.name}/{one.parent.relative_to(path)}"
                group = f"shipped {name} to {where}, micro-batches of {_budget(target)} tokens"
                yield from _sizes(OTHER_GPU, group, [file], where, target)


def traced_passes(path: Path) -> Iterator[tuple[str, str, str, float, float]]:
    """Kernels of scoring and training that were traced, of GPUs of which what is shipped has none of them.

    Yields:
        The shipped calibration's name; the model; whether a phase trains or scores; seconds of its kernels as traced,
        and by the predictor from that calibration.
    """
    shipped = shipped_calibrations()
    for name, file in shipped.items():
        for one in sorted([*path.glob("grid/*/calibration-*.json"), *path.glob("committed/*/calibration-*.json")]):
            target = read_calibration(one)
            known = {phase.kernel_s for case in file.cases for phase in case.phases}
            traced = [phase.kernel_s for case in target.cases for phase in case.phases if phase.kernel_s]
            if target.device != file.device or known.intersection(traced):
                continue
            for case in target.cases:
                model, _ = model_of([file], target, case)
                for phase in case.phases:
                    if phase.kernel_s and (what := PASSES.get(PHASE[phase.name].activity)):
                        predicted = model.phases.seconds(phase.name, 1).kernels
                        yield name, case.workload["model"], what, phase.kernel_s, predicted


def _sizes(
    kind: PredictionClass, group: str, sources: Sequence[CalibrationFile], name: str, target: CalibrationFile
) -> Iterator[Result]:
    measured = Folder(name, target, "", frozenset())
    for case in target.cases:
        result = _result(kind, group, sources, measured, case)
        yield replace(result, kept=replace(result.kept, case=size_of_case(case)))


def _budget(file: CalibrationFile) -> str:
    return f"{file.cases[0].workload['batch']['micro_batch_tokens']:,}"


def decode_kernels(path: Path, prompt: int) -> Iterator[tuple[str, float, float, float]]:
    """Of token steps that `decode.py` traced: the model, and the seconds of kernels.

    Args:
        path: the file of its rows, called like the calibration that is shipped for the GPU.
        prompt: tokens of a prompt.

    Yields:
        The model; seconds of a token step's kernels as traced, by the predictor from the calibration that is shipped,
        and by AIConfigurator, NaN without its tables.
    """
    shipped = shipped_calibrations()[path.stem]
    device = Device("gpu:0", "gpu", 0, "node0", shipped.device, shipped.device_bytes)
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if "kernels_s" not in row:
            continue
        count, long = row["sequences"], row["tokens"]
        kernels, tabled = [], []
        for tokens in (short := long // 8, long):
            batch = {"max_prompt_length": prompt, "max_response_length": tokens}
            batch |= {"size": count, "mini_batch_size": count}
            workload = build_workload({"model": row["model"], "batch": batch})
            shapes = job_shapes(workload)
            phases = PhaseModel(workload, shapes, [shipped], device, 1)
            kernels.append(phases.seconds(GEN, 1).kernels)
            placement = parse_placement("standard", [1], has_critic=True)
            tabled.append(tabled_generation(StepModel(phases, (device,)), placement))
        predicted, theirs = ((after - before) / (long - short) for before, after in (kernels, tabled))
        yield row["model"], row["kernels_s"], predicted, theirs
