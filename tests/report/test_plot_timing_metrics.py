"""The real script, as a user calls it."""

import csv
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import log_samples
import pytest
from launching import wait_for

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "plot" / "plot_timing_metrics.py"
LOG = "".join(
    f"\x1b[36m(TaskRunner pid=7)\x1b[0m step:{step} - timing_s/gen:{step}.5 - timing_s/generate_sequences:0.5"
    f" - timing_s/adv:1.0 - timing_s/step:{step + 2}.0 - critic/kl:np.float64(0.1)\n"
    for step in range(1, 5)
)


def plot(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(SCRIPT), *arguments]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "demo.log").write_text(LOG)
    (tmp_path / "demo_split.log").write_text(LOG.replace("step:4 - ", "step:3 - "))
    return tmp_path


def test_figures_and_table_of_two_logs(folder: Path) -> None:
    done = plot(
        folder,
        "demo.log",
        "demo_split.log",
        *("--output-dir", "out/new", "--format", "svg"),
        *("--skip-first", "1", "--smooth", "2"),
    )
    assert (done.returncode, done.stderr) == (
        0,
        "demo_split.log: restart: line 4: the run was restarted at step 3; what was done before from that step on "
        "does not count, and the first steps after it are warm-up again\n",
    )
    written = ["phases_over_steps.svg", "mean_per_phase.svg", "share_of_step.svg", "timing_s.csv"]
    assert done.stdout.splitlines() == [str(Path("out/new") / name) for name in written]
    assert {path.name for path in (folder / "out" / "new").iterdir()} == set(written)
    with (folder / "out/new/timing_s.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row for row in rows if row["phase"] in ("gen", "generate_sequences")] == [
        {"launch": launch, "step": step, "phase": "gen", "seconds": seconds, "kind": "phase", "moving_average": average}
        for launch, step, seconds, average in [
            ("demo", "2", "2.5", "2.5"),
            ("demo", "3", "3.5", "3.0"),
            ("demo", "4", "4.5", "4.0"),
            ("demo_split", "2", "2.5", "2.5"),
            ("demo_split", "3", "4.5", "3.5"),
        ]
    ]
    unattributed = [row["seconds"] for row in rows if row["phase"] == "unattributed"]
    assert unattributed == ["0.5"] * 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument 'LOG"),
        (("none.log",), "none.log: there is no such file"),
        ((".",), ".: is a directory: name a log file in it"),
        (("empty.log",), "empty.log: no training steps"),
        (("noise.log",), "found 1 line of text, beginning with 'no training here'"),
        (
            ("validation.log",),
            "no timings in seconds (timing_s/…, timing/…): found 1 step with 1 other metric, such as val-core/acc",
        ),
        (("demo.log", "--skip-first", "-1"), "Invalid value for '--skip-first'"),
        (("demo.log", "--smooth", "9" * 20), "Invalid value for '--smooth'"),
        (("demo.log", "--skip-first", "4"), "--skip-first 4 leaves nothing of demo.log, which has timings of 4 steps"),
        (("demo.log", "--smooth", "0"), "Invalid value for '--smooth'"),
        (("demo.log", "--format", "gif"), "Invalid value for '--format'"),
        (("demo.log", "demo.log"), "demo.log is given twice"),
        (("demo.log", "--output-dir", "demo.log/out"), "--output-dir demo.log/out: cannot write there"),
        (("demo.log", "--log-format", "verl-jsonl"), "demo.log: JSONL of verl's file logger: line 1 is not JSON"),
    ],
)
def test_a_wrong_call_ends_in_one_line(
    folder: Path,
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "empty.log").touch()
    (folder / "noise.log").write_text("no training here\n")
    (folder / "validation.log").write_text("step:0 - val-core/acc:0.5\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    output = capsys.readouterr()
    assert (ended.value.code, output.out) == (2, "")
    assert message in output.err
    assert output.err.startswith("Error: ")
    assert output.err.count("\n") == 1
    assert not (folder / "plots").exists()


def test_growing_logs_are_drawn_again(folder: Path) -> None:
    lines = LOG.splitlines(keepends=True)
    (folder / "grows.log").write_text("step:0 - val-core/acc:0.5\n" + "".join(lines[:2]))
    with following(folder, "grows.log", "demo.log", "--skip-first", "1") as (script, said):
        wait_for(lambda: "7 steps: plots/phases_over_steps.png, " in said.read_text())
        with (folder / "grows.log").open("a") as stream:
            stream.write(lines[2])
        wait_for(lambda: "8 steps: plots/phases_over_steps.png, " in said.read_text())
        script.send_signal(signal.SIGINT)
        assert script.wait(20) == 0
    assert said.read_text().count("\n") == 2
    with (folder / "plots/timing_s.csv").open(newline="") as stream:
        assert [row["step"] for row in csv.DictReader(stream) if row["phase"] == "step"] == ["2", "3", "2", "3", "4"]


@contextmanager
def following(folder: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """The script with --follow, and the file with what it says."""
    command = [sys.executable, "-u", str(SCRIPT), *arguments, "--follow"]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (folder / "said").open("w") as out:
        script = subprocess.Popen(
            command, cwd=folder, env=os.environ | {"PYTHONPATH": paths}, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            yield script, folder / "said"
        finally:
            script.kill()
            script.wait()


def test_following_says_what_it_waits_for_and_what_to_mind(folder: Path) -> None:
    (folder / "grows.log").write_text("starting\n")
    with following(folder, "grows.log", "demo_split.log", "--skip-first", "2") as (script, said):
        wait_for(lambda: "waiting: no step with timings after the first 2 yet in grows.log\n" in said.read_text())
        assert "demo_split.log: restart: line 4: the run was restarted at step 3; " in said.read_text()
        with (folder / "grows.log").open("a") as stream:
            stream.write(LOG)
        wait_for(lambda: "8 steps: plots/phases_over_steps.png, " in said.read_text())
        script.send_signal(signal.SIGINT)
        assert script.wait(20) == 0
    assert said.read_text().count("\n") == 3


def test_following_that_drew_nothing_ends_in_an_error(folder: Path) -> None:
    (folder / "grows.log").write_text("starting\n")
    with following(folder, "grows.log") as (script, said):
        wait_for(lambda: "waiting: " in said.read_text())
        script.send_signal(signal.SIGINT)
        assert script.wait(20) == 2
    assert said.read_text().splitlines()[1:] == ["Error: nothing was drawn: no step with timings yet in grows.log"]


def test_a_folder_stands_for_its_event_files(folder: Path) -> None:
    (folder / "board").mkdir()
    (folder / "board" / "events.out.tfevents.17.host").write_bytes(log_samples.NEMO_EVENTS)
    done = plot(folder, "board", "demo.log")
    assert done.returncode == 0, done.stderr
    with (folder / "plots/timing_s.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["launch"] == "board" and row["phase"] == "step"]
    assert [row["seconds"] for row in rows] == ["11.0", "12.0", "13.0"]


def test_a_log_without_timings_ends_the_real_script(folder: Path) -> None:
    (folder / "noise.log").write_text("no training here\n")
    done = plot(folder, "noise.log")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("found 1 line of text, beginning with 'no training here'\n")
    assert done.stderr.count("\n") == 1


def test_the_help_has_its_example_as_it_is_typed(folder: Path) -> None:
    lines = plot(folder, "--help").stdout.splitlines()
    assert "\\b" not in "".join(lines)
    example = lines[lines.index("  Example:") + 1].strip()
    assert example.startswith("python plot/plot_timing_metrics.py runs/demo.log runs/demo_split.log --output-dir out")


def test_what_matplotlib_says_of_a_home_that_cannot_be_written_to_is_kept_from_the_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setenv("TMPDIR", str(folder))
    done = plot(folder, "demo.log")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.glob("matplotlib*")) == []
