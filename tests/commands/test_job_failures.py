"""Jobs of the user's that do not come to their end: what the user is told, and that nothing is left of them."""

import os
import sys
from pathlib import Path

import pytest
from disks import small_disk
from fake_jobs import PLAIN, write
from invoking import invoke

BASE = ("--devices", "cpu:2", "--sample-hz", "0")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_temp: None) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "plain.py", PLAIN)


def write_job(condition: str, fails: str, *keys: str) -> None:
    """A job's file whose command trains where `test` finds a condition true, and fails elsewhere."""
    write(Path(), "fails.py", fails)
    trains, otherwise = (f"{sys.executable} {words}" for words in ("plain.py 0.01 {args}", "fails.py"))
    command = f"command: sh -c 'if test {condition}; then {trains}; else {otherwise}; fi'"
    write(Path(), "job.yaml", "\n".join(["job: command", command, "steps: 3", "warmup_steps: 1", *keys]))


def test_a_job_that_trains_on_ends_with_the_time_limit() -> None:
    asked = ("--devices", "cpu:1", "--sample-hz", "0", "--rounds", "1", "--time-limit", "2", "--steps", "900")
    result = invoke("run", *asked, "--job", "command", "--", sys.executable, "plain.py", "1")
    assert result.exit_code == 124
    assert "0 of 1 launches are done; go on with placebench run --resume" in result.stderr
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _runs_here(pid)]


def test_a_job_that_fails_ends_in_one_line() -> None:
    write(Path(), "plain.py", "raise RuntimeError('no data')")
    result = invoke("run", *BASE, "--rounds", "1", "--job", "command", "--", sys.executable, "plain.py")
    assert result.exit_code == 3
    last = result.stderr.splitlines()[-1]
    assert last.startswith(
        "placebench: 1 of 1 launches failed, the first with: failed, RuntimeError: no data (see runs/"
    )


def test_a_job_out_of_memory_ends_its_launches_and_goes_on_when_resumed() -> None:
    fails = "raise type('OutOfMemoryError', (RuntimeError,), {})('CUDA out of memory. Tried to allocate 20 GiB')"
    write_job("-e room", fails, "placements: {plain: {}, other: {}}")
    result = invoke("run", *BASE, "--rounds", "2", "--job", "job.yaml")
    assert result.exit_code == 3, result.output
    assert "4 of 4 launches failed, the first with: oom, OutOfMemoryError: CUDA out of memory" in result.stderr
    (run,) = Path("runs").iterdir()
    trials = [*(run / "trials").iterdir()]
    assert [(trial / "status").read_text().strip() for trial in trials] == ["oom"] * 4
    for trial in trials:
        advice = (trial / "error.txt").read_text().splitlines()[1]
        assert advice.startswith("what to do: let the job's command use smaller micro-batches")
        assert "figures below" not in advice  # without samples there are none
    Path("room").touch()
    Path("other.yaml").write_text(Path("job.yaml").read_text().replace("plain: {}", "plain: {args: x}"))
    changed = invoke("run", "--resume", str(run), "--job", "other.yaml")
    assert changed.exit_code == 2, changed.output
    assert "--resume: placements.plain is {'args': ['x']} now and {} in the run; leave it out" in changed.stderr
    resumed = invoke("run", "--resume", str(run), "--job", "job.yaml")
    assert (resumed.exit_code, "4 of 4 launches done" in resumed.stdout) == (0, True), resumed.output


def test_what_comes_after_a_launch_does_not_undo_it() -> None:
    after = "after: sh -c 'echo no checkpoint; exit 1'"
    write_job("{placement} = good", "raise ValueError('no data')", "placements: {good: {}, bad: {}}", after)
    result = invoke("run", *BASE, "--rounds", "1", "--job", "job.yaml")
    assert result.exit_code == 3, result.output
    why = "after ended with exit code 1: no checkpoint"
    assert f"the launch counts, though its after command failed: {why} (see runs/" in result.output
    assert f"1 of 2 launches failed, the first with: failed, ValueError: no data; {why} (see runs/" in result.stderr
    assert {path.parent.name: path.read_text().strip() for path in Path("runs").glob("*/trials/*/status")} == {
        "01-good": "done",
        "01-bad": "failed",
    }


def test_a_job_that_says_nothing_is_given_up() -> None:
    write(Path(), "plain.py", "import time; time.sleep(300)")
    result = invoke(
        "run", *BASE, "--rounds", "1", "--step-timeout", "0.5", "--job", "command", "--", sys.executable, "plain.py"
    )
    assert result.exit_code == 3
    assert "timeout, no progress for" in result.stderr
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _runs_here(pid)]


