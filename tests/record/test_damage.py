"""Damaged run folders: what is wrong is told in one line, and what can still be read is read."""

import itertools
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from damage import DAMAGES, map_values
from hypothesis import given, settings
from hypothesis import strategies as st
from invoking import invoke
from synthetic_run import SyntheticRun, read_json

from placebench.compare.read.run_reading import load_run
from placebench.errors import UsageError
from placebench.plan.devices import find_devices
from placebench.plan.request import RunRequest
from placebench.record.folder import RunFolder, Status
from placebench.record.run_file import RunFile, read_run_file
from placebench.report import plots
from placebench.spec.devices import device_to_dict

TRIAL = "trials/02-split"
READ = ("status", "steps.jsonl", "spans.jsonl", "devices.jsonl", "kernels.jsonl", "pauses.jsonl", "ray.jsonl")
LEFT_ALONE = ("launch.json", "progress.json", "end.json", "log.json", "train.log", "error.txt", "processes.jsonl")
KERNEL = {"phase": "gen", "device": "cpu:0", "span_s": 1.0, "kernel_s": 0.5, "collective_s": 0.1, "copy_s": 0.1}
# Of a folder in whose place there is something else, and of a file that is only written.
OF_FOLDERS = ("folder", "missing", "empty", "fifo", "loop")
OTHER_FILES = {
    "kernels.jsonl": json.dumps(KERNEL | {"step": 5, "no_kernel_s": 0.3}) + "\n",
    "pauses.jsonl": json.dumps({"start_mono": 1.0, "end_mono": 2.0}) + "\n",
    "progress.json": json.dumps({"stage": "step", "step": 4, "steps": 4, "running": ["gen"], "wall": 1.0}),
    "end.json": json.dumps({"schema_version": 1, "kind": "done", "message": None}),
    "log.json": json.dumps({"schema_version": 1, "framework": "verl", "format": "verl"}),
    "train.log": "step:1 - timing_s/gen:1.0\n",
    "error.txt": "failed: traced\n",
    "ray.jsonl": json.dumps({"pid": 1, "device": "cpu:0", "actor": None}) + "\n",
    "processes.jsonl": json.dumps({"pid": 1, "device": "cpu:0", "pool": "a", "rank": 0, "threads": 1}) + "\n",
}


def write_run(path: Path) -> Path:
    """A run of three rounds on the devices of this host, with every file that a launch may have."""
    SyntheticRun(steps=4, warmup_steps=1).write(path)
    for name, text in OTHER_FILES.items():
        (path / TRIAL / name).write_text(text)
    content = read_json(path / "run.json")
    content["devices"] = [device_to_dict(device) for device in find_devices(RunRequest(devices="cpu:2"))[1]]
    (path / "run.json").write_text(json.dumps(content))
    return path


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("sound") / "run")


def damaged(sound: Path, files: str | Iterable[str], damage: str, path: Path) -> Path:
    """A copy of a run in which some files, or folders, are damaged."""
    shutil.copytree(sound, path)
    for file in [files] if isinstance(files, str) else files:
        found, content = path / file, b"{}"
        if found.is_file():
            content = found.read_bytes()
        elif found.is_dir():
            shutil.rmtree(found)
        found.write_bytes(content)
        DAMAGES[damage](found, content)
    return path


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_launch_is_set_aside_alone(sound: Path, tmp_path: Path, damage: str) -> None:
    for file in READ:
        path = damaged(sound, f"{TRIAL}/{file}", damage, tmp_path / file)
        launches = load_run(path).launches
        counts = Counter(launch.status for launch in launches)
        assert counts[Status.DONE] >= 5, (file, counts)
        for launch in launches:
            if launch.status is Status.DAMAGED:
                assert str(launch.error).startswith(str(path / TRIAL)), launch.error
                assert "\n" not in str(launch.error)
        shutil.rmtree(path)
    path = damaged(sound, "run.json", damage, tmp_path / "run.json")
    with suppress(UsageError):
        read_run_file(RunFolder(path))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_launch_of_a_job_whose_record_of_its_log_is_damaged_is_set_aside(
    sound: Path, tmp_path: Path, damage: str
) -> None:
    run = shutil.copytree(sound, tmp_path / "sound")
    (run / "run.json").write_text(json.dumps(read_json(run / "run.json") | {"job": {"framework": "verl", "spec": {}}}))
    for trial in run.glob("trials/*"):
        (trial / "log.json").write_text(OTHER_FILES["log.json"])
    assert Counter(launch.status for launch in load_run(run).launches) == {Status.DONE: 6}
    path = damaged(run, f"{TRIAL}/log.json", damage, tmp_path / "run")
    launch = next(one for one in load_run(path).launches if one.trial.path == path / TRIAL)
    if launch.status is Status.DAMAGED:
        assert str(launch.error).startswith(f"{path / TRIAL / 'log.json'}: ")
    else:  # a word in it is another one
        assert launch.log
        assert damage in {"texts", "negative", "zero", "huge", "huge whole", "NaN", "infinite"}


