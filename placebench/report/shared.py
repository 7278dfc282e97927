"""A run that was shared without its raw files: what its `summary.json` still says, as a report and as sides."""

from pathlib import Path

import pandas as pd
from pydantic import ValidationError

from placebench.compare.measure.background import facts_of_record
from placebench.compare.side import Background, LaunchSource, Side
from placebench.errors import UsageError
from placebench.record.folder import RunFolder, Status
from placebench.report.schema import Summary
from placebench.spec.reading import read_text

SHARED = "The run was shared without its raw files: these are the numbers of its summary.json."


def read_summary(path: Path, min_effect: float | None = None) -> Summary:
    """The summary of a run or a comparison that has no raw files.

    Args:
        path: its folder.
        min_effect: what the user wants to be the smallest effect of interest; None for what it was.

    Raises:
        UsageError: the file cannot be read, or is none, or verdicts are wanted that it has not.
    """
    folder = RunFolder(path)
    if min_effect is not None:
        raise UsageError(
            f"--min-effect {min_effect:g}: {path} was shared without its raw files, and verdicts are made of them:"
            " leave it out"
        )
    try:
        return Summary.model_validate_json(read_text(folder.summary_file))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{folder.summary_file}: not as placebench writes it: {where}: {first['msg']}") from None


def shared_sides(path: Path, placement: str | None) -> tuple[Side, ...]:
    """The placements of a run by what `summary.json` keeps of each launch, or one of them.

    Steps are not in it, so ratios are of launches.

    Raises:
        UsageError: it has no such placement, or nothing of single launches.
    """
    summary = read_summary(path)
    if summary.kind != "run" or not summary.placements:
        raise UsageError(f"{path}: is no run but the report of a comparison: compare what it was made of")
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
