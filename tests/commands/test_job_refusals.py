"""`placebench run --job`: what is refused before anything starts, in a line each."""

from pathlib import Path

import pytest
from fake_jobs import PLAIN, VERL, write
from invoking import invoke

BASE = ("--devices", "cpu:2", "--sample-hz", "0")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_temp: None) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "verl.py", VERL)
    write(tmp_path, "plain.py", PLAIN)


def job_file(text: str) -> str:
    return str(write(Path(), "mine.yaml", text))


@pytest.mark.parametrize(
    ("arguments", "file", "lines"),
    [
        (
            ["--job", "vrel", "--", "python", "verl.py"],
            "",
            ["--job: unknown framework 'vrel': use verl, trl, openrlhf, skyrl, "],
        ),
        (["--job", "verl"], "", ["the job: there is no command: write it after --, or as command in the job file"]),
        (
            ["--", "python", "verl.py"],
            "",
            ["'python verl.py': a command needs --job with its framework, or --job command"],
        ),
        (["--job", "verl", "--", "pyhton", "verl.py"], "", ["command: there is no program 'pyhton' on PATH"]),
        (["--job", "verl", "--", "bash", "no.sh"], "", ["command: there is no file 'no.sh' in /"]),
        (["--job", "verl", "--", "./verl.py"], "", ["verl.py is not executable: chmod +x it, or put the program"]),
        (["--placements", "standard", "split"], "", ["'split' is no option: write -- before a command of yours, and"]),
        (
            ["--job", "verl", "--placements", "standard", "split", "--", "python", "verl.py"],
            "",
            ["'split' is no option: write -- before a command of yours, and commas between placements"],
        ),
        (["--job", "verl", "bash", "verl.py", "--steps", "3"], "", ["'bash verl.py' is no option: write -- before"]),
        (
            [
                "--job",
                "verl",
                "--model",
                "tiny",
                "--set",
                "batch.size=8",
                "--launcher",
                "ray",
                "--",
                "python",
                "verl.py",
            ],
            "",
            ["--model, --set, --launcher are for placebench's own job: for a job of yours, put them into its command"],
        ),
        (
            ["--job", "verl", "--steps", "2", "--", "python", "x"],
            "",
            ["the job: warmup_steps 2 leaves none of 2 steps to measure: raise steps or lower warmup_steps"],
        ),
        (["--job", "verl", "--steps", "two", "--", "python", "x"], "", ["'two' is not a valid integer"]),
        (
            ["--job", "verl", "--resume-from", "x", "--", "python", "x"],
            "",
            ["--resume-from is for placebench's own job"],
        ),
        (
            [
                "--job",
                "verl",
                "--devices",
                "cpu:4",
                "--placements",
                "learners:2+engines:2/staleness=99",
                "--",
                "python",
            ],
            "",
            ["staleness 99 needs a launch of more than 99 steps, and this one has 10"],
        ),
        (
            ["--job", "verl", "--steps", "9" * 400, "--", "python"],
            "",
            ["--steps: must be less than or equal to 10000000"],
        ),
        (["--job", "verl", "--placements", "ddp:2", "--", "python", "x"], "", ["'ddp:2': verl shards every model"]),
        (
            ["--job", "verl", "--placements", "a,,standard", "--", "python", "x"],
            "",
            ["empty entry", "unknown placement 'a'"],
        ),
        (["--job", "no.yaml"], "", ["no.yaml: cannot read it: No such file or directory"]),
        (["--job", "mine.yaml", "--config", "other.yaml"], "command: python x", ["both name a file"]),
        (["--job", "mine.yaml"], "command: 'python x", ["mine.yaml, line 1"]),
        (["--job", "mine.yaml"], "command: python 'x", ["command: no closing quotation in"]),
        (
            ["--job", "mine.yaml"],
            "command: python x | tee log",
            ["command: | is for a shell, but no shell reads this command: write bash -c '… {args}'"],
        ),
        (["--job", "mine.yaml"], "command: python {x}", ["command: {x} is not a known name: use {args}, {folder}"]),
        (
            ["--job", "mine.yaml", "--", "python"],
            "command: python x",
            ["and the command after -- are the same setting"],
        ),
        (
            ["--job", "mine.yaml"],
            "job: trl\ncommand: python x\nstepps: 3\ncwd: /nowhere\nray: maybe\nlog: {format: loud}\nseed: -1\n",
            [
                "mine.yaml, line 3: unknown key 'stepps'; did you mean 'steps'?",
                "mine.yaml, line 6: log: unknown log format 'loud': use tensorboard",
                "mine.yaml, line 7: seed: must be greater than or equal to 0 (got -1)",
            ],
        ),
        (
            ["--job", "mine.yaml"],
            "command: python x\ncwd: /nowhere\nray: maybe\npython: /usr/share\nphases: {a: b}\n",
            [
                "mine.yaml, line 2: cwd: there is no folder /nowhere",
                "mine.yaml, line 3: ray: 'maybe' is neither none, own nor HOST:PORT",
                "mine.yaml, line 4: python: there is no bin/python in /usr/share",
                "mine.yaml, line 5: phases.a: unknown phase 'b': use gen",
            ],
        ),
        (["--job", "mine.yaml"], "command: python x\nplacements: {a: {pool: 1}}", ["unknown key 'placements.a.pool'"]),
        (
            ["--job", "mine.yaml"],
            "command: python x\nzzz: 1\nround: 2",
            ["before, after, rounds, devices, name, out", "unknown key 'round'; did you mean 'rounds'?"],
        ),
        (["--job", "mine.yaml"], "command: python x\nplacements: {a: {pools: {b: 5}}}", ["need 5 devices on node 0"]),
        (
            ["--job", "mine.yaml"],
            "command: python {ray_address}",
            ["ray: the job has no Ray, but uses {ray_address}"],
        ),
        (["--job", "mine.yaml"], "command: python x\nenv: {A: [1]}", ["env.A: must be text"]),
        (["--job", "mine.yaml"], "command: python x\nenv: {'A=B': 1}", ["env: 'A=B' cannot be the name of a variable"]),
        (["--job", "mine.yaml"], 'command: python x\nenv: {A: "x\\0y"}', ["env: A: a variable cannot have a NUL"]),
        (["--job", "mine.yaml"], 'command: "python \\0"', ["command: no word of a command can have a NUL"]),
        (["--job", "mine.yaml"], "command: python x\ncwd: ~nobodyx", ["cwd: '~nobodyx': there is no such user"]),
        (["--job", "command", "--", "~nobodyx/run"], "", ["command: there is no program '~nobodyx/run' in"]),
        (
            ["--job", "mine.yaml"],
            "command: python x\nbefore: nothing-so-called\nafter: bash nothing.sh",
            [
                "before: there is no program 'nothing-so-called' on PATH",
                "after: there is no file 'nothing.sh' in",
            ],
        ),
        (
            ["--job", "mine.yaml"],
            "command: /bin/sh -c true {ray_address}\nray: own\nenv: {PATH: /bin-of-nobody}",
            ["ray: there is no program ray on PATH to start the job's own Ray"],
        ),
        (
            ["--job", "command", "--ray-address", "", "--", "python", "plain.py"],
            "",
            ["placebench: --ray-address: '' is neither none, own nor HOST:PORT"],
        ),
        (["--job", "mine.yaml"], "command: python x\nrounds: 0", ["rounds: 0 is neither a number from 1"]),
        (["--job", "verl", "--write-config", "plain.py"], "", ["plain.py: it is there already"]),
        (["--job", "verl", "--print-config", "--", "python"], "", ["--print-config is for placebench's own job"]),
        (["--job", "vrel", "--write-config", "new.yaml"], "", ["--job 'vrel' is no framework: use verl"]),
        (
            ["--job", "verl", "--write-config", "new.yaml", "--rounds", "5", "--", "python", "verl.py"],
            "",
            ["leave out --rounds; options that also apply to a job of yours go to placebench run --job new.yaml"],
        ),
        (
            ["--write-config", "new.yaml", "--set", "x=y", "--rounds", "no", "--resume", "x", "--placements", "ddp:2"],
            "",
            ["takes only --job and the command: leave out --placements, --rounds, --resume, --set; options"],
        ),
    ],
)
def test_every_wrong_job_is_refused_in_a_line_each(arguments: list[str], file: str, lines: list[str]) -> None:
    if file:
        job_file(file)
    result = invoke("run", *(() if "--write-config" in arguments else BASE), *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert not Path("new.yaml").exists()
    said = result.stderr.splitlines()
    assert len(said) == len(lines)
    for line in lines:
        assert [one for one in said if line in one], (line, said)
    assert not Path("runs").exists()


def test_a_script_that_ends_others_is_refused_unless_it_may() -> None:
    write(Path(), "run.sh", 'ray stop --force\npkill -9 python\npython verl.py "$@"\n')
    asked = ("run", *BASE, "--job", "verl", "--dry-run")
    result = invoke(*asked, "--", "bash", "run.sh")
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert "run.sh, line 1: 'ray stop' in 'ray stop --force' would end processes that are not the job's" in first
    assert "run.sh, line 2: 'pkill' in 'pkill -9 python'" in second
    assert invoke(*asked, "--allow-kill", "--", "bash", "run.sh").exit_code == 0


def test_a_script_that_drops_its_arguments_is_refused() -> None:
    write(Path(), "run.sh", "python verl.py\n")
    result = invoke("run", *BASE, "--job", "verl", "--", "bash", "run.sh")
    assert 'command: run.sh takes no arguments, and those of --job verl would be lost: put "$@"' in result.stderr
    job_file('job: verl\ncommand: bash -c "python verl.py {args}"\n')
    assert invoke("run", *BASE, "--job", "mine.yaml", "--dry-run").exit_code == 0


def test_a_shell_s_text_that_drops_its_arguments_is_refused() -> None:
    result = invoke("run", *BASE, "--job", "verl", "--", "bash", "-c", "cd . && python verl.py")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "command: what bash -c runs takes no arguments, and those of --job verl would be lost" in result.stderr


def test_a_script_that_is_given_no_arguments_need_not_take_any() -> None:
    write(Path(), "run.sh", "python verl.py\n")
    asked = ("attach", "--devices", "cpu:1", "--dry-run", "--job", "trl")
    assert invoke(*asked, "--", "bash", "run.sh").exit_code == 0


def test_what_a_command_leaves_open_is_told_before_it_starts() -> None:
    write(Path(), "run.sh", 'python verl.py algorithm.adv_estimator=$1 "$@"\n')
    result = invoke("run", *BASE, "--job", "verl", "--dry-run", "--", "bash", "run.sh")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("algorithm.adv_estimator is $1, which is known only when the job runs") == 1


def test_each_reason_against_a_placement_has_its_line() -> None:
    words = ("--devices", "gpu:4x1", "--placements", "split:3+1/inflight_updates=true/staleness=1")
    command = ("python", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo")
    result = invoke("run", "--dry-run", "--job", "verl", *words, "--", *command)
    assert (result.exit_code, result.stdout) == (2, "")
    about = [line for line in result.stderr.splitlines() if "split:3+1/inflight_updates=true" in line]
    assert len(about) > 1
    assert all(line.count("placement '") == 1 for line in result.stderr.splitlines()), result.stderr


def test_each_reason_against_pools_has_its_line() -> None:
    pools = "placements: {mine: {pools: {a: [1, 1], b: 0, c: 9}}}"
    file = job_file(f"job: command\ncommand: python plain.py\n{pools}\n")
    result = invoke("run", *BASE, "--job", file, "--dry-run")
    lines = [line for line in result.stderr.splitlines() if "placement 'mine'" in line]
    assert len(lines) == 3, result.stderr
    assert all(line.count("placement 'mine'") == 1 for line in lines)


def test_keys_of_the_file_are_named_with_their_lines_and_options_as_options() -> None:
    write(Path(), "file", "")
    keys = "devices: tpu:3\nname: a b\nout: file\n"
    job_file(f"job: command\ncommand: python plain.py\n{keys}")
    write(Path(), "own.yaml", keys)
    for option, line in (("--job", 3), ("--config", 1)):
        file = "mine.yaml" if option == "--job" else "own.yaml"
        said = invoke("run", "--dry-run", option, file).stderr.splitlines()
        expected = {
            f"placebench: {file}, line {line}: devices 'tpu:3': write cpu:N",
            f"placebench: {file}, line {line + 1}: name 'a b': use up to 100 letters",
            f"placebench: {file}, line {line + 2}: out file: file is a file; name a folder",
        }
        assert len(said) == len(expected)
        assert all(any(one.startswith(start) for one in said) for start in expected), said
        given = invoke("run", "--dry-run", option, file, "--name", "c d", "--devices", "tpu:4").stderr
        assert "placebench: --name 'c d': use" in given
        assert "placebench: --devices 'tpu:4': write" in given
