"""`placebench run --job`: a command of the user's as the launches of a run."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from fake_jobs import PLAIN, TRL, VERL, write
from invoking import invoke, run_folder

from placebench.commands import start
from placebench.compare.comparison import compare_run
from placebench.compare.explain.caveats import caveats
from placebench.compare.explain.headlines import headline
from placebench.compare.explain.reasons import reasons
from placebench.compare.measure.placements import RunSide, measure_run
from placebench.compare.read.run_reading import load_run
from placebench.compare.statistics.allocation import LEAST_STEPS
from placebench.jobs.registry import ADAPTERS

BASE = ("--devices", "cpu:2", "--sample-hz", "0")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_temp: None) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "verl.py", VERL)
    write(tmp_path, "trl.py", TRL)
    write(tmp_path, "plain.py", PLAIN)


def job_file(text: str) -> str:
    return str(write(Path(), "mine.yaml", text))


def test_a_dry_run_prints_what_each_placement_would_start_to_copy() -> None:
    result = invoke(
        "run", *BASE, "--job", "verl", "--placements", "standard,split:1+1", "--steps", "3", "--dry-run", "--name", "x",
        "--", sys.executable, "verl.py", "data.path=a b"
    )  # fmt: skip
    assert result.exit_code == 0
    assert not Path("runs").exists()
    first, second = (line for line in result.stdout.splitlines() if line.startswith("cd "))
    assert "'data.path=a b' ++trainer.n_gpus_per_node=2" in first
    assert " && taskset -c " in first  # the cores of the CPU devices
    assert "PLACEBENCH_PLACEMENT" not in first
    assert "PLACEBENCH_PLACEMENT='{" in second
    folder = Path(next(word.split("=")[1] for word in shlex.split(first) if word.startswith("VERL_FILE_LOGGER_PATH=")))
    folder.parent.mkdir(parents=True)
    done = subprocess.run(["sh", "-c", first], capture_output=True, text=True, check=True)
    assert done.stdout.count(" step:") == 3


def test_a_dry_run_on_described_nodes_prints_what_each_of_them_would_start() -> None:
    result = invoke(
        "run", "--devices", "gpu:2x2", "--job", "verl", "--placements", "standard", "--dry-run", "--", sys.executable,
        "verl.py",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    _, other = (line for line in result.stdout.splitlines() if line.startswith("cd "))
    assert " ray start --block --address node0:" in other
    assert other.endswith(" --node-ip-address node1 --node-name node1  # on node node1")


def test_what_a_dry_run_prints_is_quoted_and_has_every_variable_whatever_its_name() -> None:
    write(Path(), "shown.py", "import os\nprint(os.environ['A B;C'])\n")
    variables = "{'A B;C': \"it's; $HOME\"}"
    before = "before: [sh, -c, echo it]\n"
    job_file(f"command: {sys.executable} shown.py\nenv: {variables}\nplacements: [a]\n{before}")
    result = invoke("run", *BASE, "--job", "mine.yaml", "--dry-run")
    assert re.search("^before +sh -c 'echo it'$", result.stdout, re.MULTILINE)
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("cd "))
    assert subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout == "it's; $HOME\n"


def test_placements_of_a_job_differ_by_their_arguments_on_the_same_devices() -> None:
    write(Path(), "x.py", "")
    job_file(f"command: {sys.executable} x.py\nplacements: {{plain: {{}}, compiled: {{args: --compile}}}}\n")
    result = invoke("run", *BASE, "--job", "mine.yaml", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "the same on these devices" not in result.output


def test_the_settings_of_words_are_printed_to_copy() -> None:
    result = invoke("placements", "--job", "verl", "split:3+1", "ddp:2")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "split:3+1"
    assert "  ++trainer.n_gpus_per_node=3 ++trainer.nnodes=1" in result.stdout
    assert "  export VERL_USE_EXTERNAL_MODULES=placebench_verl" in result.stdout
    assert "has no replicas of whole ones; nearest: standard" in result.stdout
    trl = invoke("placements", "--job", "trl", "learners:6+engines:2")
    assert "trl vllm-serve --model MODEL --tensor-parallel-size 1 --data-parallel-size 2" in trl.stdout
    assert "unknown framework 'x'" in invoke("placements", "--job", "x").stderr
    unknown = invoke("placements", "--job", "verl", "splitt:3+1,standard")
    assert (unknown.exit_code, "++trainer.nnodes=1" in unknown.stdout) == (2, True)
    assert "did you mean 'split'?" in unknown.stderr


def test_what_stands_behind_two_dashes_is_a_command_for_placements_too() -> None:
    with_command = invoke("placements", "--job", "verl", "split:3+1", "--", "bash", "run.sh", "--steps", "3")
    assert with_command.exit_code == 0, with_command.output
    assert with_command.stdout == invoke("placements", "--job", "verl", "split:3+1").stdout
    without_job = invoke("placements", "standard", "--", "bash", "run.sh")
    assert (without_job.exit_code, without_job.stdout) == (2, "")
    assert (
        without_job.stderr == "placebench: 'bash run.sh': a command needs --job with its framework, or --job command\n"
    )
    no_command = invoke("placements", "--job", "verl", "--", "standard,split:3+1", "ddp:2")
    assert (no_command.exit_code, no_command.stdout) == (2, "")
    told = "'standard,split:3+1 ddp:2' comes after --, where your command goes: write it before --"
    assert no_command.stderr == f"placebench: {told}\n"


@pytest.mark.parametrize("framework", ADAPTERS)
def test_a_template_is_a_job_file(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path.cwd()))
    example = ADAPTERS[framework].example
    for name in ("accelerate", "bash", "python", "rl", *(word for word in example if word.endswith((".py", ".sh")))):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch(mode=0o755)
    result = invoke("run", "--job", framework, "--write-config", "a new.yaml")
    said = "a new.yaml: edit it, then placebench run --job 'a new.yaml' --dry-run\n"
    assert (result.exit_code, result.stdout) == (0, said)
    assert f"job: '{framework}'" in Path("a new.yaml").read_text()
    assert invoke("run", "--devices", "gpu:2x1", "--job", "a new.yaml", "--dry-run").exit_code == 0


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without the figures and pages that another test looks at."""
    monkeypatch.setattr(start, "_report", lambda folder, *, verbose: None)


