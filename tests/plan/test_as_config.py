"""`--print-config` prints the whole of a plan; the file asks for the same plan again."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from placebench.cli import main
from placebench.errors import UsageError
from placebench.plan.as_config import config_text
from placebench.plan.given import GivenRun
from placebench.plan.plan import Plan, make_plan
from placebench.plan.request import RunRequest, build_request
from placebench.spec.workload import workload_keys
from placebench.spec.workload_reading import RUN_KEYS

SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 2**32 - 1),
    "steps": st.integers(3, 10**6),
    "precision": st.sampled_from(["float32", "bfloat16"]),
    "activation_checkpointing": st.booleans(),
    "data.prompt_key": st.text(),
    "data.answer_key": st.text(),
    "data.operand_max": st.integers(1, 9),
    "batch.size": st.sampled_from([8, 64, 256, 1024]),
    "batch.max_response_length": st.integers(1, 64),
    "rollout.temperature": st.floats(1e-3, 10),
    "rollout.top_p": st.floats(0.01, 1),
    "algorithm.name": st.sampled_from(["ppo", "grpo"]),
    "algorithm.kl_coef": st.floats(0, 1),
    "optimizer.actor_lr": st.floats(1e-9, 1),
    "optimizer.betas": st.tuples(st.floats(0, 1), st.floats(0, 1)).map(list),
}
DEVICES = st.sampled_from(["gpu:4x2", "gpu:4x2@141GiB"])
RUNS: dict[str, st.SearchStrategy[Any]] = {
    "placements": st.sampled_from(["standard", "split", "standard,split:4+4/overlap=none", "learners:2,2+engines:4"]),
    "rounds": st.one_of(st.integers(1, 9999), st.just("auto")),
    "name": st.from_regex("[A-Za-z0-9][A-Za-z0-9+=._@-]{0,20}", fullmatch=True),
    "out": st.from_regex(r"[a-z:#' ]{1,20}", fullmatch=True).map(Path),
}


def nested(values: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (content.setdefault(section, {}) if section else content)[name] = value
    return content


def facts(plan: Plan) -> tuple[object, ...]:
    return (
        *(plan.workload, plan.placements, plan.devices, plan.rounds, plan.auto, plan.name, plan.launcher),
        plan.folder.path.parent,
    )


@given(st.fixed_dictionaries({}, optional=SETTINGS), st.fixed_dictionaries({"devices": DEVICES}, optional=RUNS))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
def test_the_file_of_a_plan_asks_for_the_same_plan(tmp_path: Path, values: dict[str, Any], run: dict[str, Any]) -> None:
    request = RunRequest(**run, workload=nested(values), dry_run=True)
    try:
        plan = make_plan(request)
    except UsageError:
        assume(False)
    text = config_text(plan, request, ["placebench", "run"])
    file = tmp_path / "plan.yaml"
    file.write_text(text, encoding="utf-8")
    again = build_request(GivenRun({"dry_run": True}, config=file))
    planned = make_plan(again)
    assert facts(planned) == facts(plan)
    assert config_text(planned, again, ["placebench", "run"]) == text


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--devices", "cpu:2", "--rounds", "auto", "--precision", "3%", "--sample-hz", "1"],
        [
            "run",
            "--devices",
            "gpu:8x64@141GiB",
            "--placements",
            "ddp:8",
            "--model",
            "qwen2.5-0.5b",
            "--name",
            "nightly",
        ],
        ["calibrate", "--devices", "cpu:2", "--placement", "split", "--pairs", "3", "--batch-size", "48"],
    ],
)
def test_its_head_is_the_command_that_takes_it(tmp_path: Path, command: list[str]) -> None:
    printed = CliRunner().invoke(main, [*command, "--print-config"])
    assert (printed.exit_code, printed.stderr) == (0, "")
    file = tmp_path / "plan.yaml"
    file.write_text(printed.stdout)
    head = printed.stdout.splitlines()[0]
    _, _, *words = head.replace("FILE", str(file)).split(" ")
    again = CliRunner().invoke(main, [*words, "--print-config"])
    assert (again.exit_code, again.stdout) == (0, printed.stdout)


def test_every_key_stands_there_with_what_it_means() -> None:
    text = CliRunner().invoke(main, ["run", "--print-config", "--devices", "cpu:2", "--name", "all"]).stdout
    content = yaml.safe_load(text)
    assert [key for key in content if key in RUN_KEYS] == list(RUN_KEYS)
    keys = [
        f"{key}.{below}" if below else key
        for key, value in content.items()
        if key not in RUN_KEYS
        for below in (value if isinstance(value, dict) else [""])
    ]
    assert keys == list(workload_keys())
    lines = [line for line in text.splitlines()[1:] if line]
    assert len(lines) == len(RUN_KEYS) + len(keys) + 5
    assert all(re.search(r":.*  # \S", line) for line in lines)


def test_of_what_cannot_be_there_is_no_file() -> None:
    for arguments, reason in (
        (["--placements", "standard,ddp:3"], "'ddp:3' needs 3 devices"),
        (["--set", "steps=0"], "--set steps: "),
    ):
        refused = CliRunner().invoke(main, ["run", "--print-config", "--devices", "cpu:2", *arguments])
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert reason in refused.stderr


def test_a_run_that_goes_on_has_none() -> None:
    refused = CliRunner().invoke(main, ["run", "--print-config", "--resume", "latest"])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "--print-config is for a new run, and --resume goes on with one" in refused.stderr
