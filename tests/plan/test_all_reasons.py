"""What is wrong is told at once: no reason hides another one."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placebench.cli import main

# Faults that have nothing to do with each other: an option with its value, or a placement, and what is said of it.
FAULTS = {
    "--devices tpu:1": "--devices 'tpu:1': write cpu:N",
    "--steps two": "'two' is not a valid integer. (see placebench run --help)",
    "--seed -1": "--seed: must be greater than or equal to 0 (got -1)",
    "--batch-size 100": "batch: size 100 is not a multiple of mini_batch_size 32",
    "--set batch.group_size=3": "not a multiple of group_size 3",
    "--name a/b": "--name 'a/b': use up to 100 letters",
    "--out /dev/null": "/dev/null is a file; name a folder",
    "--rounds many": "--rounds 'many': must be a number from 1 to",
    "--min-effect wide": "--min-effect 'wide': write a share",
    "--sample-hz -1": "--sample-hz -1: must be 0",
    "--time-limit nan": "must be above 0",
    "--placement-timeout 5": "--placement-timeout is for a Ray cluster",
    "--allow-kill": "--allow-kill is for the scripts of a job of yours: give --job too, or leave it out",
    "--launcher torchrun": "--launcher torchrun runs only ddp placements, as in --placements ddp:1,ddp:2: leave out",
    "--resume-from nowhere": "--resume-from nowhere: cannot read state.json",
    "--config no.yaml": "no.yaml, line 3: out: 5 is not text",
    "--set =3": "--set '=3': write key=value",
    "--set data": "--set 'data': write key=value",
    "--set optimizer.eps=[": "--set 'optimizer.eps=[': cannot read the value '['",
    "--set bogus.nothing=1": "--set: unknown key 'bogus'",
    "--set optimizer.actor_lr=-1": "--set optimizer.actor_lr: must be greater than 0 (got -1)",
    "--set critic_model=gpt9": "unknown model 'gpt9'",
    "--set rollout.tensor_parallel_size=3": "rollout.tensor_parallel_size: must be 1, 2, 4 or 8",
    "spilt": "unknown placement 'spilt'",
    "split/overlap=much": "unknown setting 'overlap=much'",
    "ddp:0": "'ddp:0' is not of the form ddp:N",
    "standard/inflight_updates=true": "inflight_updates needs engines in a pool of their own",
    "learners:1+engines:1/overlap=none/staleness=1": "overlap=none forbids that",
    "learners:9+engines:1xtp3/stale=1": "an engine cannot have 3 devices",
    "split:1+1/scaling=weak": "scaling is a setting of ddp:N",
    "no.yaml": "no.yaml: roles: must be a mapping",
}
CRITIC_LESS = "pools: {a: [1], b: [1]}\nroles: {actor: a, rollout: a, ref: b}\n"
FILE = "pools: {a: [4]}\nrounds: 0\nout: 5\nwarmup_steps: -1\n"


@given(st.sets(st.sampled_from(sorted(FAULTS)), min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_fault_is_told_whatever_else_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: set[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("no.yaml").write_text(FILE)
    options = [word for fault in faults if fault.startswith("--") for word in fault.split(" ")]
    devices = [] if "tpu:1" in options else ["--devices", "gpu:4x1"]
    words = ",".join(["standard", *(fault for fault in faults if not fault.startswith("--"))])
    result = CliRunner().invoke(
        main, ["run", "--dry-run", *devices, *options, "--placements", words], prog_name="placebench"
    )
    lines = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (2, "")
    assert all(line.startswith("placebench: ") for line in lines)
    assert len(lines) == len(set(lines))
    for fault in faults:
        assert [line for line in lines if FAULTS[fault] in line], fault


@pytest.mark.parametrize(
    ("arguments", "reasons"),
    [
        (
            ["--batch-size", "100", "--placements", "spilt,ddp:3"],
            [
                "--batch-size: batch: size 100 is not a multiple of mini_batch_size 32",
                "unknown placement 'spilt'",
                "'ddp:3' needs 3 devices",
                "'ddp:3': batch.size 100 and batch.mini_batch_size 32 cannot be shared equally by the 3 devices",
            ],
        ),
        (
            ["--placements", "learners:9+engines:1xtp3/staleness=99/stale=1"],
            [
                "unknown setting 'stale=1'",
                "an engine of 3 devices must lie on one node",
                "needs 12 devices",
                "staleness 99 needs a launch of more than",
                "an engine cannot have 3 devices",
                "batch.mini_batch_size 32 cannot be shared equally by the 9 devices of learners",
                "batch.size 128 cannot be shared equally by the 3 devices of engines",
            ],
        ),
        (
            ["--devices", "tpu:1", "--placements", "split,standard/staleness=99,ddp:3"],
            [
                "--devices 'tpu:1'",
                "staleness 99 needs a launch of more than",
                "cannot be shared equally by the 3 devices of replicas; try --batch-size 132 --mini-batch-size 33",
            ],
        ),
        # What is right by itself is not held against what is not known.
        (["--steps", "0", "--warmup-steps", "5", "--placements", "standard/staleness=9"], ["--steps: must be"]),
        (["--set", "batch.size=[", "--mini-batch-size", "48"], ["cannot read the value '['"]),
        (["--config", "nowhere.yaml", "--batch-size", "100", "--precision", "2%"], ["nowhere.yaml: cannot read it"]),
        (["--rounds", "many", "--precision", "2%"], ["--rounds 'many'"]),
        (["--placements", "critic-less.yaml", "--set", "algorithm.nam=grpo"], ["unknown key 'algorithm.nam'"]),
        (
            ["--placements", "ddp:2/scaling=week", "--batch-size", "7", "--mini-batch-size", "7"],
            ["unknown setting 'scaling=week'"],
        ),
        (
            ["--set", "batch.size=8", "--set", "batch=5"],
            ["--set batch sets a whole section to one value, and --set batch.size"],
        ),
        # What has nothing to do with sizes does not keep those from being checked.
        (
            ["--devices", "gpu:1@8GiB", "--model", "qwen2.5-7b", "--rounds", "many", "--placements", "standard"],
            ["--rounds 'many'", "'standard': each device of global_pool needs about "],
        ),
        (
            [
                *("--devices", "gpu:2@80GiB", "--model", "qwen2.5-1.5b", "--batch-size", "16384"),
                *("--set", "algorithm.gamma=2", "--steps", "2", "--placements", "standard"),
            ],
            [
                "--set algorithm.gamma: must be less than or equal to 1 (got 2)",
                "warmup_steps 2 leaves none of 2 steps to measure",
                "'standard': each device of global_pool needs about ",
            ],
        ),
        (
            [
                *("--devices", "gpu:2@80GiB", "--model", "qwen2.5-1.5b", "--batch-size", "16384"),
                *("--set", "batch.max_response_length=0", "--placements", "standard"),
            ],
            ["--set batch.max_response_length: must be greater than 0 (got 0)"],
        ),
        # No value and no key is too odd to be told.
        (["--set", "model=[a]", "--steps", "two"], ["'two' is not a valid integer", "--set model: must be"]),
        (
            ["--config", "odd.yaml"],
            [
                "odd.yaml, line 1: batch.1.5: keys should be strings",
                "odd.yaml: batch.datetime.date(2020, 1, 1): keys should be strings",
                "odd.yaml: batch.None: keys should be strings",
                "odd.yaml, line 2: 1: keys should be strings",
            ],
        ),
        # Sizes that nobody could have are told, and no batch for them is looked for.
        (
            ["--placements", "ddp:999983,ddp:999979,ddp:999961"],
            [
                *["needs 9999"] * 3,
                *["no batch can be shared equally by all placements; choose device counts with common factors"] * 3,
            ],
        ),
    ],
)
def test_these_reasons_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reasons: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd.yaml").write_text("batch: {1.5: 4, 2020-01-01: 3, null: 2}\n1: 2\n")
    Path("critic-less.yaml").write_text(CRITIC_LESS)
    devices = [] if "--devices" in arguments else ["--devices", "cpu:2"]
    result = CliRunner().invoke(main, ["run", "--dry-run", *devices, *arguments])
    lines = result.stderr.splitlines()
    assert len(lines) == len(reasons), lines
    assert all(reason in line for reason, line in zip(reasons, lines, strict=True)), lines


def test_calibrate_and_placements_tell_every_reason_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    several = CliRunner().invoke(main, ["calibrate", "--placement", "standard,split:9+9", "--devices", "gpu:4x1"])
    assert "name one placement, which is compared with itself" in several.stderr
    assert "'split:9+9' needs 18 devices" in several.stderr
    unread = CliRunner().invoke(main, ["calibrate", "--placement", "standrd", "--config", "nix.yaml"])
    assert "nix.yaml: cannot read it" in unread.stderr
    assert "unknown placement 'standrd'" in unread.stderr
    words = CliRunner().invoke(main, ["placements", "spilt", "--devices", "tpu:1", "--set", "steps=0", "--set", "=1"])
    assert words.exit_code == 2
    for reason in ("--set '=1'", "--devices 'tpu:1'", "--set steps: ", "unknown placement 'spilt'"):
        assert reason in words.stderr
