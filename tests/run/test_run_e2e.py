"""The real command with the real job, small; what it leaves is looked up in the process table."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from launching import assert_nothing_left, processes_of, running, wait_for

from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.writing import read_jsonl
from placebench.report.schema import Summary

RUN = (sys.executable, "-m", "placebench", "run", "--devices", "cpu:2", "--rounds", "1", "--warmup-steps", "1")
SMALL = ("--batch-size", "32", "--mini-batch-size", "16")


def in_step(out: Path, step: int) -> bool:
    """Whether the first launch of the only run is in a step."""
    files = list(out.glob("*/trials/*/progress.json"))
    return bool(files) and json.loads(files[0].read_text())["step"] >= step


def test_one_command_trains_records_compares_and_leaves_nothing(tmp_path: Path, temp: Path) -> None:
    done = subprocess.run(
        [*RUN, *SMALL, "--steps", "2", "--out", str(tmp_path)],
        env={**os.environ, "TMPDIR": str(temp), "CI": "true"},
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    assert "[2/2] round 1 split: done after" in done.stderr
    folder = next(tmp_path.iterdir())
    assert [trial.status for trial in RunFolder(folder).trials()] == [Status.DONE, Status.DONE]
    content = json.loads((folder / "run.json").read_text())
    assert content["status"] == "done"
    assert {launch["placement"] for launch in content["launches"]} == {"standard", "split"}
    for trial in RunFolder(folder).trials():
        assert [row["step"] for row in read_jsonl(trial.steps)] == [1, 2]
        assert {row["device"] for row in read_jsonl(trial.device_samples) if row["kind"] == "sample"} >= {
            "cpu:0",
            "cpu:1",
        }
        assert not trial.error.exists()
    for name in ("report.html", "report.md", "summary.json", "trace.json.gz"):
        assert (folder / name).stat().st_size > 0
    assert str(folder / "report.html") in done.stdout
    for word in ("standard", "split", "update_actor", "tokens/s/device", "whether split or standard is faster"):
        assert word in done.stdout
    check_summary(folder)
    assert_nothing_left(temp)


def check_summary(folder: Path) -> None:
    """The paths of the one measured step, against what its spans say; the memory, against what the plan said."""
    summary = Summary.model_validate_json((folder / "summary.json").read_text())
    standard, split = (
        {part.phase: part for part in placement.critical_path if part.kind == "phase"}
        for placement in summary.placements
    )
    assert summary.suggestion is not None
    assert [one.placement for one in summary.suggestion.forecasts if one.left_out_s] == ["standard", "split"]
    for placement in summary.placements:
        assert sum(part.on_path_s for part in placement.critical_path) == pytest.approx(placement.quantities[0].value)
        for device in placement.devices:
            (peak,) = (found.value for found in device.quantities if found.label == "peak memory")
            assert device.estimated_memory_bytes == pytest.approx(peak, rel=0.25)
    # All in one pool: everything is on the path.
    assert sum(part.off_path_s for part in standard.values()) == pytest.approx(0, abs=1e-6)
    assert min(part.on_path_s for part in standard.values()) > 0
    # In two pools: of the two sides, the one that ended last.
    ends: dict[str, float] = {}
    for span in read_jsonl(RunFolder(folder).trial(1, "split").spans):
        if span["step"] == 2 and span["device"] != "controller":
            ends[span["phase"]] = max(ends.get(span["phase"], 0.0), span["end_mono"])
    by_actor = ends["update_weights"] > ends["update_critic"]
    assert (split["update_actor"].on_path_s > 0) is by_actor
    assert (split["update_critic"].on_path_s > 0) is not by_actor
    hidden = split["update_critic" if by_actor else "update_actor"]
    assert hidden.off_path_s > 0
    before_updates = max(ends[phase] for phase in ("values", "ref", "reward"))
    assert (split["ref"].on_path_s > 0) is (before_updates == ends["ref"])


@pytest.mark.slow
def test_a_run_outlives_whatever_of_it_is_killed_until_ctrl_c_which_leaves_nothing(tmp_path: Path, temp: Path) -> None:
    names = ("standard", "split/overlap=none", "split", "ddp:1")
    words = ("--placements", ",".join(names), "--steps", "5000", "--out", str(tmp_path))
    with running([*RUN, *SMALL, *words], temp) as command:
        wait_for(lambda: in_step(tmp_path, 2), 400)
        folder = next(tmp_path.iterdir())
        first, second, third, last = (RunFolder(folder).trial(1, name) for name in names)

        # A worker: Ray misses it.
        worker = psutil.Process(process_ids(first)["cpu:1"])
        server = worker.parent()
        worker.kill()
        wait_for(lambda: in_step_of(second, 1), 400)
        assert first.status is Status.FAILED
        reason = first.error.read_text().splitlines()[0]
        assert reason.startswith("failed: ActorDiedError: ")
        assert reason.endswith("(worker of cpu:1)")
        assert processes_of(first.path) == []

        # The job, all of which ends with it, but what the other launches of the round fork from.
        processes = process_ids(second)
        workers = [psutil.Process(pid) for device, pid in processes.items() if device != "controller"]
        assert server
        assert "fork_server" in server.cmdline()[2]
        assert [one.parent() for one in workers] == [server, server]
        os.kill(processes["controller"], signal.SIGKILL)
        wait_for(lambda: in_step_of(third, 1), 400)
        assert second.status is Status.FAILED
        assert second.error.read_text().startswith("failed: the job was killed by SIGKILL\n")
        assert not any(one.is_running() for one in workers)
        assert processes_of(second.path) == []

        # What they fork from, without which the workers that it has forked cannot be: as if these had died.
        server.kill()
        wait_for(lambda: in_step_of(last, 1), 400)
        assert third.status is Status.FAILED
        assert processes_of(third.path) == []

        command.send_signal(signal.SIGINT)
        output, _ = command.communicate(timeout=300)
    assert command.returncode == 130
    assert "the fork server has ended, so workers start as new interpreters" in output
    assert "stopped by SIGINT: 0 of 4 launches are done, 3 failed, the first with: failed, ActorDiedError: " in output
    assert f"; go on with placebench run --resume {folder}" in output
    assert "Traceback" not in output
    assert last.status is Status.INTERRUPTED
    assert list(read_jsonl(first.steps))
    assert_nothing_left(temp)


def in_step_of(trial: Trial, step: int) -> bool:
    """Whether a launch is in a step."""
    return trial.progress.exists() and json.loads(trial.progress.read_text())["step"] >= step


def process_ids(trial: Trial) -> dict[str, int]:
    """A launch's processes by their device."""
    return {row["device"]: row["pid"] for row in read_jsonl(trial.processes)}


