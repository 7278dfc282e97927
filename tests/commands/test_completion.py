"""What the shells complete: the words, in process; the whole way, in a bash with a terminal."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner
from synthetic_run import SyntheticRun

from placebench.cli import main
from placebench.commands import completion
from placebench.compare.metrics import placement_metrics
from placebench.compare.statistics.verdicts import Better
from placebench.gate.checking import WORSE_WHEN_HIGHER
from placebench.logs import registry
from placebench.record.folder import RunFolder

OVERLAPS = ("none", "updates", "all")
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, name in (
        ("20260301T100000Z-a", "twice"),
        ("20260302T100000Z-b", "twice"),
        ("20260303T100000Z-c", "mine"),
    ):
        Path("runs", folder).mkdir(parents=True)
        content = {"name": name, "started": f"{folder[:4]}-03-0{folder[7]}"}
        Path("runs", folder, "run.json").write_text(json.dumps(content))
    Path("mine.yaml").touch()


def completed(line: str) -> list[str]:
    """The words that are offered at the end of a line, files aside."""
    found = get_completion_class("fish")
    assert found is not None
    *args, incomplete = line.split(" ")
    items = found(main, {}, "placebench", "_X").get_completions(args, incomplete)
    return [item.value for item in items if item.type == "plain"]


def test_a_run_is_completed_by_what_names_it_alone() -> None:
    a, b, c = "20260301T100000Z-a", "20260302T100000Z-b", "20260303T100000Z-c"
    for command in ("show", "report", "run --resume", "compare", "check", "check x --baseline", "baseline save"):
        assert completed(f"{command} ") == ["latest", "mine", b, a], command
        assert completed(f"{command} mi") == ["mine"]
        assert completed(f"{command} 2026") == [b, a, c]
        assert completed(f"{command} runs/m") == ["runs/mine"]
        assert completed(f"{command} nowhere/m") == []
    assert completed("compare a.log,mi") == ["a.log,mine"]
    assert completed("compare x=mi") == ["x=mine"]


def test_a_placement_of_a_run_is_completed(tmp_path: Path) -> None:
    SyntheticRun(rounds=1).write(Path("runs/20260304T100000Z-real"))
    for command in ("compare ", "check ", "compare x=", "check mine,"):
        before = command.partition(" ")[2]
        assert completed(f"{command}2026030") != []
        assert completed(f"{command}demo:s") == [f"{before}demo:standard", f"{before}demo:split"]
    assert completed("compare mine:s") == []  # its run.json is damaged
    assert completed("show demo:s") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pl", ["placements"]),
        ("baseline ", ["save"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("run --placements sp", ["split", "split:3+1", "split@nodes"]),
        ("run --placements standard,split:", ["standard,split:3+1"]),
        ("run --devices cpu:2 --placements ddp:", ["ddp:1", "ddp:2", "ddp:2/scaling=weak"]),
        ("run --placements learners:2,1+engines:5/o", [f"learners:2,1+engines:5/overlap={one}" for one in OVERLAPS]),
        ("run --placements ddp:2/sc", ["ddp:2/scaling=strong", "ddp:2/scaling=weak"]),
        ("run --placements split/sc", []),
        ("run --placements standard,mi", ["standard,mine.yaml"]),
        ("run --placements mine.yaml/st", ["mine.yaml/staleness="]),
        ("calibrate --placement split@", ["split@nodes"]),
        ("placements ddp:1 split@", ["split@nodes"]),
        ("run --set batch.m", ["batch.mini_batch_size=", "batch.micro_batch_tokens=", "batch.max_prompt_length=",
                               "batch.max_response_length="]),
        ("run --set algorithm.name=", ["algorithm.name=ppo", "algorithm.name=grpo"]),
        ("placements --set rollout.sleep=", ["rollout.sleep=true", "rollout.sleep=false"]),
        ("run --set seed=", []),
        ("run --set batch=", []),
        ("run --set no.such=", []),
        ("run --model qwen2.5-0", ["qwen2.5-0.5b"]),
        ("run --devices gpu:", ["gpu:1", "gpu:2", "gpu:4", "gpu:8"]),
        ("run --rollout ", ["torch", "vllm"]),
        ("slurm submit --nod", ["--nodes"]),
        ("slurm submit --nodes 2 -- ", ["run"]),
        ("slurm submit --partition=x -- run --placements split:", ["split:3+1"]),
        ("slurm submit -- run --set algorithm.name=", ["algorithm.name=ppo", "algorithm.name=grpo"]),
        ("slurm submit -- run --dry", ["--dry-run"]),
        ("check x --metric s", ["step", "sleep"]),
        ("check x --metric tokens", ["tokens_per_s", "tokens_per_s_per_device"]),
        ("compare a.log --format verl", ["verl-jsonl", "verl"]),
        ("compare a.log --format op", ["openrlhf", "open-instruct"]),
    ],
)  # fmt: skip
def test_words_are_completed(line: str, words: list[str]) -> None:
    assert completed(line) == words


def test_the_words_that_are_offered_without_loading_what_has_them_are_its_own() -> None:
    assert [known.name for known in registry.FORMATS] == [*completion.FORMATS]
    can_regress = {
        metric.key
        for metric in placement_metrics(())
        if metric.better is not Better.NEITHER or metric.key in WORSE_WHEN_HIGHER
    }
    assert {"step_time", *completion.METRICS} == can_regress


def test_what_cannot_be_read_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(above: Path) -> list[RunFolder]:
        raise PermissionError

    monkeypatch.setattr("placebench.record.named_runs.run_folders", refuse)
    assert completed("show ") == completed("compare x:") == []


def test_a_press_of_tab_loads_nothing_heavy() -> None:
    asked = (
        "import sys, os\nfrom placebench.cli import main\n"
        "for line in ('show ', 'run --set ', 'run --placements ', 'run --model '):\n"
        "    os.environ['COMP_LINE'] = 'placebench ' + line\n"
        "    try:\n        main(prog_name='placebench')\n    except SystemExit as end:\n        assert not end.code\n"
        "print(*sorted({'torch', 'ray', 'vllm', 'pandas', 'numpy', 'rich'} & set(sys.modules)), 'end')"
    )
    environment = os.environ | {"_PLACEBENCH_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert done.stdout.splitlines()[-1].strip() == "end"
    assert {"plain,mine", "plain,batch.size=", "plain,split", "plain,tiny"} <= set(done.stdout.splitlines())


STARTS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'PS1=; eval "$(placebench completion bash)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'PS1=; autoload -Uz compinit; compinit -u -D; bindkey -e; eval "$(placebench completion zsh)"',
    ),
    "fish": (["fish", "--no-config", "-i"], "placebench completion fish | source"),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes_at_its_terminal(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    script = tmp_path / "placebench"
    script.write_text(f"#!{sys.executable}\nfrom placebench.cli import main\nmain(prog_name='placebench')\n")
    script.chmod(0o755)
    lines = {
        "placebench show mi": "placebench show mine ",
        "placebench run --placements standard,split:": "placebench run --placements standard,split:3+1 ",
        "placebench run --set algorithm.name=g": "placebench run --set algorithm.name=grpo ",
        "placebench run --set batch.gr": "placebench run --set batch.group_size=",
        "placebench run --placements=split/overlap=n": "placebench run --placements=split/overlap=none ",
        "placebench run --config mi": "placebench run --config mine.yaml ",
        "placebench show missing.yaml ": "placebench show missing.yaml ",
        "placebench run --dry": "placebench run --dry-run ",
        "placebench slurm submit --nodes 2 -- run --placements=split/overlap=n": (
            "placebench slurm submit --nodes 2 -- run --placements=split/overlap=none "
        ),
    }
    command, setup = STARTS[shell]
    # Tab completes; the line then becomes the text that is written.
    typed = "".join(f"{line}\t' >> found\x01printf '%s\\n' '\n" for line in lines)
    terminal, inner = pty.openpty()
    home = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(tmp_path))
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "INPUTRC": "/dev/null", "TERM": "dumb"}
    process = subprocess.Popen(
        ["setsid", "--ctty", *command],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=os.environ | home | path,
        cwd=tmp_path,
    )
    os.close(inner)
    os.write(terminal, f"{setup}\n{typed}exit\n".encode())
    said = b""
    try:
        while chunk := os.read(terminal, 65536):
            said += chunk
    except OSError:  # the shell has ended
        pass
    os.close(terminal)
    assert process.wait(timeout=60) == 0
    assert (tmp_path / "found").read_text().splitlines() == list(lines.values()), said.decode()


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_can_read_its_script(shell: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["completion", shell], prog_name="placebench")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"_PLACEBENCH_COMPLETE={shell}_complete" in result.stdout
    assert "string split -m 1" in result.stdout or shell != "fish"
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    script = tmp_path / "script"
    script.write_text(result.stdout)
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