def measured(placement: str) -> RunSide:
    """What a placement of the run in `runs` measured."""
    (side,) = measure_run(load_run(run_folder()), placement)
    return side


def test_a_verl_job_is_run_compared_and_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("--job", "verl", "--placements", "standard,split:1+1", "--steps", "4", "--warmup-steps", "1")
    result = invoke("run", *BASE, "--rounds", "1", *asked, "--", sys.executable, "verl.py")
    assert result.exit_code == 0, result.stderr
    folder = run_folder()
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "done"
    assert record["job"]["framework"] == "verl"
    assert record["workload"] == {}
    summary = json.loads((folder / "summary.json").read_text())
    shown = {quantity["key"]: quantity for quantity in summary["placements"][1]["quantities"]}
    assert shown["step_time"]["value"] == pytest.approx(0.007)
    assert shown["phase/gen"]["value"] == pytest.approx(0.004)
    assert shown["unattributed"]["value"] == pytest.approx(0.001)
    assert shown["tokens_per_s"]["value"] == pytest.approx(1000 / 0.007)
    # What nobody has measured is not there.
    assert shown.keys().isdisjoint({"idle", "hidden", "mfu/update_actor", "peak_memory"})
    assert summary["suggestion"] is None
    assert any("replay buffer is polled every 0.02 s" in line for line in summary["warnings"])
    assert any("Phase times come from the job's log" in line for line in summary["warnings"])
    assert not (folder / "plots" / "timeline.svg").exists()
    assert summary["job"]["command"] == [sys.executable, "verl.py"]
    page = (folder / "report.md").read_text()
    assert f"| job | verl |\n| job command | {sys.executable} verl.py |" in page
    assert all(launch["startup_s"] > 0 < launch["stop_s"] for launch in summary["launches"])

    monkeypatch.setattr(start, "_report", lambda folder, *, verbose: None)
    again = invoke("run", "--resume", str(folder), "--rounds", "2", "--sample-hz", "0")
    assert again.exit_code == 0, again.stderr
    comparison = compare_run(folder)
    side = comparison.others[0]
    assert headline(comparison, side).startswith("split:1+1 is faster than standard: a step takes 36.4 % less time")
    assert reasons(comparison, side) == ("By the job's log, split:1+1 takes 4.0 ms less for gen.",)
    for wrong, reason in (
        (("--steps", "9"), "--resume: steps is 9 now and 4 in the run"),
        (("--job", "trl"), "--resume: job is trl now and verl in the run"),
        (("--placements", "standard"), "--placements is standard now and standard,split:1+1 in the run"),
        (("--model", "tiny"), "--resume: model: a job of yours has no such key"),
    ):
        assert reason in invoke("run", "--resume", str(folder), *wrong).stderr
    compared = invoke("compare", f"{folder}:standard", f"{folder}:split:1+1")
    assert compared.exit_code == 0, compared.stderr
    assert invoke("baseline", "save", str(folder), "base.json").exit_code == 0
    kept = json.loads(Path("base.json").read_text())
    Path("base.json").write_text(json.dumps(kept | {"run": "earlier", "measured": "2026-01-01T00:00:00Z"}))
    checked = invoke("check", str(folder), "--baseline", "base.json", "--min-launches", "2")
    assert checked.exit_code == 0, checked.stderr
    # An earlier run of the same job tells how long the next will take.
    planned = invoke("run", *BASE, *asked, "--dry-run", "--", sys.executable, "verl.py")
    assert f"(as in {folder.name})" in planned.stdout


