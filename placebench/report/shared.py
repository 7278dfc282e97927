"""A run that was shared without its raw files: what its `summary.json` still says, as sides."""

from pathlib import Path

import pandas as pd

from placebench.compare.measure.background import facts_of_record
from placebench.compare.side import Background, LaunchSource, Side
from placebench.errors import UsageError
from placebench.record.folder import Status
from placebench.report.kept import SHARED, read_summary
from placebench.report.schema import Summary


def shared_sides(path: Path, placement: str | None) -> tuple[Side, ...]:
    """The placements of a run by what `summary.json` keeps of each launch, or one of them.

    Steps are not in it, so ratios are of launches.

    Raises:
        UsageError: it has no such placement, or nothing of single launches.
    """
    summary = read_summary(path)
    if summary.kind != "run" or not summary.placements:
        raise UsageError(f"{path}: is the report of a comparison, not a run: compare what it was made of")
    names = [known.name for known in summary.placements]
    if placement is not None and placement not in names:
        raise UsageError(f"{path} has no placement {placement!r}: it has {', '.join(names)}")
    return tuple(_side(path, summary, name) for name in names if placement in (None, name))


def _side(path: Path, summary: Summary, name: str) -> Side:
    done = [one for one in summary.launches if one.placement == name and one.status is Status.DONE]
    values = {one.round: {key: value for key, value in one.values.items() if value is not None} for one in done}
    if not any(values.values()):
        raise UsageError(
            f"{path}: shared without its raw files, and its summary.json has no numbers of single launches of {name}:"
            " compare needs them"
        )
    known = next(one for one in summary.placements if one.name == name)
    sources = tuple(
        LaunchSource(f"{path}: round {one.round}", "summary", one.steps, one.steps - (one.warmup_steps or 0))
        for one in done
    )
    facts = facts_of_record(summary.workload, summary.host, summary.versions, summary.git)
    facts |= {"framework": "placebench", "devices": str(sum(map(len, known.pools.values())))}
    return Side(
        name=name,
        launch_values=pd.DataFrame.from_dict(values, orient="index").astype(float),
        steps=pd.DataFrame(),
        home=path.resolve(),
        background=Background(sources, facts=facts, flags=(f"{name}: {SHARED}",)),
    )
