"""What starts a launch's workers: Ray, or torchrun for placements of replicas alone."""

from collections.abc import Iterator, Sequence

from placebench.spec.placement import Placement

RAY, TORCHRUN = "ray", "torchrun"
LAUNCHERS = (RAY, TORCHRUN)
COMMAND = "command"
"""In place of a launcher where launches are a command of the user's, which starts what it needs itself."""


def unusable_launcher(
    launcher: str,
    placements: Sequence[Placement] = (),
    others: Sequence[Placement] = (),
    ray_address: str | None = None,
) -> Iterator[str]:
    """Why a launcher cannot start a run.

    Args:
        launcher: one of `LAUNCHERS`.
        placements: of the run, as far as they are known.
        others: of the run, which cannot be for another reason already.
        ray_address: of the Ray cluster that is asked for; None without one.
    """
    if launcher != TORCHRUN:
        return
    if wrong := [placement.name for placement in (*placements, *others) if placement.scaling is None]:
        yield (
            "--launcher torchrun runs only ddp placements, as in --placements ddp:1,ddp:2: leave out"
            f" {', '.join(wrong)}, or --launcher"
        )
    if ray_address is not None:
        yield "--launcher torchrun runs without Ray: leave out --ray-address, or --launcher"
