"""The CI examples and the commands of docs/ci.md and docs/logs.md: that they are whole, and run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from log_samples import SAMPLES
from pages import commands
from synthetic_run import SyntheticRun

from placebench.cli import main

pytestmark = pytest.mark.usefixtures("own_temp")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "ci"
WORKFLOWS = ("github-cpu.yml", "github-gpu.yml", "gitlab-ci.yml")


def environment(folder: Path) -> dict[str, str]:
    """One in which `placebench` is this checkout's."""
    program = folder / "bin" / "placebench"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom placebench.cli import main\nmain()\n")
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    packages = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PATH": path, "PYTHONPATH": packages, "CI": "true"}


def steps(name: str) -> list[str]:
    """The shell commands of a workflow."""
    content: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))
    if "jobs" not in content:
        return list(content["performance"]["script"])
    return [step["run"] for job in content["jobs"].values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("name", ["ci.md", "logs.md"])
def test_commands_of_the_docs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    runs = [SyntheticRun(pace=lambda round_, _: 1.0 + 0.01 * round_, started=f"2026-01-0{day}") for day in (1, 2, 3)]
    for run, folder in zip(runs[:2], ("20260101T000000Z-before", "20260102T000000Z-after"), strict=True):
        run.write(tmp_path / "runs" / folder)
    for log in ("a.log", "b.log", "a1.log", "a2.log", "b1.log", "b2.log", "trainer.log"):
        (tmp_path / log).write_bytes(SAMPLES["openrlhf"][1])
    (tmp_path / "metrics.jsonl").write_bytes(SAMPLES["prime-rl, metrics.jsonl"][1])
    (tmp_path / "orchestrator.log").write_bytes(SAMPLES["prime-rl"][1])
    found = commands((ROOT / "docs" / name).read_text(encoding="utf-8"))
    assert found
    monkeypatch.chdir(tmp_path)
    for command in found:
        program, *arguments = shlex.split(command)
        if program == "python":
            assert subprocess.run([sys.executable, ROOT / arguments[0], *arguments[1:]]).returncode == 0
            continue
        if arguments[0] == "run":
            arguments += ["--dry-run", "--devices", "cpu:2"]
        done = CliRunner().invoke(main, arguments, prog_name=program)
        assert (program, done.exit_code) == ("placebench", 0), f"{command}\n{done.output}"
        if "baseline save latest" in command:
            runs[2].write(tmp_path / "runs" / "20260103T000000Z-changed")


def test_the_jobs_of_the_examples_can_be_planned(tmp_path: Path) -> None:
    variables = environment(tmp_path)
    variables["PYTHONPATH"] = f"{EXAMPLES / 'project'}{os.pathsep}{variables['PYTHONPATH']}"
    for arguments in (["smoke.yaml"], ["gpu.yaml", "--devices", "cpu:2", "--model", "tiny"]):
        done = subprocess.run(
            ["placebench", "run", "--dry-run", "--config", str(EXAMPLES / arguments[0]), *arguments[1:]],
            cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        job = yaml.safe_load((EXAMPLES / arguments[0]).read_text())
        assert re.search(rf"for {job['rounds'] * len(job['placements'].split(','))} launch(es)?\b", done.stdout)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_name_what_is_there(name: str) -> None:
    files = {path.name for path in EXAMPLES.iterdir()}
    found = steps(name)
    assert any("placebench" in step for step in found)
    for step in found:
        for file in re.findall(r"ci/([\w.-]+\.(?:sh|yaml))", step):
            assert file in files
        for word in re.findall(r"placebench (\w+)", step):
            assert word in ("run", "check", "baseline")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "gate.sh: name two folders of code: gate.sh BEFORE AFTER [OUT]"),
        (["."], "gate.sh: name two folders of code: gate.sh BEFORE AFTER [OUT]"),
        ([".", "nowhere"], "gate.sh: there is no folder nowhere"),
        (["nowhere", "."], "gate.sh: there is no folder nowhere"),
        ([".", "."], "gate.sh: there is no placebench on PATH: pip install 'placebench[run]'"),
    ],
)
def test_wrong_input_of_the_script_is_no_regression(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = subprocess.run(
        ["bash", str(EXAMPLES / "gate.sh"), *arguments],
        cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, f"{says}\n")
    assert not [*tmp_path.iterdir()]


def planned(folder: Path, ends: dict[str, int]) -> subprocess.CompletedProcess[str]:
    """gate.sh with a `placebench` that notes its calls and ends as told."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "placebench"
    program.write_text(
        f'#!/bin/bash\necho "$*" >> {folder}/calls\n'
        'if [ "$1" = run ]; then while [ "$1" != --out ]; do shift; done; mkdir -p "$2/run"; exit %d; fi\nexit %d\n'
        % (ends.get("run", 0), ends.get("check", 0))
    )
    program.chmod(0o755)
    path = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    project = str(EXAMPLES / "project")
    command = ["bash", str(EXAMPLES / "gate.sh"), project, project, str(folder / "out")]
    return subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("ends", [{"check": 0}, {"check": 1}, {"check": 4}, {"run": 124}, {"run": 3}])
def test_the_script_ends_with_the_code_of_what_failed(tmp_path: Path, ends: dict[str, int]) -> None:
    done = planned(tmp_path, ends)
    assert done.returncode == max(ends.values()), done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == (["run"] if "run" in ends else ["run"] * 8 + ["check"])


def test_launches_before_and_after_take_turns_in_alternating_order(tmp_path: Path) -> None:
    (tmp_path / "out" / "after-9").mkdir(parents=True)
    (tmp_path / "out" / "not-of-the-script").touch()
    assert planned(tmp_path, {}).returncode == 0
    *runs, check = (tmp_path / "calls").read_text().splitlines()
    names = ["before-1", "after-1", "after-2", "before-2", "before-3", "after-3", "after-4", "before-4"]
    assert [Path(run.split("--out ")[1].split()[0]).name for run in runs] == names
    after, before = (",".join(f"{tmp_path}/out/{side}-{n}/run" for n in range(1, 5)) for side in ("after", "before"))
    assert check.startswith(f"check {after} --baseline {before} --paired ")
    assert not (tmp_path / "out" / "after-9").exists()
    assert (tmp_path / "out" / "not-of-the-script").exists()