@pytest.mark.slow
def test_a_real_launch_goes_on_after_ctrl_z_and_nothing_of_it_outlasts_its_killed_runner(
    tmp_path: Path, temp: Path
) -> None:
    with running([*RUN, *SMALL, "--steps", "5000", "--out", str(tmp_path)], temp) as command:
        wait_for(lambda: in_step(tmp_path, 2), 400)
        (progress,) = tmp_path.glob("*/trials/*/progress.json")
        runner = psutil.Process(command.pid)
        command.send_signal(signal.SIGTSTP)
        wait_for(lambda: runner.status() == psutil.STATUS_STOPPED)
        before = progress.read_text()
        # Longer than Ray takes to miss a process that does not answer: nothing shorter shows that it does not.
        time.sleep(20)
        assert progress.read_text() == before
        command.send_signal(signal.SIGCONT)
        reached = json.loads(before)["step"] + 3
        wait_for(lambda: in_step(tmp_path, reached), 400)
        of_run = pids_of(temp)
        ports = {
            one.laddr for one in psutil.net_connections() if one.pid in of_run and one.status == psutil.CONN_LISTEN
        }
        assert ports
        command.kill()
        wait_for(lambda: not (list(temp.glob("placebench-*")) or processes_of(temp)))
    assert_nothing_left(temp)

    # A connection that has ended stays known to the kernel for a while; of the ports of Ray one is always the same, and
    # another test's may have it by now.
    def listening() -> set[int | None]:
        left = [one for one in psutil.net_connections() if one.status == psutil.CONN_LISTEN and one.laddr in ports]
        return {one.pid for one in left}

    # A process that is ending has no command any more before its sockets close.
    wait_for(lambda: listening().isdisjoint({*of_run, None}), 30)
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    assert RunFolder(folder).trial(1, "standard").status is Status.INTERRUPTED
    assert len(list(read_jsonl(RunFolder(folder).trial(1, "standard").pauses))) == 1


