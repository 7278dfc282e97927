"""TRL itself as the job, on CPU devices: two ranks under torchrun, with its own generation and with vLLM in each."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from launching import assert_nothing_left

from placebench.compare.read.run_reading import load_run

HERE = Path(__file__).parent
OPTIONS = (
    "--use_cpu true --bf16 true --seed 1 --per_device_train_batch_size 4 --num_generations 4"
    " --max_completion_length 32 --gradient_checkpointing false"
)
WITH_VLLM = "--use_vllm true --vllm_mode colocate --vllm_max_model_length 256"
ON_CPU = {
    "ACCELERATE_USE_CPU": "true",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed; `make test-slow` sets it up"),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for TRL."""
    folder = tmp_path_factory.mktemp("tiny")
    subprocess.run([sys.executable, HERE / "verl_on_cpu" / "make_tiny.py", folder], check=True, timeout=300)
    return folder / "model"


@pytest.mark.parametrize("more", ["", WITH_VLLM], ids=["transformers", "vllm"])
def test_ranks_of_trl_generate_and_train_each_on_its_device(temp: Path, tiny: Path, more: str) -> None:
    given = "--placements standard --devices cpu:2 --rounds 1 --steps 4 --warmup-steps 1 --name trl"
    train = ["torchrun", "--standalone", str(HERE / "trl_on_cpu" / "train.py"), "--model_name_or_path", str(tiny)]
    bin_first = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "placebench",
                "run",
                "--job",
                "trl",
                "--out",
                str(temp / "runs"),
                *given.split(),
                "--",
            ),
            *(*train, *OPTIONS.split(), *more.split()),
        ],
        env={**os.environ, **ON_CPU, "PATH": bin_first, "TMPDIR": str(temp)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (temp / "runs").glob("*-trl")
    (launch,) = load_run(path).launches
    assert launch.log is not None
    assert not [flag for flag in launch.log.flags if flag.name == "spans"]
    spans = launch.spans[launch.spans["device"] != "controller"]
    for device in ("cpu:0", "cpu:1"):
        phases = set(spans.loc[spans["device"] == device, "phase"])
        assert {"gen", "reward", "update_actor"} <= phases
        assert ("update_weights" in phases) == bool(more)
    assert len(launch.step_seconds) == 4
    assert_nothing_left(temp)
