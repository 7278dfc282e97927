import errno
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from invoking import invoke
from synthetic_run import SyntheticRun

from placebench import __version__
from placebench.commands import run, start
from placebench.run.runner import RunResult

PYTHON = sys.executable


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def command(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [PYTHON, "-m", "placebench", *arguments], capture_output=True, text=True, check=False, timeout=60, **options
    )


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "--placements", "spilt"], "unknown placement 'spilt': use standard, split"),
        (["run", "--placements", ""], "empty entry"),
        (["run", "--placements", "split:2+1"], "needs 3 devices (actor_pool 2, critic_pool 1), there are 2"),
        (["run", "--model", "gpt9", "--rollout", "torch"], "unknown model 'gpt9': use tiny, qwen2.5-0.5b"),
        (["run", "--placement-timeout", "5"], "--placement-timeout is for a Ray cluster: give --ray-address too"),
        (["run", "--launcher", "mpi"], "'mpi' is not one of 'ray', 'torchrun'"),
        (
            ["run", "--launcher", "torchrun", "--placements", "standard,ddp:1,split"],
            "runs only ddp placements, as in --placements ddp:1,ddp:2: leave out standard, split, or --launcher",
        ),
        (["run", "--steps", "0"], "--steps: must be greater than 0 (got 0)"),
        (["run", "--steps", "two"], "'two' is not a valid integer"),
        (
            ["run", "--batch-size", "-8"],
            "--batch-size: must be greater than 0 (got -8)",
        ),
        (["run", "--max-response-length", "0"], "--max-response-length: must be"),
        (["run", "--batch-size", "40"], "--batch-size: batch: size 40 is not a multiple of mini_batch_size 32"),
        (["run", "--batch-size", "5", "--mini-batch-size", "5"], "cannot be shared equally by the 2 devices"),
        (["run", "--rounds", "0"], "--rounds '0': must be a number from 1 to 10000, or auto"),
        (["run", "--rounds", "999999999999"], "must be a number from 1 to 10000, or auto"),
        (["run", "--rounds", "many"], "--rounds 'many': must be a number from 1 to 10000, or auto"),
        (["run", "--precision", "2%"], "--precision: only for a number of rounds that is not fixed: add --rounds auto"),
        (["run", "--rounds", "auto", "--precision", "wide"], "--precision 'wide': write a share, such as 5% or 0.05"),
        (["run", "--rounds", "auto", "--precision", "0"], "--precision 0: give at least 0.01%, and less than 100%"),
        (["run", "--rounds", "auto", "--precision", "1e-200"], "--precision 1e-200: give at least 0.01%"),
        (["run", "--warmup-steps", "10"], "warmup_steps 10 leaves none of 6 steps to measure"),
        (["run", "--seed", "-1"], "--seed: must be greater than or equal to 0"),
        (["run", "--devices", "gpu:999"], "--devices gpu:999: found "),
        (["run", "--devices", "tpu:1"], "--devices 'tpu:1': write cpu:N or gpu:N"),
        (["run", "--devices", ""], "--devices '': write cpu:N or gpu:N"),
        (["run", "--name", ""], "--name '': use up to 100 letters"),
        (["run", "--devices", "cpu:0"], "--devices 'cpu:0': write cpu:N or gpu:N"),
        (["run", "--name", "a" * 300], "use up to 100 letters"),
        (["run", "--name", "latest"], "--name latest: stands for the newest run; choose another name"),
        (["run", "--out", "a" * 300], "File name too long; name another folder"),
        (["run", "--out", "loop"], "--out loop: loop is a link to nothing; name a folder"),
        (["run", "--out", "dangling/deeper"], "/dangling is a link to nothing; name a folder"),
        (["run", "--name", "a/b"], "--name 'a/b': use up to 100 letters"),
        (["run", "--out", "/dev/null"], "/dev/null is a file; name a folder"),
        (["run", "--set", "batch.size"], "write key=value"),
        (["run", "--set", "batch.sise=4"], "unknown key 'batch.sise'; did you mean 'batch.size'?"),
        (["run", "--set", "seed=1", "--seed", "2"], "are the same setting: give it once"),
        (["run", "--rollout", "sglang"], "'sglang' is not one of 'torch', 'vllm'"),
        (["run", "--config", "nowhere.yaml"], "nowhere.yaml: cannot read it: No such file or directory"),
        (["run", "--config", "."], ".: cannot read it: Is a directory"),
        (["run", "--config", "broken.yaml"], "broken.yaml, line 2, column 1: "),
        (["run", "--out", ""], "Invalid value for '--out': it is empty: name a folder"),
        (
            ["run", "--config", "wrong.yaml"],
            "wrong.yaml, line 3: batch.size: must be greater than 0 (got 0)",
        ),
        (["run", "--config", "twice.yaml"], "twice.yaml, line 4, column 3: size is given twice"),
        (["run", "--config", "deep.yaml"], "deep.yaml: cannot read its values: maximum recursion depth exceeded"),
        (["run", "--config", "date.yaml"], "date.yaml: cannot read its values: month must be in 1..12"),
        (["run", "--set", "steps=2026-99-99"], "--set 'steps=2026-99-99': cannot read the value '2026-99-99'"),
        (["run", "--set", ".batch.size=4"], "write key=value"),
        (["run", "--placements", "split,split"], "placement 'split' is given twice"),
        (["run", "--steps", "9" * 400], "--steps: must be less than or equal to 10000000"),
        (["run", "--step-timeout", "0"], "'--step-timeout'"),
        (["run", "--step-timeout", "nan"], "'--step-timeout': must be above 0 and at most 100,000,000 (got nan)"),
        (["run", "--time-limit", "inf"], "'--time-limit'"),
        (["run", "--time-limit", "10m"], "'10m' is not a number of seconds, such as 600"),
        (["run", "--sample-hz", "nan"], "--sample-hz nan: must be 0, for no samples, or from 0.1 to 50"),
        (["run", "--sample-hz", "-1"], "--sample-hz -1: must be 0, for no samples, or from 0.1 to 50"),
        (["run", "--sample-hz", "1e-300"], "--sample-hz 1e-300: must be 0, for no samples, or from 0.1 to 50"),
        (
            ["run", "--rollout", "torch", "--model", "halves"],
            "halves/config.json: not the config of a language model: num_attention_heads 0",
        ),
        (
            ["run", "--rollout", "torch", "--model", "bert"],
            "bert/config.json: not the config of a decoder-only language model: it has no",
        ),
        (["run", "--resume", ""], "RUN is empty: name a run"),
        (["run", "--resume", "wrong.yaml"], "--resume wrong.yaml: is a file; name the folder of a run"),
        (["run", "--config", ""], "'--config': it is empty: name one"),
        (["run", "--resume-from", ""], "'--resume-from': it is empty: name one"),
        (["list", ""], "it is empty: name one"),
        (["placements", "--config", ""], "'--config': it is empty: name one"),
        (["placements", "--job", "nope"], "--job: unknown framework 'nope': use verl"),
        (["search", "--gpu", "H200", "--now", ""], "--now '': unknown placement ''"),
        (["serve", "--allow-host", ""], "--allow-host '': it is empty"),
        (["calibrate", "--pairs", "999999999999"], "'--pairs'"),
        (["run", "--resume", "nowhere"], "nowhere: there is no such folder, and no run of this name under runs/; see"),
        (["run", "--resume", "bert"], "bert: there is no run.json in it; name the folder of a run"),
        (["run", "--resume", "latest"], "latest: there is no run under runs/ yet"),
        (["run", "--sped", "3"], "No such option"),
        (["show"], "Missing argument 'RUN'"),
        (["show", "nowhere"], "nowhere"),
        (["report", "broken.yaml"], "broken.yaml"),
        (["shew", "x"], "No such command 'shew'"),
    ],
)
def test_wrong_input_is_one_line_exit_code_2_and_nothing_is_started(arguments: list[str], reason: str) -> None:
    write("broken.yaml", "steps: [1,\n")
    write("wrong.yaml", "steps: 5\nbatch:\n  size: 0\n")
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("nowhere")
    write("deep.yaml", "a: " + "[" * 3000)
    write("twice.yaml", "steps: 5\nbatch:\n  size: 64\n  size: 128\n")
    write("date.yaml", "steps: 2026-99-99\n")
    for name, heads in (("bert", {}), ("halves", {"num_attention_heads": 0})):
        Path(name).mkdir()
        sizes = dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"), 64)
        write(f"{name}/config.json", json.dumps({"model_type": "qwen2", **sizes, **heads}))
    devices = ["--devices", "cpu:2"] if arguments[0] == "run" and "--devices" not in arguments else []
    result = invoke(*arguments, *devices)
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("placebench: ")
    assert reason in lines[0]
    assert not Path("runs").exists()