def pids_of(temp: Path) -> set[int]:
    """Processes of the run that has this temporary folder."""
    return {int(line.partition(" ")[0]) for line in processes_of(temp)}


@pytest.mark.slow
def test_a_run_stopped_after_its_first_launch_goes_on_to_its_end(tmp_path: Path, temp: Path) -> None:
    with running([*RUN, *SMALL, "--steps", "2", "--out", str(tmp_path)], temp) as command:
        wait_for(lambda: list(tmp_path.glob("*/trials/01-split/progress.json")), 400)
        command.send_signal(signal.SIGINT)
        output, _ = command.communicate(timeout=300)
    folder = next(tmp_path.iterdir())
    assert f"stopped by SIGINT: 1 of 2 launches are done; go on with placebench run --resume {folder}" in output
    kept = RunFolder(folder).trial(1, "standard")
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept.path.iterdir()}
    done = subprocess.run(
        [sys.executable, "-m", "placebench", "run", "--resume", str(folder)],
        # What somebody may have set for programs of his own; Ray bears neither.
        env={**os.environ, "TMPDIR": str(temp), "CI": "true", "PYTHONWARNINGS": "error", "PYTHONOPTIMIZE": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept.path.iterdir()} == before
    assert [trial.status for trial in RunFolder(folder).trials()] == [Status.DONE, Status.DONE]
    assert [row["step"] for row in read_jsonl(RunFolder(folder).trial(1, "split").steps)] == [1, 2]
    assert (folder / "trials/replaced/01-split.1/status").read_text() == "interrupted\n"
    content = json.loads((folder / "run.json").read_text())
    assert content["status"] == "done"
    assert {launch["placement"] for launch in content["launches"]} == {"standard", "split"}
    assert (folder / "summary.json").stat().st_size > 0
    assert_nothing_left(temp)


@pytest.mark.slow
def test_a_real_launch_out_of_memory_ends_as_oom_with_its_figures(tmp_path: Path, temp: Path) -> None:
    # The plan tries it, too, without Ray.
    (tmp_path / "greedy.py").write_text(
        "import sys, torch\n\n"
        "def score(*case):\n    return torch.empty(1 << 50).sum() if 'ray' in sys.modules else 0.0\n"
    )
    done = subprocess.run(
        [
            *RUN,
            *SMALL,
            "--steps",
            "2",
            "--placements",
            "standard",
            "--out",
            "runs",
            "--set",
            "data.reward=greedy:score",
        ],
        env={
            **os.environ,
            "TMPDIR": str(temp),
            "CI": "true",
            "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )
    assert done.returncode == 3, done.stderr
    trial = RunFolder(next((tmp_path / "runs").iterdir())).trial(1, "standard")
    assert trial.status is Status.OOM
    lines = trial.error.read_text().splitlines()
    assert lines[0].startswith("oom: ")
    assert "can't allocate memory" in lines[0]
    for device in ("cpu:0", "cpu:1"):
        assert any(line.startswith(f"{device}: in use ") and "; estimated " in line for line in lines)
    held = [line for line in lines if re.match("held by cpu:[01] in reward: actor: weights [1-9]", line)]
    assert held
    assert "; critic: weights " in held[0]
    assert any(line.startswith("would lower the estimate: --set batch.micro_batch_tokens=") for line in lines)
    assert_nothing_left(temp)