@pytest.mark.parametrize(
    ("file", "damage", "what"),
    [
        ("steps.jsonl", "nulls", "line 1: step: Input should be a valid integer"),
        ("steps.jsonl", "twice", "it does not have every step once, in order"),
        ("steps.jsonl", "half", "steps.jsonl and spans.jsonl do not have the same steps, each once"),
        ("spans.jsonl", "folder", "Is a directory"),
        ("spans.jsonl", "missing", "No such file or directory"),
        ("spans.jsonl", "NaN", "line 1: step: Input should be a valid integer"),
        ("spans.jsonl", "fifo", "it is a pipe or a device; name a regular file"),
        ("spans.jsonl", "half", "steps.jsonl and spans.jsonl do not have the same steps, each once"),
        ("devices.jsonl", "huge", "line 1: header.hz: Input should be less than or equal to 1000000"),
        ("devices.jsonl", "binary", "line 1: Invalid JSON"),
        ("status", "zeros", "it says none of planned, running, done"),
    ],
)
def test_what_is_damaged_is_told(sound: Path, tmp_path: Path, file: str, damage: str, what: str) -> None:
    path = damaged(sound, f"{TRIAL}/{file}", damage, tmp_path / "run")
    launch = next(one for one in load_run(path).launches if one.trial.path == path / TRIAL)
    assert launch.status is Status.DAMAGED
    assert what in str(launch.error)


