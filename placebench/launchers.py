"""What starts a launch's workers: Ray, or torchrun for placements of replicas alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from placebench.placement import Placement

RAY, TORCHRUN = "ray", "torchrun"
LAUNCHERS = (RAY, TORCHRUN)


def unusable_launcher(launcher: str, placements: Sequence[Placement], ray_address: str | None) -> Iterator[str]:
    """Why a launcher cannot start a run.

    Args:
        launcher: one of `LAUNCHERS`.
        placements: of the run.
        ray_address: of the Ray cluster that is asked for; None without one.
    """
    if launcher != TORCHRUN:
        return
    if others := [placement.name for placement in placements if placement.scaling is None]:
        yield (
            "--launcher torchrun is for ddp alone, as in --placements ddp:1,ddp:2: leave out"
            f" {', '.join(others)}, or --launcher"
        )
    if ray_address is not None:
        yield "--launcher torchrun starts no Ray and joins none: leave out --ray-address, or --launcher"


def recorded_launcher(manifest: Mapping[str, Any]) -> str:
    """The launcher of a run, from the content of its `run.json`; earlier versions started all with Ray.

    Raises:
        ValueError: there is none of that name.
    """
    launcher = str(manifest.get("launcher", RAY))
    if launcher not in LAUNCHERS:
        raise ValueError(f"launcher {launcher!r}")
    return launcher
