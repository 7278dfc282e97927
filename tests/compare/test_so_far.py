"""What a run says of its launches while it goes on."""

import json
from pathlib import Path

from layouts import SPLIT, STANDARD
from synthetic_run import SyntheticRun

from placebench.compare.measure.precision import compared_so_far
from placebench.record.folder import Status

# A step takes 1.30 s in one and 1.83 s in the other: 1.408 times as long.
PACES = {(1, "split"): 1.0, (2, "split"): 1.1, (3, "split"): 1.05}


def run(path: Path, done: int, **changes: object) -> Path:
    """A run of which so many launches are done, in the order of the rounds."""
    order = [(1, "split"), (1, "standard"), (2, "standard"), (2, "split"), (3, "split"), (3, "standard")]
    statuses = dict.fromkeys(order[done:], Status.PLANNED)
    return SyntheticRun(statuses=statuses, pace=lambda *launch: PACES.get(launch, 1.0)).write(path)


def test_a_launch_that_is_done_tells_its_step_and_the_ratio_so_far(tmp_path: Path) -> None:
    said = [
        compared_so_far(run(tmp_path / str(done), done), name)
        for done, name in enumerate(("split", "standard", "standard", "split", "split", "standard"), start=1)
    ]
    # Logarithms 0.342, 0.437 and 0.391; Student's t is 12.71 at 1 degree of freedom, 4.303 at 2.
    assert said == [
        "step 1.83 s",
        "step 1.30 s; so far split against standard 1.41",
        "step 1.30 s; so far split against standard 1.41",
        "step 2.01 s; so far split against standard 1.48 (0.81–2.71)",
        "step 1.92 s; so far split against standard 1.48 (0.81–2.71)",
        "step 1.30 s; so far split against standard 1.48 (1.31–1.66)",
    ]


def test_each_other_placement_is_compared_when_the_first_is_done(tmp_path: Path) -> None:
    layouts = {"standard": STANDARD, "split": SPLIT, "ddp:2": STANDARD}
    path = SyntheticRun(layouts=layouts, rounds=1, pace=lambda *_: 1.0).write(tmp_path / "run")
    first = compared_so_far(path, "standard")
    assert first == "step 1.30 s; so far split against standard 1.41, ddp:2 against standard 1.00"
    assert compared_so_far(path, "ddp:2") == "step 1.30 s; so far ddp:2 against standard 1.00"


def test_a_launch_without_times_says_nothing(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    (path / "trials/01-split/steps.jsonl").write_text(json.dumps({"step": 1, "metrics": {"loss": 1.0}}) + "\n")
    (path / "trials/01-standard/steps.jsonl").unlink()
    assert compared_so_far(path, "split") is compared_so_far(path, "standard") is None