def test_a_launch_whose_steps_nothing_times_is_no_success() -> None:
    write(Path(), "plain.py", "for step in (1, 2, 3):\n    print(f'step:{step} - timing_s/step:0')")
    asked = ("--rounds", "1", "--steps", "3", "--warmup-steps", "1")
    result = invoke("run", *BASE, *asked, "--job", "command", "--", sys.executable, "plain.py")
    assert result.exit_code == 3
    last = result.stderr.splitlines()[-1]
    assert last.startswith("placebench: 1 of 1 launches failed, the first with: failed, all 3 steps were seen at once,")
    assert "have the command print each line as its step ends" in last


def test_a_launch_of_which_nothing_can_be_made_is_no_success() -> None:
    text = "import sys\nfor step in (1, 2, 3):\n    print(f'step:{step} - timing_s/step:0.1', flush=True)\n"
    write(Path(), "spoils.py", f"{text}open(sys.argv[1] + '/spans.jsonl', 'a').write('no span\\n')\n")
    asked = ("--rounds", "1", "--steps", "3", "--warmup-steps", "1")
    result = invoke("run", *BASE, *asked, "--job", "command", "--", sys.executable, "spoils.py", "{folder}")
    assert result.exit_code == 3
    last = result.stderr.splitlines()[-1]
    assert last.startswith("placebench: 1 of 1 launches cannot be reported on, the first: runs/")
    assert "spans.jsonl, line 1: " in last


def test_daemons_and_what_ignores_sigterm_end_with_the_launch() -> None:
    daemons = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
step = 0
while True:
    step += 1
    print(f"step:{step} - timing_s/step:0.01", flush=True)
    time.sleep(0.01)
"""
    write(Path(), "plain.py", daemons)
    asked = ("--rounds", "1", "--steps", "3", "--warmup-steps", "1")
    result = invoke("run", *BASE, *asked, "--job", "command", "--", sys.executable, "plain.py")
    assert (result.exit_code, "1 of 1 launches done" in result.stdout) == (0, True), result.output
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _runs_here(pid)]


def test_what_a_job_leaves_behind_and_has_ended_is_not_kept_as_zombies_while_it_runs() -> None:
    program = """
import os, subprocess, sys, time
from pathlib import Path
subprocess.run(["sh", "-c", "for i in $(seq 20); do (true &); done"])
def zombies():
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state == "Z" and int(parent) == os.getppid():
            yield path
deadline = time.monotonic() + 60
while any(zombies()) and time.monotonic() < deadline:
    time.sleep(0.05)
if any(zombies()):
    sys.exit(f"{len([*zombies()])} zombies")
for step in (1, 2, 3):
    print(f"step:{step} - timing_s/step:0.01", flush=True)
"""
    write(Path(), "plain.py", program)
    asked = ("--rounds", "1", "--steps", "3", "--warmup-steps", "1")
    result = invoke("run", *BASE, *asked, "--job", "command", "--", sys.executable, "plain.py")
    assert (result.exit_code, "1 of 1 launches done" in result.stdout) == (0, True), result.output


def test_a_job_that_prints_a_lot_is_read_to_its_end_and_its_log_kept() -> None:
    # Far more than is looked at for steps at a time.
    lines = "sys.stdout.write(('x' * 1023 + '\\n') * 20_000)"
    program = f"""
import sys
for step in (1, 2, 3):
    {lines}
    print(f"step:{{step}} - timing_s/step:0.01", flush=True)
"""
    write(Path(), "plain.py", program)
    asked = ("--rounds", "1", "--steps", "3", "--warmup-steps", "1")
    result = invoke("run", *BASE, *asked, "--job", "command", "--", sys.executable, "plain.py")
    assert (result.exit_code, "1 of 1 launches done" in result.stdout) == (0, True), result.output
    (log,) = Path("runs").glob("*/trials/*/train.log")
    assert log.stat().st_size > 3 * 20_000 * 1024


def test_a_job_that_fills_the_disk_ends_in_one_line(tmp_path: Path) -> None:
    fills = """
import sys
with open(sys.argv[1] + "/data", "wb") as file:
    while True:
        file.write(bytes(1 << 20))
"""
    write(Path(), "plain.py", fills)
    with small_disk(tmp_path / "full", "210m") as disk:  # 200 MiB must be free to begin with
        asked = ("--rounds", "1", "--out", str(disk), "--job", "command")
        result = invoke("run", *BASE, *asked, "--", sys.executable, "plain.py", "{folder}")
        (run,) = disk.iterdir()
    assert result.exit_code == 3
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"placebench: no space left for {run}")
    assert last.endswith(f"free some, then go on with placebench run --resume {run}")
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _runs_here(pid)]


def _runs_here(pid: str) -> bool:
    try:
        return int(pid) != os.getpid() and os.readlink(f"/proc/{pid}/cwd") == os.getcwd()
    except OSError:
        return False
