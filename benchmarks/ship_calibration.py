"""Make the calibration that placebench ships for a GPU, of runs, shared runs and calibration files.

    python benchmarks/ship_calibration.py h200 runs/reference/4x-h200/{qwen2.5-0.5b,ppo-*,grpo}

All are of the same GPU. What hosts took is in it as it was measured, on several hosts and days.
"""

from pathlib import Path

import click
from prediction_cases import SHIPPED

from placebench.report.calibrations import load_calibration


@click.command()
@click.argument("name")
@click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def main(name: str, sources: tuple[Path, ...]) -> None:
    """Put the cases of SOURCES into one calibration, NAME."""
    files = [load_calibration(path) for path in sources]
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


if __name__ == "__main__":
    main()
