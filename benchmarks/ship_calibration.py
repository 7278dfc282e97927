"""Make the calibration that placebench ships for a GPU, of runs, shared runs and calibration files.

    python benchmarks/ship_calibration.py h200 runs/reference/4x-h200/{ppo-*,grpo} --kernels-of FILE

All are of the same GPU. What hosts took is in it as it was measured, on several hosts and days; of sources with
`--kernels-of`, whose launches were those of an older version, kernels alone count.
"""

from pathlib import Path

import click

import placebench
from placebench.record.calibration_file import CalibrationFile
from placebench.report.calibrations import load_calibration

SHIPPED = Path(placebench.__file__).parent / "predict" / "data" / "calibrations"


@click.command()
@click.argument("name")
@click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--kernels-of", "older", multiple=True, type=click.Path(exists=True, path_type=Path), help="Repeatable.")
def main(name: str, sources: tuple[Path, ...], older: tuple[Path, ...]) -> None:
    """Put the cases of SOURCES into one calibration, NAME."""
    files = [load_calibration(path) for path in sources]
    files += [_kernels_alone(load_calibration(path)) for path in older]
    first = files[0]
    if others := {file.device for file in files} - {first.device}:
        raise click.ClickException(f"{first.device} and {', '.join(others)}: give those of one GPU")
    cases = tuple(case for file in files for case in file.cases)
    changes = {
        "source": name,
        "hostname": None,
        "device_count": max(file.device_count for file in files),
        "commit": None,
        "cases": cases,
    }
    path = SHIPPED / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(first.model_copy(update=changes).model_dump_json(exclude_none=True) + "\n", encoding="utf-8")
    print(f"{path}: {len(cases)} cases, {path.stat().st_size / 1000:.0f} kB")


def _kernels_alone(file: CalibrationFile) -> CalibrationFile:
    """The cases whose kernels were traced, as if they were of a benchmark, which tells nothing of launches."""
    traced = [case for case in file.cases if any(phase.kernel_s is not None for phase in case.phases)]
    cases = tuple(case.model_copy(update={"step_s": None, "gap_s": None}) for case in traced)
    return file.model_copy(update={"cases": cases})


if __name__ == "__main__":
    main()
