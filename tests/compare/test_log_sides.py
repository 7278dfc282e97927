"""One arm from logs: its numbers behind the warm-up, and what stands before its steps."""

from pathlib import Path

import pytest
from log_samples import VERL_CONFIG, verl_log

from placebench.compare.measure.log_sides import log_side
from placebench.compare.side import Side
from placebench.logs.head import head_facts


def arm(*launches: Path, **options: object) -> Side:
    return log_side([[path] for path in launches], **options)  # type: ignore[arg-type]  # one option each, of its type


def test_numbers_of_a_log_are_medians_behind_the_warm_up(tmp_path: Path) -> None:
    found = arm(verl_log(tmp_path, "a.log", step_s=10.0))
    assert found.launch_values.to_dict("records") == [
        pytest.approx(
            {
                "step_time": 10.0,
                "phase/gen": 5.0,
                "phase/update_actor": 2.5,
                "part/generate_sequences": 2.5,
                "unattributed": 2.5,
                "tokens_per_s": 800.0,
                "tokens_per_s_per_device": 100.0,
            }
        )
    ]
    assert [(launch.steps, launch.measured, launch.format) for launch in found.background.sources] == [(6, 4, "verl")]


def test_validation_and_checkpoints_inside_the_step_are_taken_off_it(tmp_path: Path) -> None:
    # verl counts them into its step: the step that is logged is longer by just their time.
    upkeep = dict.fromkeys((3, 4, 5), " - timing_s/testing:6.0 - timing_s/save_checkpoint:4.0 - timing_s/step:20.0")
    found = arm(verl_log(tmp_path, "a.log", more=upkeep, steps=9))
    values = found.launch_values.iloc[0]
    assert values["step_time"] == pytest.approx(10.0)
    assert values["part/testing"] == pytest.approx(6.0)
    assert values["part/save_checkpoint"] == pytest.approx(4.0)
    assert values["tokens_per_s"] == pytest.approx(800.0)
    assert "phase/testing" not in found.launch_values


def test_steps_behind_a_restart_are_warm_up_again(tmp_path: Path) -> None:
    first = verl_log(tmp_path, "first.log", steps=5)
    again = verl_log(tmp_path, "again.log", steps=8, step_s=20.0)
    lines = again.read_text().splitlines(keepends=True)
    restarted = tmp_path / "restarted.log"
    restarted.write_text(first.read_text() + "".join(lines[3:]))
    found = arm(restarted)
    # Steps 1 and 2, and 4 and 5 behind the restart at 4, are warm-up.
    assert (found.background.sources[0].steps, found.background.sources[0].measured) == (8, 4)
    assert any("restart: line 6" in flag for flag in found.background.flags)
    # The run went back further: behind the restart at 4 nothing is left.
    other = verl_log(tmp_path, "other.log", steps=8, step_s=30.0).read_text().splitlines(keepends=True)
    restarted.write_text(restarted.read_text() + "".join(other[2:]))
    found = arm(restarted)
    assert (found.background.sources[0].steps, found.background.sources[0].measured) == (8, 4)
    assert [flag.split("; ")[0] for flag in found.background.flags if "restart" in flag] == [
        "restarted: restart: line 6: the run was restarted at step 4",
        "restarted: restart: line 11: the run was restarted at step 3",
    ]


def test_a_warm_up_longer_than_said_is_found(tmp_path: Path) -> None:
    slow, usual = (verl_log(tmp_path, name, step_s=seconds, steps=20) for name, seconds in (("a", 16.0), ("b", 10.0)))
    log = tmp_path / "slow_start.log"
    log.write_text("".join([*slow.read_text().splitlines(True)[:6], *usual.read_text().splitlines(True)[6:]]))
    found = arm(log)
    assert (found.background.sources[0].steps, found.background.sources[0].measured) == (20, 14)
    assert found.launch_values["step_time"].tolist() == pytest.approx([10.0])


def test_what_holds_for_every_launch_is_told_once(tmp_path: Path) -> None:
    logs = [verl_log(tmp_path, f"{name}.log") for name in "ab"]
    with logs[1].open("a") as stream:
        stream.write(logs[1].read_text().splitlines(keepends=True)[-1])
    flags = arm(*logs, name="x").background.flags
    assert flags == (f"x: {logs[1]}: repeated: 1 step line repeats an earlier one",)
    logs[0].write_text(logs[0].read_text() + 2 * logs[0].read_text().splitlines(keepends=True)[-1])
    assert arm(*logs, name="x").background.flags == (
        f"x: {logs[0]}: repeated: 2 step lines repeat earlier ones (and in 1 launch more)",
    )
    assert arm(logs[1], logs[1], name="x").background.flags == ("x: repeated: 1 step line repeats an earlier one",)


