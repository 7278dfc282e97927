"""`placebench predict`: every wrong call, and runs and calibrations that tell nothing."""

import json
from pathlib import Path

import pytest
from pages import ROOT
from predicting import REFERENCE, invoke
from synthetic_run import SyntheticRun

from placebench.predict.known import shipped_calibrations
from placebench.record.folder import Status

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--placements", "standard"), "name what to predict from: --from RUN, or --gpu"),
        (("--from", "latest"), "there is no run under runs/ yet"),
        (("--from", "nowhere"), "there is no such folder"),
        (("--from", "h300"), "or name its folder; shipped with placebench: h100 and h200"),
        (("--from", ""), "there is an empty entry"),
        (("--from", "h200", "--placements", "nonsense"), "unknown placement 'nonsense'"),
        (("--from", "h200", "--placements", "split:3+1"), "cannot be shared equally by the 3 devices"),
        (("--from", "h200", "--gpu", "H9000"), "its peaks are not known; choose one of"),
        (("--from", "h200", "--gpu", ""), "gpu '': its peaks are not known; choose one of"),
        (("--from", "h200", "--gpu", "nvidia"), "it may be any of NVIDIA A100-SXM4-40GB, "),
        (("--gpu", "MI300X"), "no calibration is shipped for it"),
        (("--from", "h200", "--devices", "cpu:2"), "the calibration is of gpu devices"),
        (("--from", "h200", "--devices", "gpu:8x1@80GiB"), "say with gpu (--gpu NAME) which GPUs these are"),
        (("--from", "h200", "--model", "nonsense"), "unknown model 'nonsense'"),
        (("--from", "h200", "--set", "batch.size=x"), "--set batch.size: must be a whole number (got 'x')"),
        (("--from", "h200", "--set", "batch=3"), "--set batch: must be a section of keys, not one value (got 3)"),
        (("--from", "h200", "--set", "batch.size="), "--set batch.size: must be a whole number (got nothing)"),
        (("--from", "h200", "--batch-size", "0"), "--batch-size: must be greater than 0 (got 0)"),
        (("--from", "h200", "--batch-size", "9" * 20), "--batch-size: must be less than or equal to 10000000"),
        (("--from", "h200", "--price", "x"), "'x' is not a number"),
        (("--from", "h200", "--placements", ""), "--placements '' has an empty entry"),
        (
            ("--from", "h200", "--placements", "standard,split,standard"),
            "placement 'standard' is given twice in --placements 'standard,split,standard': name each once",
        ),
        (("--from", "h200", "--devices", ""), "devices '': write cpu:N or gpu:N"),
        (("--from", "rtx.json", "--gpu", "H100"), "is of NVIDIA RTX 6000, whose peaks are not known, so it cannot"),
        (("--from", "rtx.json", "--batch-size", "48"), "the peaks of NVIDIA RTX 6000 are not known: name a run"),
        (("--from", "h200", "--model", "bert"), "not the config of a decoder-only language model"),
        (("--from", "nowhere", "--plot", "x.gif"), "--plot x.gif: name a file that ends in .svg, .png, .pdf"),
        (("--from", "broken.json"), "cannot read it as JSON"),
        (("--from", "other.json"), "not a calibration: make one with placebench predict"),
        (("--from", "newer.json"), "written by a newer placebench"),
        (("--from", "idle.json"), "the step of 'standard' has no time of gen: make"),
        (("--from", "h100,h200", "--gpu", "H200", "--out", "x.json"), "2 calibrations are named with --from: name one"),
        (("--from", "h200", "--out", "x.json", "--json", "x.json"), "both name x.json"),
    ],
)
def test_a_wrong_call_is_told_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    unknown = {"device": "NVIDIA RTX 6000"}
    shipped_calibrations()["h100"].model_copy(update=unknown).write(Path("rtx.json"))
    Path("bert").mkdir()
    Path("bert/config.json").write_text(json.dumps({"model_type": "bert"}))
    idle = shipped_calibrations()["h100"].model_dump_json().replace('"name":"gen"', '"name":"gne"')
    Path("idle.json").write_text(idle)
    Path("broken.json").write_text("{")
    Path("other.json").write_text("{}")
    Path("newer.json").write_text(json.dumps({"schema_version": 2}))
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert said in line


def test_where_no_measured_placement_can_be_the_first_ones_reason_is_told() -> None:
    result = invoke("--gpu", "H200", "--model", "qwen2.5-7b", "--devices", "gpu:8", "--batch-size", 7)
    why, remedy = result.stderr.splitlines()
    assert "placement 'standard': batch.size 7 and batch.mini_batch_size 7 cannot be shared equally" in why
    assert "none of the measured placements is possible on these devices" in remedy


def test_a_shared_run_that_tells_nothing_is_refused() -> None:
    summary = json.loads((REFERENCE / "ppo-7b" / "summary.json").read_text())
    for change, said in (
        ({"kind": "comparison"}, "is the report of a comparison, not a run"),
        ({"host": {"gpus": [{}]}}, "does not tell what its phases took"),
        ({"placements": [one | {"critical_path": []} for one in summary["placements"]]}, "does not tell"),
    ):
        folder = Path("runs/20260101T000000Z-a")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(summary | change))
        result = invoke("--from", folder)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
        assert said in result.stderr


def test_a_run_without_finished_launches_is_refused() -> None:

    statuses = {(1, "standard"): Status.FAILED, (1, "split"): Status.FAILED}
    SyntheticRun(rounds=1, statuses=statuses).write(Path("runs/20260101T000000Z-a"))
    assert invoke("--from", "latest").stderr == (
        "placebench: runs/20260101T000000Z-a: it has no finished launch with times of phases: go on with placebench run"
        " --resume runs/20260101T000000Z-a, or name another run\n"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--from", "h200", "--devices", ""), "--devices '': write cpu:N or gpu:N"),
        (("--from", "h200", "--devices", "cpu:2"), "--devices cpu:2: the calibration is of gpu devices"),
        (("--from", "h200", "--devices", "gpu:4@30GiB"), "--devices gpu:4@30GiB: the calibration is of NVIDIA H200"),
        (("--from", "h200", "--json", "-"), "'--json': -: write /dev/stdout for standard output, or ./- for a file"),
        (("--from", "shared"), "shared/summary.json: not as placebench writes it: Invalid JSON: EOF"),
    ],
)
def test_a_wrong_call_says_where_what_is_wrong(words: tuple[str, ...], says: str) -> None:
    Path("shared").mkdir()
    Path("shared/summary.json").write_text("\n")
    result = invoke(*words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert result.stderr.startswith("placebench: ")
    assert says in result.stderr
    assert not Path("-").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--set precision=float32",
            "precision float32: the calibration is of bfloat16 only, which says nothing about float32",
        ),
        ("--set rollout.backend=torch", "rollout.backend torch: the calibration is of vllm only"),
        (
            "--max-prompt-length 32768 --max-response-length 32768 --set batch.micro_batch_tokens=65536",
            "batch: 65536 tokens of prompt and response are more than the 32768 that qwen2.5-1.5b takes",
        ),
    ],
)
def test_work_of_which_nothing_tells_is_refused(words: str, said: str) -> None:
    result = invoke("--gpu", "H200", "--model", "qwen2.5-1.5b", "--devices", "gpu:4", *words.split())
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_a_job_of_the_users_is_scaled_to_no_other_gpu() -> None:
    verl = ROOT / "runs/reference/4x-h100/verl/verl"
    result = invoke("--from", verl, "--gpu", "H200", "--placements", "standard")
    assert result.exit_code == 2
    assert "what a job of yours computes is not known" in " ".join(result.output.split())