@pytest.mark.parametrize("arguments", [[], ["baseline"], ["slurm"]])
def test_a_command_without_its_subcommand_shows_the_help(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(" ".join(["Usage: placebench", *arguments]))


def test_several_reasons_are_one_line_each() -> None:
    result = invoke("run", "--model", "gpt9", "--rollout", "torch", "--placements", "spilt", "--devices", "cpu:2")
    assert [line.split(":")[1].strip() for line in result.stderr.splitlines()] == [
        "unknown model 'gpt9'",
        "unknown placement 'spilt'",
    ]


def test_a_dry_run_prints_the_plan_and_makes_nothing() -> None:
    write(
        "bench.yaml",
        "placements: [standard, split/overlap=none]\nsteps: 20\nbatch: {size: 64}\nrounds: 2\nalgorithm: {epochs: 1}\n",
    )
    result = invoke("run", "--config", "bench.yaml", "--steps", "30", "--dry-run", "--verbose", "--devices", "cpu:2")
    assert (result.exit_code, result.stderr) == (0, "")
    for line in (
        "steps     30 a launch",
        "round 2   split/overlap=none, standard",
        "  size: 64",
        "overlap none",
        "for 4 launches",
        "mini-batches × 1 epoch\n",
    ):
        assert line in result.stdout
    assert [path.name for path in Path().iterdir()] == ["bench.yaml"]


def test_version_and_help() -> None:
    assert invoke("--version").stdout == f"placebench, version {__version__}\n"
    for arguments in (["--help"], ["-h"], ["run", "--help"]):
        result = invoke(*arguments)
        assert result.exit_code == 0
        assert re.search(r"Examples?:\s+`?placebench run", result.stdout)
        assert not re.search(r"^  [a-z]+ .*\.\.\.$", result.stdout, re.MULTILINE)  # no command's line is cut off
    documented = {name for one in run.run.params if isinstance(one, click.Option) for name in one.opts}
    assert documented <= set(re.findall(r"--[\w-]+", invoke("run", "--help").stdout))


HEAVY = ("torch", "ray", "vllm", "pandas", "matplotlib", "pydantic", "numpy", "rich", "psutil", "yaml")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys; from placebench.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print([name for name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([PYTHON, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert set(HEAVY).isdisjoint(re.findall(r"'(\w+)'", done.stderr))


def test_a_dry_run_imports_neither_torch_nor_ray() -> None:
    program = (
        "import sys; from placebench.cli import main\n"
        "try: main(['run', '--dry-run', '--devices', 'cpu:2'])\n"
        "finally: print([name for name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True)
    assert {"torch", "ray", "transformers", "pandas", "matplotlib"}.isdisjoint(re.findall(r"'(\w+)'", done.stderr))


def test_completion_is_what_click_gives() -> None:
    source = command(env={**os.environ, "_PLACEBENCH_COMPLETE": "bash_source"})
    assert "complete -o nosort" in source.stdout
    words = {"COMP_LINE": "placebench run --st", "_PLACEBENCH_COMPLETE": "bash_complete"}
    assert {"plain,--steps", "plain,--step-timeout"} <= set(command(env={**os.environ, **words}).stdout.split())


def test_a_file_that_may_not_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> Path:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "run/trials/01-split/status")

    monkeypatch.setattr("placebench.record.named_runs.find_run", refuse)
    result = invoke("show", "x")
    assert result.stderr == "placebench: run/trials/01-split/status: Permission denied\n"
    assert result.exit_code == 2


def test_a_narrow_terminal_cuts_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SyntheticRun(rounds=2).write(tmp_path / "run")
    wide = invoke("show", str(run)).stdout
    monkeypatch.setenv("COLUMNS", "40")
    assert invoke("show", str(run)).stdout == wide


def test_what_nobody_expected_is_one_line_with_the_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def surprise(text: str) -> Path:
        raise ZeroDivisionError("what")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("placebench.record.named_runs.find_run", surprise)
    result = invoke("show", "x")
    assert result.exit_code == 70
    line = re.fullmatch(
        r"placebench: unexpected ZeroDivisionError: what; the traceback is in (\S+): please report it\n", result.stderr
    )
    assert line
    assert "in surprise" in Path(line[1]).read_text()
    monkeypatch.setenv("PLACEBENCH_DEBUG", "1")
    assert "in surprise" in invoke("show", "x").stderr


def test_ctrl_c_outside_a_run_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(text: str) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("placebench.record.named_runs.find_run", stop)
    result = invoke("show", "x")
    assert (result.exit_code, result.stderr.strip()) == (130, "placebench: stopped")


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_report_that_is_stopped_says_that_the_launches_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int, is_late: bool
) -> None:
    def stop(_: Path, *, verbose: bool) -> None:
        assert not is_late
        assert not verbose
        signal.raise_signal(number)

    result = RunResult(tmp_path / "a-run", 2, 2, (), None, late_signal=number if is_late else None)
    monkeypatch.setattr("placebench.run.runner.execute", lambda *_, **__: result)
    monkeypatch.setattr(start, "_report", stop)
    before = signal.getsignal(number)
    # As it is outside of the report, which must not be what the test process dies of.
    signal.signal(number, lambda *_: None)
    try:
        done = invoke("run", "--devices", "cpu:2", "--rounds", "1")
    finally:
        signal.signal(number, before)
    assert done.exit_code == code
    assert done.stderr == (
        f"placebench: stopped by {number.name} before the report was made: 2 of 2 launches are done; make it with"
        f" placebench report {tmp_path / 'a-run'}\n"
    )


def test_a_report_that_is_made_again_ends_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    run_dir = SyntheticRun(rounds=1).write(tmp_path / "a-run")
    monkeypatch.setattr("placebench.report.build.compare_run", stop)
    done = invoke("report", str(run_dir))
    assert (done.exit_code, done.stderr) == (143, "placebench: stopped by SIGTERM before the report was made\n")
    assert not multiprocessing.active_children()