@pytest.mark.usefixtures("no_report")
def test_a_trl_job_that_reads_no_arguments_is_ended_after_its_steps() -> None:
    asked = ("--job", "trl", "--steps", "6", "--warmup-steps", "1")
    result = invoke(
        "run", "--devices", "cpu:1", "--rounds", "1", "--sample-hz", "20", *asked, "--", sys.executable, "trl.py"
    )
    assert result.exit_code == 0, result.stderr
    side = measured("standard")
    assert side.value("tokens_per_s") == pytest.approx(500 / 0.01)
    # The only device is the job's.
    assert side.value("peak_memory") > 0
    assert side.value("load") >= 0
    found = caveats(compare_run(run_folder()))
    assert any(line.startswith("trl-step-time: ") for line in found)
    assert any(line.startswith("Only whole steps are compared") for line in found)


@pytest.mark.usefixtures("no_report")
def test_any_command_is_compared_by_the_arguments_that_a_file_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    # A tracker that fails fails no run.
    write(Path("clients/tensorboard"), "__init__.py", "raise OSError('no route to the service')")
    monkeypatch.syspath_prepend("clients")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path("clients").resolve()), os.environ.get("PYTHONPATH", "")])
    )
    job_file(
        f"""
command: {sys.executable} plain.py
phases: {{my_rollout: gen}}
steps: 6
warmup_steps: 1
rounds: 1
devices: cpu:2
placements:
  quick: {{args: "0.005"}}
  slow: {{args: "0.01", pools: {{one: 1}}}}
"""
    )
    result = invoke("run", "--job", "mine.yaml", "--sample-hz", "0", "--track", "tensorboard")
    assert result.exit_code == 0, result.stderr
    assert "--track tensorboard: tensorboard has failed: OSError: no route to the service" in result.stderr
    quick, slow = measured("quick"), measured("slow")
    assert (dict(quick.placement.roles), list(quick.placement.pools)) == ({}, ["all"])
    assert slow.placement.pools == {"one": ("cpu:0",)}
    assert quick.value("step_time") == pytest.approx(0.005)
    assert quick.value("phase/gen") == pytest.approx(0.001)


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_rounds_and_steps_are_chosen_for_jobs_as_for_other_runs() -> None:
    program = (
        "import sys\nfor step in range(1, 11):\n    print(f'step:{step} - timing_s/step:{sys.argv[1]}{step * 7 % 5}')\n"
    )
    write(Path(), "varying.py", program)
    job_file(
        f"command: {sys.executable} varying.py\nwarmup_steps: 1\ndevices: cpu:1\n"
        "placements: {quick: {args: '0.10'}, slow: {args: '0.20'}}\n"
    )
    result = invoke("run", "--job", "mine.yaml", "--sample-hz", "0", "--rounds", "auto", "--precision", "50%")
    assert result.exit_code == 0, result.stderr
    comparison = compare_run(run_folder())
    assert headline(comparison, comparison.others[0]).startswith("slow is slower than quick")
    # Nobody has asked for samples.
    assert not [line for line in caveats(comparison) if "samples" in line]
    # So wide an interval takes no more than the least number of steps.
    launches = {
        launch.round: json.loads(launch.trial.launch_file.read_text()) for launch in load_run(run_folder()).done("slow")
    }
    wanted = {number: launch["job"]["steps"] for number, launch in launches.items()}
    assert wanted == dict.fromkeys(range(1, 8), 1 + LEAST_STEPS) | dict.fromkeys(range(1, 4), 10)


@pytest.mark.usefixtures("no_report")
def test_a_job_is_compared_with_itself() -> None:
    asked = ("--job", "command", "--devices", "cpu:1", "--sample-hz", "0", "--pairs", "2", "--steps", "4")
    result = invoke("calibrate", *asked, "--warmup-steps", "1", "--", sys.executable, "plain.py", "0.005")
    assert result.exit_code == 0, result.stderr
    assert len(load_run(run_folder()).done("standard")) == 4


def test_a_program_beside_the_user_is_found_and_what_is_none_refused(temp: Path) -> None:
    scripts = [write(folder, "train.sh", "#!/bin/sh\n") for folder in (Path(), temp)]
    asked = ("run", *BASE, "--job", "command", "--placements", "standard", "--dry-run", "--")
    for word in ("./train.sh", "/usr", f"{temp}/train.sh", "train.sh"):
        result = invoke(*asked, word)
        assert result.exit_code == 2
        assert f"command: there is no program '{word}' {'in /' if '/' in word else 'on PATH'}" in result.stderr
    for script in scripts:
        script.chmod(0o755)
    assert [invoke(*asked, word).exit_code for word in ("./train.sh", f"{temp}/train.sh")] == [0, 0]
