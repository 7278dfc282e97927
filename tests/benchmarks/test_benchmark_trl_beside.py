"""What the benchmark asks of placebench's own job and of TRL can be run, and what it says of the device."""

from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner
from synthetic_run import STANDARD, SyntheticRun
from trl_beside import Asked, own_options, seen_on_device, trl_command, write_prompts

from placebench.cli import main
from placebench.compare.measure.sides import run_sides

ASKED = Asked("qwen2.5-1.5b", "gpu:1@80GiB", batch=64, group=8, micro_batch=4, prompt=512, response=512)


def test_both_can_be_run_on_one_gpu(tmp_path: Path) -> None:
    command = trl_command(tmp_path, ASKED)
    for asked in (own_options(ASKED), ["--job", "trl", "--placements", "standard", "--", *command]):
        done = CliRunner().invoke(main, ["run", "--dry-run", "--devices", ASKED.devices, "--rounds", "1", *asked])
        assert done.exit_code == 0, done.output
    assert command[command.index("--gradient_accumulation_steps") + 1] == "16"


def test_prompts_have_the_tokens_that_were_asked_for(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl", count=3, length=20)
    lines = (tmp_path / "prompts.jsonl").read_text().splitlines()
    assert [len(line) for line in lines] == [len('{"prompt": ""}') + 20] * 3


def test_a_table_says_who_was_on_the_device(tmp_path: Path) -> None:
    one = replace(STANDARD, pools={"global_pool": ("cpu:0",)})
    run = SyntheticRun(layouts={"ddp:1": one}, rounds=1).write(tmp_path / "run")
    text = "\n".join(seen_on_device({"placebench": run_sides(run)[0]}))
    assert "| device of the plan | cpu:0 |" in text
    assert "| actor: share of the steps at work there | 26 % |" in text
    assert "| load in gen | " in text
