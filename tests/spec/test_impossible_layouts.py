"""Layouts that cannot be are refused with their reason and exit code 2, before anything heavy is imported."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from placebench.cli import main

CASES: list[dict[str, str]] = yaml.safe_load(Path(__file__).with_name("impossible_layouts.yaml").read_text())


def test_there_are_as_many_as_claimed() -> None:
    assert len({(case["run"], case.get("file")) for case in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["run"])
def test_it_is_refused(case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "file" in case:
        Path("mine.yaml").write_text(case["file"])
    result = CliRunner().invoke(main, ["run", "--dry-run", *shlex.split(case["run"])])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert case["says"] in result.stderr
    assert all(line.startswith("placebench: ") for line in result.stderr.splitlines())
    assert not Path("runs").exists()


def test_all_reasons_come_at_once_without_torch_or_ray(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom placebench.cli import main\ntry:\n    main()\nfinally:\n"
        "    print([name for name in ('torch', 'ray', 'vllm', 'transformers', 'pandas') if name in sys.modules])"
    )
    words = "split:9+8,learners:9,1+engines:2,standard/inflight_updates=true,ddp:3,spilt,ddp:16"
    model = ["--model", "qwen2.5-7b", "--rollout", "torch", "--batch-size", "128", "--mini-batch-size", "32"]
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "--dry-run", "--devices", "gpu:8x2", "--placements", words, *model],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout.strip() == "[]"
    reasons = (
        "'split:9+8' needs 17 devices",
        "'learners:9,1+engines:2' needs 9 learners on node 0",
        "unknown placement 'spilt'",
        "'standard/inflight_updates=true': inflight_updates needs engines",
        "'ddp:3': batch.size 128 and batch.mini_batch_size 32 cannot be shared equally by the 3 devices of replicas",
        "'split:9+8': batch.size 128 and batch.mini_batch_size 32 cannot be shared equally by the 9 devices of actor",
        "'learners:9,1+engines:2': batch.size 128 and batch.mini_batch_size 32 cannot be shared equally by the 10 dev",
        "'ddp:3': each device of replicas needs about",
        "'ddp:16': each device of replicas needs about",
    )
    assert len(done.stderr.splitlines()) == len(reasons)
    for reason in reasons:
        assert reason in done.stderr
