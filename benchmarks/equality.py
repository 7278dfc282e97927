"""Whether placements train alike: the losses of every placement beside those of the first, step by step.

    python benchmarks/equality.py --devices gpu:4 [--placements standard,split] [--model qwen2.5-0.5b] [--steps 5]
    python benchmarks/equality.py --devices cpu:4 --model tiny --set algorithm.name=grpo --placements standard,ddp:4

Runs the real job once under each placement, in float32 with the torch rollout, whose draws follow the prompts' seeds,
and prints the largest relative difference of each loss. Ends with exit code 1 when one is above `--tolerance`.
Batches can be shared by 1, 2, 3, 4, 6 or 8 devices.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import click

from placebench.compare.read.run_reading import load_run

COMPARED = ("actor/pg_loss", "actor/entropy", "critic/vf_loss", "critic/score/mean", "actor/grad_norm")


@click.command()
@click.option("--placements", default="standard,split", show_default=True, help="The first is the reference.")
@click.option("--devices", default="gpu:2", show_default=True, help="As in `placebench run`.")
@click.option("--model", default="qwen2.5-0.5b", show_default=True, help="As in `placebench run`.")
@click.option("--steps", default=5, show_default=True, type=click.IntRange(2), help="Steps to compare.")
@click.option("--tolerance", default=1e-3, show_default=True, help="Largest relative difference allowed.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload.")
def main(placements: str, devices: str, model: str, steps: int, tolerance: float, settings: tuple[str, ...]) -> None:
    """Compare the losses of synchronous placements, which must train alike."""
    fixed = [
        *("precision=float32", "rollout.backend=torch", "torch_compile=false", "trace_kernels=false"),
        *("batch.size=96", "batch.mini_batch_size=48", "batch.max_prompt_length=32", "batch.max_response_length=32"),
        *("optimizer.actor_lr=1e-5", "algorithm.entropy_coeff=0.01"),
    ]
    options = [option for setting in (*fixed, *settings) for option in ("--set", setting)]
    with tempfile.TemporaryDirectory(prefix="placebench-") as folder:
        command = [sys.executable, "-m", "placebench", "run", "--placements", placements, "--devices", devices]
        command += ["--model", model, "--steps", str(steps), "--warmup-steps", "1", "--rounds", "1", "--out", folder]
        subprocess.run([*command, *options], check=True)
        (path,) = Path(folder).iterdir()
        launches = {launch.placement: launch.steps for launch in load_run(path).launches}
    first, *others = launches
    # Without a critic there is no loss of one.
    compared = [name for name in COMPARED if name in launches[first]]
    worst = 0.0
    for other in others:
        for name in compared:
            expected, found = launches[first][name], launches[other][name]
            # Against the largest value of the run, because some losses pass through 0.
            scale = float(expected.abs().max()) or 1.0
            difference = float((found - expected).abs().max()) / scale
            worst = max(worst, difference)
            print(f"{other} against {first}: {name:20} largest relative difference {difference:.2e}")
    print(f"{'alike' if worst <= tolerance else 'NOT alike'}: {worst:.2e}, allowed {tolerance:.0e}")
    sys.exit(worst > tolerance)


if __name__ == "__main__":
    main()