def test_what_verl_prints_before_its_steps_is_known(tmp_path: Path) -> None:
    assert head_facts(verl_log(tmp_path, "a.log", head=VERL_CONFIG)) == {
        "model": "/models/Qwen2.5-0.5B-Instruct",
        "algorithm": "gae",
        "batch size": "256",
        "mini-batch size": "64",
        "longest prompt": "512",
        "longest response": "256",
        "precision": "bfloat16",
        "rollout": "vllm",
        "rollout tensor parallel": "1",
        "training backend": "fsdp",
        "devices": "8",
        "kind of device": "GPU",
    }
    engine = "] Initializing a V1 LLM engine (v0.11.0) with config: model='Q/m', x=1, dtype=torch.float16, y\n"
    assert head_facts(verl_log(tmp_path, "b.log", head=engine)) == {
        "vllm version": "0.11.0", "model": "Q/m", "precision": "float16",
    }  # fmt: skip
    torn = VERL_CONFIG.replace("'model':", "'mo")
    assert head_facts(verl_log(tmp_path, "c.log", head=torn)) == {}


OWN_ROLLOUT = "(main_task pid=9)  'rollout': {'n_gpus_per_node': 8, 'nnodes': 1},\n"


ROLLOUT_NODES = "'nnodes': 1, 'n_gpus_per_node': 8, 'name': 'vllm'"


V1_MODE = "'trainer': {'v1': {'trainer_mode': 'sync'}, "


@pytest.mark.parametrize(
    ("head", "devices"),
    [
        (VERL_CONFIG.replace("(main_task pid=9)  'trainer'", OWN_ROLLOUT + "(main_task pid=9)  'trainer'"), 16),
        (VERL_CONFIG.replace("'name': 'vllm'", ROLLOUT_NODES), 16),
        (VERL_CONFIG.replace("'name': 'vllm'", ROLLOUT_NODES).replace("'trainer': {", V1_MODE), 8),
        (VERL_CONFIG.replace("'name': 'vllm'", "'nnodes': 0, 'n_gpus_per_node': 8, 'name': 'vllm'"), 8),
        (VERL_CONFIG.replace("'name': 'vllm'", f"'nnodes': {'9' * 400}, 'n_gpus_per_node': 8, 'name': 'vllm'"), 8),
    ],
)
def test_the_rollouts_own_devices_count(tmp_path: Path, head: str, devices: int) -> None:
    """The log divides by the trainer's 8 devices alone: 8,000 tokens in 10 s."""
    path = verl_log(tmp_path, "a.log", head=head)
    found = arm(path, warmup_steps=2)
    assert found.background.facts["devices"] == str(devices)
    assert found.launch_values.loc[1, "tokens_per_s_per_device"] == 8000 / 10 / devices
    told = (
        "the log divides its tokens/s by 8 devices of 16, without the rollout's own; the recomputed figure counts all"
    )
    assert found.background.flags == ((f"a: rollout-devices: {told}",) if devices == 16 else ())
    assert arm(verl_log(tmp_path, "a.log", head=head, devices=devices)).background.flags == ()


@pytest.mark.parametrize("head", ["", VERL_CONFIG])
def test_without_the_rollouts_devices_there_is_no_figure_a_device(tmp_path: Path, head: str) -> None:
    path = verl_log(tmp_path, "a.log", more=dict.fromkeys(range(1, 7), " - timing_s/generate_async:9.0"), head=head)
    found = arm(path)
    assert "devices" not in found.background.facts
    assert found.launch_values["tokens_per_s_per_device"].isna().all()
    assert found.launch_values.loc[1, "tokens_per_s"] == 800.0
    assert found.background.flags == (
        "a: rollout-devices: the log divides its tokens/s by 8 devices, which may leave out the rollout's own: no "
        "tokens/s/device; give --devices, the number of all devices of the run",
    )
    given = arm(path, devices=16)
    assert given.background.facts["devices"] == "16"
    assert given.launch_values.loc[1, "tokens_per_s_per_device"] == 50.0
