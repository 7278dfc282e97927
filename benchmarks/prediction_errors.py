"""How far predictions err on what is kept of real runs, beside the simplest other ways to predict.

    python benchmarks/prediction_errors.py [--write-table]

Every case is a placement that was measured and that the predictor did not see: of each folder of runs/reference the
placements after its first one, predicted from the first one alone (same run), and all placements of every folder
predicted from each other folder alone; and what runs/reference/calibration holds: steps that were predicted before they
were run, steps with micro-batches of one size predicted from those of another, or from what is shipped, and all of one
GPU from what is shipped of another. Coverage is
that of intervals which come from the cases of other folders. `--write-table` keeps the cases as the table that
`placebench predict` takes its intervals from.

The others: `a + b/n`, the phases' times as measured, fitted to the numbers of devices that there are, which knows of
the same work alone; and the operations of a step at the share of the peak that the first measured placement reached.
Where the extra `predict` is installed, AIConfigurator's seconds of generation stand beside the predictor's.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import pairwise
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from memory_sizes import estimate_of, workload_of
from predicted_files import CommittedSizes, MeasuredSize, committed_sizes, predicted_before, sizes_again
from prediction_cases import (
    REFERENCE,
    Folder,
    Result,
    by_another_gpu,
    by_what_is_shipped,
    decode_kernels,
    from_one_gpu,
    model_of,
    other_token_budgets,
    read_folders,
    results,
    traced_passes,
)

from placebench.predict.interval import HeldOut, PredictionClass, class_error, step_interval
from placebench.predict.step import HOST_BOUND
from placebench.record.calibration_file import MeasuredCase, read_calibration
from placebench.report.kept import read_summary
from placebench.spec.placement import Role
from placebench.spec.workload import Workload

TABLE = Path(str(files("placebench.predict").joinpath("data", "held_out.csv")))
# Versions of which a single rank kept no weights between micro-batches, as today's estimate counts them.
KEPT_NO_COPIES = ("0.1.0",)
# Tokens of a prompt in runs/reference/calibration/decode.
DECODE_PROMPT = 64
# Beyond so much memory of a device an estimate is held to 5 %.
LARGE_BYTES = 16 << 30


@click.command()
@click.option("--write-table", is_flag=True, help="Keep the cases as the table of held-out cases.")
def main(write_table: bool) -> None:
    """Print errors, coverage and memory errors as Markdown tables."""
    folders = read_folders()
    kept = REFERENCE / "calibration"
    found = [*results(folders), *predicted_before(kept), *other_token_budgets(kept), *by_what_is_shipped(kept)]
    found += by_another_gpu(kept, folders)
    _print_table("Steps", ("class", "n", "mean", "worst", "GPU-bound", "host-bound", "90 % covers"), _classes(found))
    ways = list(_ways(found))
    _print_table("Steps beside other ways to predict them", ("class", "way", "n", "mean", "ours", "nearer"), ways)
    worse = [f"{kind} ({way})" for kind, way, _, mean, ours, _ in ways if float(mean[:-2]) <= float(ours[:-2])]
    print(f"Not better on average than: {', '.join(worse) or 'none'}.\n")
    _print_table("Generation alone", ("class", "n", "predictor", "AIConfigurator"), _generation(found))
    _print_table("Kernels of a token step", ("GPU", "model", "n", "predictor", "worst", "AIConfigurator"), _decode())
    _print_table("Kernels of a pass", ("GPU", "model", "phases", "n", "predictor", "worst"), _passes())
    _print_table("Order of placements predicted together", ("class", "pairs over 10 % apart", "right"), _orders(found))
    columns = ("host", "n", "mean", "worst", "GPU-bound", "for its cores", "worst so")
    _print_table("Sizes of one GPU, committed before they were run", columns, _committed(committed_sizes(kept)))
    sizes = list(sizes_again(kept))
    _print_table("Sizes on the host of their calibration, again", ("by", "n", "mean", "worst"), _again(sizes))
    pairs = ("model", "pairs", "apart", "worst", "for their cores", "worst so")
    _print_table("Launches of a size beside each other", pairs, _launches(sizes))
    single = list(from_one_gpu(folders))
    _print_table("From one GPU to four", ("class", "n", "mean", "worst", "GPU-bound", "host-bound"), _errors(single))
    _print_table("Order on four GPUs, from one", ("class", "pairs over 10 % apart", "right"), _orders(single))
    rest = [_left_out(folder, case) for folder in folders for case in folder.file.cases if len(folder.file.cases) > 1]
    worst = f"{_worst(rest)} at most"
    print(f"{len(rest)} placements from all others of their run: {_mean(rest)} on average, {worst}.\n")
    _print_table("Memory", ("run", "placement", "pool", "estimate", "measured", "error"), _memory(folders))
    if write_table:
        _write([one.kept for one in found])
        print(f"{len(found)} cases in {TABLE}")


def _committed(found: Iterable[CommittedSizes]) -> Iterator[tuple[object, ...]]:
    """How far committed predictions were off by host, as they were committed and for cores as fast as they were."""
    hosts = list(found)
    both = CommittedSizes("all", tuple(one for host in hosts for one in host.errors), ())
    for host in (*hosts, both):
        whole = [abs(error) for error, _ in host.errors]
        bound = [abs(error) for error, share in host.errors if share <= HOST_BOUND]
        cores = [abs(error) for error, _ in host.on_cores]
        cells = (_mean(whole), _worst(whole), f"{_mean(bound)} of {len(bound)}", _mean(cores), _worst(cores))
        yield host.host, len(whole), *cells


def _again(sizes: Sequence[MeasuredSize]) -> Iterator[tuple[str, int, str, str]]:
    """Sizes by today's predictor, which is no test of it, beside what one launch says of another."""
    ours = [_relative(size.predicted_s, fmean(step_s for step_s, _ in size.launches)) for size in sizes]
    pairs = [_relative(first, second) for size in sizes for (first, _), (second, _) in pairwise(size.launches)]
    for what, errors in (("today's predictor", ours), ("another launch of the same size", pairs)):
        yield what, len(errors), _mean(errors), _worst(errors)