ABSURD: dict[str, tuple[dict[str, Any], str]] = {
    "rounds": ({"rounds": 10**9}, "rounds: Input should be less than or equal to 10000, not 1000000000"),
    "no steps": ({"steps": 0}, "steps: Input should be greater than or equal to 1, not 0"),
    "negative steps": ({"steps": -3}, "steps: Input should be greater than or equal to 1, not -3"),
    "only warm-up": ({"warmup_steps": 6}, "6 warm-up steps leave none of 6 steps"),
    "before 1970": ({"started": "1969-12-31T23:59:59Z"}, "'1969-12-31T23:59:59Z' is before 1970"),
    "after 9999": ({"ended": "10000-01-01T00:00:00Z"}, "'10000-01-01T00:00:00Z' is not a time in ISO 8601"),
    "no placements": ({"placements": []}, "placements: Tuple should have at least 1 item"),
    "strange order": ({"order": [["tandem"]]}, "order and launches name 'tandem', which is none of the placements"),
    "no devices": ({"devices": []}, "device 'cpu:0' of a placement is none of the run's"),
    "host": ({"host": {"gpus": 3}}, "gpus: Input should be a valid tuple"),
    "workload": (
        {"workload": {"batch": {"size": -1}}},
        "workload.batch.size: must be greater than",
    ),
    "effect": ({"min_effect": 1e308}, "min_effect: Input should be less than 1"),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_records_are_refused(name: str) -> None:
    changes, reason = ABSURD[name]
    with pytest.raises(ValueError, match=re.escape(reason)):
        RunFile.parse(SyntheticRun(rounds=1).manifest() | changes)


def a_path(content: Any, draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    """JSON in which one value, wherever it stands, is another one."""
    values = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
        st.sampled_from([10**40, -1, 0, 1e308, "\x1b[2J", ["x"], {"x": 1}]),
    )  # fmt: skip
    if not isinstance(content, dict | list) or not content or draw(st.integers(0, 4)) == 0:
        return draw(values)
    key = draw(st.sampled_from(sorted(content) if isinstance(content, dict) else range(len(content))))
    changed = content.copy()
    changed[key] = a_path(content[key], draw)
    return changed


MANIFEST = SyntheticRun(rounds=1).manifest()


@given(st.data())
def test_one_wrong_value_is_read_or_refused(data: st.DataObject) -> None:
    content = a_path(MANIFEST, data.draw)
    try:
        record = RunFile.parse(content)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return
    assert len(record.run_placements) == len(record.placements)


COMMANDS: dict[str, tuple[str, ...]] = {
    "show": ("show", "{run}"),
    "compare": ("compare", "{run}"),
    "check": ("check", "{run}", "--baseline", "{baseline}"),
    "resume": ("run", "--resume", "{run}", "--dry-run"),
    "report": ("report", "{run}"),
}


def command(name: str, run: Path, baseline: Path) -> Result:
    """What a command makes of a run."""
    return invoke(*(word.format(run=run, baseline=baseline) for word in COMMANDS[name]))


@pytest.fixture(scope="module")
def whole(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with its report, and the baseline of another one on the same devices."""
    folder = tmp_path_factory.mktemp("whole")
    run = shutil.copytree(sound, folder / "run")
    before = shutil.copytree(sound, folder / "before")
    content = read_json(before / "run.json") | {"started": "2026-02-01T10:00:00Z"}
    (before / "run.json").write_text(json.dumps(content))
    assert invoke("baseline", "save", before, folder / "baseline.json").exit_code == 0
    assert invoke("report", run).exit_code == 0
    return run, folder / "baseline.json"


def try_commands(path: Path, baseline: Path, what: str, names: Iterable[str] = COMMANDS, *, is_read: bool) -> None:
    """See that no command fails on a damaged run, and that the run is read where the others of it can be."""
    for name in names:
        done = command(name, path, baseline)
        assert done.exit_code in (0, 1, 2, 3, 4), (what, name, done.output)
        if is_read and name != "check":
            assert done.exit_code == 0, (what, name, done.output)
        elif done.exit_code == 2:
            assert done.stderr.count("\n") == 1, (what, name, done.stderr)
    shutil.rmtree(path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("own_temp", "off_github")
@pytest.mark.parametrize(
    ("files", "damages"),
    [
        (("run.json",), DAMAGES),
        (tuple(f"{TRIAL}/{name}" for name in LEFT_ALONE), DAMAGES),
        (("summary.json",), OF_FOLDERS),  # what is in it is read only where there is no run.json
        (("report.md",), OF_FOLDERS),
        (("trials",), OF_FOLDERS),
        ((TRIAL,), OF_FOLDERS),
    ],
    ids=["run.json", "files that are left alone", "summary.json", "report.md", "trials", "a launch"],
)
def test_no_damage_is_an_error_of_the_program(
    whole: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: tuple[str, ...],
    damages: Iterable[str],
) -> None:
    run, baseline = whole
    if files != ("run.json",):  # what is drawn of the others is what is drawn of a sound run with a launch less
        monkeypatch.setattr(plots, "draw_plots", lambda *_: ())
    for damage in damages:
        path = damaged(run, files, damage, tmp_path / "run")
        try_commands(path, baseline, damage, is_read=files[0].startswith(TRIAL))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("own_temp", "off_github")
def test_no_damage_of_what_is_read_of_a_launch_is_an_error_of_the_program(
    whole: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "draw_plots", lambda *_: ())
    seen: list[object] = []
    for file, damage in itertools.product(READ, DAMAGES):
        path = damaged(whole[0], f"{TRIAL}/{file}", damage, tmp_path / "run")
        # All commands but the one that starts launches see no more of these files than this.
        found = [(launch.status, launch.lines) for launch in load_run(path).launches]
        names = ["resume"] if found in seen else COMMANDS
        seen.append(found)
        try_commands(path, whole[1], f"{file} {damage}", names, is_read=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("own_temp", "off_github")
def test_no_damage_of_a_run_without_its_raw_files_is_an_error_of_the_program(
    whole: tuple[Path, Path], tmp_path: Path
) -> None:
    run, baseline = whole
    shared = shutil.copytree(run, tmp_path / "shared", ignore=lambda *_: ["run.json", "trials"])
    for damage in DAMAGES:
        try_commands(damaged(shared, "summary.json", damage, tmp_path / "run"), baseline, damage, is_read=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("own_temp", "off_github")
def test_no_wrong_value_of_a_run_is_an_error_of_the_program(
    whole: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "draw_plots", lambda *_: ())
    path = shutil.copytree(whole[0], tmp_path / "run")
    content = read_json(path / "run.json")

    @given(st.data())
    @settings(max_examples=60)
    def try_one(data: st.DataObject) -> None:
        (path / "run.json").write_text(json.dumps(a_path(content, data.draw)))
        name = data.draw(st.sampled_from(sorted(COMMANDS)))
        done = command(name, path, whole[1])
        assert done.exit_code in (0, 1, 2, 3, 4), (name, done.output)

    try_one()


def test_damage_keeps_what_says_what_a_line_is() -> None:
    assert map_values({"kind": "sample", "mono": 1, "a": [2]}, str) == {"kind": "sample", "mono": "1", "a": ["2"]}