def _launches(sizes: Sequence[MeasuredSize]) -> Iterator[tuple[object, ...]]:
    """What two launches of a size differ by, and what is left once each is beside its cores' own prediction."""
    apart: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for size in sizes:
        for (first_s, first), (second_s, second) in pairwise(size.launches):
            if first and second:
                apart[size.model].append((_relative(first_s, second_s), _relative(first_s / first, second_s / second)))
    for model, pairs in apart.items():
        measured, left = zip(*pairs, strict=True)
        yield model, len(pairs), _mean(measured), _worst(measured), _mean(left), _worst(left)


def _print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print(f"### {title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    print(flush=True)


def _of_classes(found: Sequence[Result]) -> Iterator[tuple[PredictionClass, list[Result]]]:
    for kind in PredictionClass:
        if alike := [one for one in found if one.kept.kind is kind]:
            yield kind, alike


def _relative(predicted: float, measured: float) -> float:
    return abs(predicted / measured - 1)


def _mean(errors: Sequence[float]) -> str:
    return f"{100 * fmean(errors):.1f} %" if errors else "–"


def _worst(errors: Sequence[float]) -> str:
    return f"{100 * max(errors):.1f} %" if errors else "–"


def _classes(found: Sequence[Result]) -> Iterator[tuple[object, ...]]:
    all_covered: list[bool] = []
    for (kind, alike), cells in zip(_of_classes(found), _errors(found), strict=True):
        covered = [told for one in alike if (told := _covers(one, found)) is not None]
        all_covered += covered
        yield kind, *cells[1:], _share(covered)
    yield "all", len(found), "", "", "", "", _share(all_covered)


def _share(covered: Sequence[bool]) -> str:
    return f"{sum(covered)} of {len(covered)}" if covered else "not said"


def _errors(found: Sequence[Result]) -> Iterator[tuple[object, ...]]:
    for kind, alike in _of_classes(found):
        errors = [(_relative(one.kept.predicted_s, one.kept.measured_s), one.kept.is_host_bound) for one in alike]
        bound = [[error for error, is_bound in errors if is_bound is wanted] for wanted in (False, True)]
        mean, worst = _mean([error for error, _ in errors]), _worst([error for error, _ in errors])
        yield kind, len(alike), mean, worst, *(f"{_mean(some)} of {len(some)}" for some in bound)


def _covers(one: Result, found: Sequence[Result]) -> bool | None:
    """Whether the interval holds what was measured; None where too few cases of other folders tell."""
    others = [other.kept for other in found if other.folder != one.folder]
    error = class_error(one.kept.kind, is_host_bound=one.kept.is_host_bound, cases=others)
    interval = step_interval(one.kept.predicted_s, error, one.spread, one.launches)
    return None if interval is None else interval.low <= one.kept.measured_s <= interval.high


def _ways(found: Sequence[Result]) -> Iterator[tuple[str, str, int, str, str, str]]:
    for kind, alike in _of_classes(found):
        for way in dict.fromkeys(name for one in alike for name in one.rivals):
            pairs = [
                (_relative(one.rivals[way], one.kept.measured_s), _relative(one.kept.predicted_s, one.kept.measured_s))
                for one in alike
                if not isnan(one.rivals.get(way, nan))
            ]
            if pairs:
                theirs, ours = ([pair[at] for pair in pairs] for at in (0, 1))
                nearer = sum(own <= other for other, own in pairs)
                yield str(kind), way, len(pairs), _mean(theirs), _mean(ours), f"{nearer} of {len(pairs)}"


def _generation(found: Sequence[Result]) -> Iterator[tuple[object, ...]]:
    for kind, alike in _of_classes(found):
        known = [one.gen for one in alike if not isnan(one.gen[0])]
        tabled = [one for one in known if not isnan(one[2])]
        if known:
            yield (
                kind,
                len(known),
                _mean([_relative(ours, measured) for measured, ours, _ in known]),
                _mean([_relative(theirs, measured) for measured, _, theirs in tabled]) if tabled else "not installed",
            )


def _decode() -> Iterator[tuple[object, ...]]:
    for path in sorted((REFERENCE / "calibration" / "decode").glob("*.jsonl")):
        rows = list(decode_kernels(path, DECODE_PROMPT))
        for model in sorted({model for model, *_ in rows}):
            of_model = [one for one in rows if one[0] == model]
            ours = [_relative(predicted, traced) for _, traced, predicted, _ in of_model]
            theirs = [_relative(tabled, traced) for _, traced, _, tabled in of_model if not isnan(tabled)]
            tables = _mean(theirs) if theirs else "not installed"
            yield path.stem.upper(), model, len(ours), _mean(ours), _worst(ours), tables


def _passes() -> Iterator[tuple[object, ...]]:
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for gpu, model, what, traced, predicted in traced_passes(REFERENCE / "calibration"):
        errors[gpu.upper(), model, what].append(_relative(predicted, traced))
    for key, found in sorted(errors.items()):
        yield *key, len(found), _mean(found), _worst(found)


def _orders(found: Sequence[Result]) -> Iterator[tuple[object, ...]]:
    # What calibrations have is of different work, whose order tells nothing of placements.
    for kind, alike in _of_classes([one for one in found if not one.folder.startswith("calibration")]):
        right = [
            (first.kept.measured_s < second.kept.measured_s) == (first.kept.predicted_s < second.kept.predicted_s)
            for number, first in enumerate(alike)
            for second in alike[number + 1 :]
            if first.kept.group == second.kept.group and abs(first.kept.measured_s / second.kept.measured_s - 1) > 0.1
        ]
        if right:
            yield kind, len(right), sum(right)


def _left_out(folder: Folder, case: MeasuredCase) -> float:
    """The error of a placement that is predicted from all others of its run."""
    others = tuple(one for one in folder.file.cases if one is not case)
    model, placement = model_of([folder.file.model_copy(update={"cases": others})], folder.file, case)
    assert case.step_s
    return _relative(model.step(placement).seconds, case.step_s)


def _memory(folders: Sequence[Folder]) -> Iterator[tuple[object, ...]]:
    """Every pool's peak by the estimate of today beside its highest sample, and the lengths that were measured."""
    errors: dict[bool, list[float]] = {False: [], True: []}

    def row(run: str, placement: str, pool: str, estimate: float, measured: float) -> tuple[object, ...]:
        error = estimate / measured - 1
        errors[measured >= LARGE_BYTES].append(abs(error))
        gib = (f"{size / 2**30:.2f} GiB" for size in (estimate, measured))
        return run, placement, pool, *gib, f"{100 * error:+.1f} %"

    for folder in folders:
        summary = read_summary(REFERENCE / folder.name)
        keeps_copies = summary.placebench not in KEPT_NO_COPIES
        by_name = {case.name: case for case in folder.file.cases}
        for one in summary.placements:
            if one.name not in by_name:
                continue
            model, placement = model_of([folder.file], folder.file, by_name[one.name])
            for pool, estimate in model.memory(placement).items():
                if not keeps_copies and sum(device.pool == pool for device in one.devices) == 1:
                    continue
                peaks = [
                    found.value
                    for device in one.devices
                    if device.pool == pool
                    for found in device.quantities
                    if found.key.startswith("peak_memory/") and found.value
                ]
                if peaks:
                    yield row(folder.name, one.name, pool, estimate, max(peaks))
    grid = REFERENCE / "calibration" / "grid"
    for kept in _json_lines(grid / "memory.jsonl"):
        file = read_calibration(grid / kept["calibration"])
        workloads = [Workload.model_validate(case.workload) for case in file.cases]
        roles = [role for role in Role if role is not Role.CRITIC or workloads[0].algorithm.has_critic]
        estimate = max(estimate_of(one, roles, "gpu", file.device_bytes).peak for one in workloads)
        name = Path(kept["calibration"]).stem.removeprefix("calibration-")
        yield row("calibration/grid", name, "+".join(roles), estimate, kept["measured_gib"] * 2**30)
    for kept in _json_lines(REFERENCE / "calibration" / "memory_lengths.jsonl"):
        roles = [Role(role) for role in kept["roles"].split("+")]
        estimate = estimate_of(workload_of(kept["model"], kept["length"]), roles, "gpu", 80 << 30).peak
        name = f"{kept['model']}, {kept['length']} tokens"
        yield row("calibration", name, kept["roles"], estimate, kept["measured_gib"] * 2**30)
    for is_large, some in errors.items():
        what = "16 GiB or more" if is_large else "less than 16 GiB"
        if some:
            yield f"{len(some)} pools of {what}", "", "", "", "", f"{_mean(some)}, {_worst(some)} at most"


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _write(cases: Sequence[HeldOut]) -> None:
    header = ("class", "group", "case", "model", "gpu", "host_bound", "predicted_s", "measured_s", "launches", "source")
    with TABLE.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        for one in cases:
            host, seconds = "yes" if one.is_host_bound else "no", (f"{one.predicted_s:.4f}", f"{one.measured_s:.4f}")
            writer.writerow(
                (one.kind, one.group, one.case, one.model, one.gpu, host, *seconds, one.launches, one.source)
            )


if __name__ == "__main__":
    main()
