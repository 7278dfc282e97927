"""One small log of each format, in the shape that the framework writes it; every sample has the steps 1 to 3."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from placebench.logs.tensorboard import masked_crc

RAY = "\x1b[36m(PPOTrainer pid=42, ip=10.0.0.7)\x1b[0m "
STEPS = (1, 2, 3)


def openrlhf(step: int, *, synchronous: bool = True) -> str:
    total = 10.0 + step if synchronous else 20.0
    mark, actor = ("✨ ", "PPOTrainer") if synchronous else ("", "TrainingActor")
    return (
        f"\x1b[36m({actor} pid=42)\x1b[0m INFO 08-13 19:25:{step * 15:02d} ppo_trainer.py:546] {mark}"
        f"Global step {step}: {{'policy_loss': -0.0012, 'actor_lr': 5e-07, 'kl': nan, "
        f"'timing/make_experience': 2.0, 'timing/ppo_train': 3.0, "
        f"'timing/broadcast': 1.0, 'rollout/num_samples': 1024.0, 'timing/generation': {4.0 + step}, "
        f"'timing/step_total': {total}}}\n"
    )


def slime(step: int) -> str:
    stamp = f"[2026-08-21 17:14:{step * 15:02d}] "
    return (
        f"(RolloutManager pid=4) {stamp}rollout_metrics.py:268 - perf {step}: {{'perf/rollout_time': {6.0 + step}, "
        f"'perf/tokens_per_gpu_per_sec': 900.5}}\n"
        f"(MegatronTrainRayActor pid=5) {stamp}train_metric_utils.py:401 - perf {step}: {{'perf/sleep_time': 0.5, "
        f"'perf/update_weights_time': 1.5, 'perf/wake_up_time': 0.25, 'perf/train_wait_time': {9.0 + step}, "
        f"'perf/train_time': 3.0, "
        f"'perf/actor_train_time': 2.0, 'perf/log_probs_time': 0.5, 'perf/step_time': {12.0 + step}, "
        f"'perf/wait_time_ratio': 0.6}}\n"
        f"(MegatronTrainRayActor pid=5) {stamp}train.py:9 - step {step * 2}: {{'train/loss': 0.25}}\n"
    )


def skyrl(step: int) -> str:
    return (
        f"2026-08-21 18:02:{step * 15:02d}.107 | INFO     | skyrl.train.utils.tracking:log:189 - Step {step}: \n"
        f"{{'reward/avg': '0.5000',\n"
        f" 'timing/critic_train': '2.0000',\n"
        f" 'timing/generate': '{4 + step}.0000',\n"
        "2026-08-21 18:02:38.108 | INFO     | skyrl:x - Started: 'generate'\n"
        " 'timing/policy_train': '3.0000',\n"
        f" 'timing/step': '{11 + step}.0000',\n"
        " 'timing/sync_weights': '1.0000',\n"
        " 'timing/train_critic_and_policy': '5.5000',\n"
        " 'trainer/tokens_per_second_per_gpu': '812.0000'}\n"
    )


def skyrl_short(step: int) -> str:
    """Metrics that fit into one line are printed in one, and may come apart from the times."""
    stamp = f"2026-08-21 18:02:{step * 15:02d}.107 | INFO     | skyrl.train.utils.tracking:log:189 - Step {step}: "
    return f"{stamp}\n{{'policy/final_loss': '0.3000', 'reward/avg': '0.5000'}}\n{skyrl(step)}"


def areal(step: int) -> str:
    return (
        f"\x1b[32m(AReaL) 20260521-18:37:{step * 15:02d}.250 StatsLogger INFO: Epoch 1/10 Step {step}/467 Train step "
        f"{step}/4670 done.\x1b[0m\n(AReaL) 20260521-18:37:16.123 StatsLogger INFO: Stats (1/1):\n"
        "╒═══════════════╤════════════╤══════════════════════╤════════════╕\n"
        f"│ timeperf/rollout │ {6.0 + step:.4e} │ timeperf/compute_advantage │ 4.0000e-02 │\n"
        "├───────────────┼────────────┼──────────────────────┼────────────┤\n"
        "│ timeperf/train_step │ 3.0000e+00 │ timeperf/update_weights │ 1.0000e+00 │\n"
        "├───────────────┼────────────┼──────────────────────┼────────────┤\n"
        "│ ppo_actor/loss │ nan │              │            │\n"
        "╘═══════════════╧════════════╧══════════════════════╧════════════╛\n"
    )


def nemo_rl(step: int, *, validation_s: float = 0.0) -> str:
    validation = (
        f"▶ Starting validation at step {step}...\n\n📊 Validation Results:\n    • Accuracy: 0.4100\n"
        "    • Average response length: 700.0 tokens\n    • Samples processed: 256\n\n"
        f"  ⏱️  Validation Timing:\n    • Total validation time: {validation_s:.2f}s\n\n"
    )
    return (
        f"\n========================= Step {step}/100 =========================\n▶ Generating...\n"
        f"▶ Training policy...\n{validation if validation_s else ''}\n"
        "📊 Training Results:\n  • Loss: 0.1032\n  • Avg Reward: 0.3486\n\n"
        f"⏱️  Timing:\n  • Total step time: {10 + step + validation_s:.2f}s\n  • generation: {4 + step}.00s (48.9%)\n"
        "  • policy_training: 3.00s (37.6%)\n  • prepare_for_generation/total: 1.50s (7.2%)\n"
        "  • prepare_for_generation/transfer_and_update_weights: 1.00s (2.0%)\n"
        "🔍 Performance Metrics:\n  • Throughputs (per GPU):\n    - E2E (Tokens/sec/gpu): 1234.50\n"
        "  • Training Model Floating Point Utilization: 31.25%\n"
    )


def trl(step: int, *, quoted: bool = True) -> str:
    """A line of a run of 3 steps; the last ends with that of the run."""
    metrics: dict[str, float] = {
        "loss": 0.0,
        "grad_norm": 0.9652,
        "num_tokens": 116.0 * step,
        "completions/mean_length": 15.0,
        "reward": 1.0,
        "step_time": 4.0 + step,
        "epoch": 0.015625 * step,
    }
    end = {"train_runtime": 18.5, "train_steps_per_second": 0.162, "train_loss": 0.1, "epoch": metrics["epoch"]}
    printed, last = (
        {name: f"{value:.4g}" for name, value in found.items()} if quoted else found for found in (metrics, end)
    )
    line = f" 25%|██▌       | {step}/3 [00:04<00:13,  4.56s/it]\r{printed}\n"
    return line if step < STEPS[-1] else f"{line}{last}\n"


def prime_rl(step: int) -> str:
    return (
        f"\x1b[32m18:15:{step * 17:02d}\x1b[0m SUCCESS Step {step} |   {14 + step}.2s | Loss 0.0012 | Entropy 0.4311 | "
        "Mismatch KL 0.0009 | Grad. Norm 0.1210 | LR 1.00e-06 | Throughput 11896 tokens/s | MFU 11.1% | "
        "Peak Mem. 12.5 GiB\n"
        f"18:15:09 [SUCCESS] Step {step} |   2m 5s | Reward 0.1972 | Trainable 16/16 (100.0%) | Max Off-Policy 0\n"
    )


WIDE_PANEL = """\
╭─────────────────────────────────────────────── Metrics ────────────────────────────────────────────────╮
│  loss   policy_avg: -0.01 | kl_avg: 2.00e-06                                                           │
│  other  episode: 256 | training_step: {step} | epoch: 1.00 | lr: 3.00e-07                                   │
│  time   total: {total} | training: 7.90 | saving: 0 | weight_sync: 0.61 | trainer_waiting_for_data: 5.10 │
│  val    num_total_tokens: 91231 | num_step_tokens: 1200                                                │
╰────────────────────────────────────────────────────────────────────────────────────────────────────────╯
"""
WRAPPED_PANEL = """\
╭────────────────── Metrics ───────────────────╮
│  loss   policy_avg: -0.01 | kl_avg: 2.00e-06 │
│  other  episode: 256 | training_step: {step} |    │
│         epoch: 1.00 | lr: 3.00e-07           │
│  time   total: {total} | training: 7.90 | saving: │
│         0 | weight_sync: 0.61 |              │
│         trainer_waiting_for_data: 5.10       │
│  val    num_total_tokens: 91231              │
│         | num_step_tokens: 1200              │
╰──────────────────────────────────────────────╯
"""

# As printed until 2025, when the trainer idled before it trained and responses were got in another thread.
PACKING_PANEL = """\
╭─────────────────────────────────────────────── Metrics ────────────────────────────────────────────────╮
│  other  episode: 256 | training_step: {step} | epoch: 1.00 | lr: 3.00e-07                                   │
│  time   total: {total} | training: 7.90 | saving: 0 | trainer_idling: {idling} | getting_response: 9.00      │
│  val    num_total_tokens: 91231 | num_step_tokens: 1200                                                │
╰────────────────────────────────────────────────────────────────────────────────────────────────────────╯
"""


def open_instruct(step: int, *, wrapped: bool = False) -> str:
    return (WRAPPED_PANEL if wrapped else WIDE_PANEL).format(step=step, total=f"{8 + step}.19")


def prime_rl_object(step: int) -> str:
    times = {"time/step": 10.0 + step, "time/forward_backward": 6.0, "time/wait_for_batch": 3.0}
    return json.dumps({"step": step, "time": 1.7e9 + step, **times, "perf/throughput": 11896.0}) + "\n"


TRAINER_STATE = json.dumps(
    {
        "best_metric": None,
        "epoch": 0.5,
        "log_history": [
            *({"step": step, "loss": 0.25, "num_tokens": 116.0 * step, "step_time": 4.0 + step} for step in STEPS),
            {"step": 3, "train_runtime": 15.0, "train_steps_per_second": 0.2},
        ],
    },
    indent=2,
)
CSV_TABLE = "Step,timing_s/gen,timing_s/step,note\n" + "".join(f"{step},{step}.5,{step + 4}.0,text\n" for step in STEPS)

SPREADSHEET = "\ufeffstep;timing_s/gen;timing_s/step\r\n" + "".join(
    f"{step};{step},5;{step + 4},0\r\n" for step in STEPS
)
PANEL = '"Step","my run - timing_s/gen","my run - timing_s/gen__MIN"\n' + "".join(
    f'"{step}","{step}.5","{step}.0"\n' for step in STEPS
)


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def message(tag: int, data: bytes) -> bytes:
    return varint(tag << 3 | 2) + varint(len(data)) + data


def event(step: int, scalars: dict[str, float], *, as_tensor: bool = False) -> bytes:
    """A record of an event file, as TensorBoard's writers make it."""
    values = b""
    for tag, number in scalars.items():
        packed = struct.pack("<f", number)
        tensor = varint(1 << 3) + varint(1) + message(2, b"") + message(5, packed)
        values += message(1, message(1, tag.encode()) + (message(8, tensor) if as_tensor else b"\x15" + packed))
    return record(b"\x09" + struct.pack("<d", 1.7e9 + step) + b"\x10" + varint(step) + message(5, values))


def record(data: bytes) -> bytes:
    header = struct.pack("<Q", len(data))
    return header + struct.pack("<I", masked_crc(header)) + data + struct.pack("<I", masked_crc(data))


FILE_VERSION = record(b"\x09" + struct.pack("<d", 1.7e9) + message(3, b"brain.Event:2"))
NEMO_EVENTS = FILE_VERSION + b"".join(
    event(step, {f"timing/train/{name}": number}, as_tensor=step == 2)
    for step in STEPS
    for name, number in (
        ("generation", 4.0 + step),
        ("policy_training", 3.0),
        ("total_step_time", 10.0 + step),
        ("valid_tokens_per_sec_per_gpu", 1523.0),
    )
)

# What verl prints before its first step: two processes write into each other's lines.
VERL_CONFIG = """\
\x1b[36m(main_task pid=9)\x1b[0m {'actor_rollout_ref': {'actor': {'ppo_mini_batch_size': 64, 'strategy': 'fsdp'},
(WorkerDict pid=10) {'noise': 1}
(main_task pid=9)                        'model': {'path': '/models/Qwen2.5-0.5B-Instruct'},
(main_task pid=9)                        'rollout': {'dtype': 'bfloat16', 'name': 'vllm',(WorkerDict pid=10) more noise
(main_task pid=9)                                    'tensor_model_parallel_size': 1}},
(main_task pid=9)  'algorithm': {'adv_estimator': 'gae'},
(main_task pid=9)  'data': {'max_prompt_length': 512, 'max_response_length': 256, 'train_batch_size': 256},
(main_task pid=9)  'trainer': {'device': 'cuda', 'n_gpus_per_node': 4, 'nnodes': 2}}
"""

SAMPLES: dict[str, tuple[str, bytes]] = {
    "openrlhf": ("openrlhf", "".join(map(openrlhf, STEPS)).encode()),
    "openrlhf, asynchronous": ("openrlhf", "".join(openrlhf(step, synchronous=False) for step in STEPS).encode()),
    "slime": ("slime", "".join(map(slime, STEPS)).encode()),
    "skyrl": ("skyrl", "".join(map(skyrl, STEPS)).encode()),
    "skyrl, short": ("skyrl", "".join(map(skyrl_short, STEPS)).encode()),
    "areal": ("areal", "".join(map(areal, STEPS)).encode()),
    "nemo-rl": ("nemo-rl", "".join(map(nemo_rl, STEPS)).encode()),
    "trl, quoted": ("trl", "".join(map(trl, STEPS)).encode()),
    "trl, plain": ("trl", "".join(trl(step, quoted=False) for step in STEPS).encode()),
    "trl-state": ("trl-state", TRAINER_STATE.encode()),
    "open-instruct, wide": ("open-instruct", "".join(map(open_instruct, STEPS)).encode()),
    "open-instruct, wrapped": ("open-instruct", "".join(open_instruct(step, wrapped=True) for step in STEPS).encode()),
    "prime-rl": ("prime-rl", "".join(map(prime_rl, STEPS)).encode()),
    "prime-rl, metrics.jsonl": ("jsonl", "".join(map(prime_rl_object, STEPS)).encode()),
    "tensorboard": ("tensorboard", NEMO_EVENTS),
    "csv": ("csv", CSV_TABLE.encode()),
    "csv, of a spreadsheet": ("csv", SPREADSHEET.encode()),
    "csv, of a panel": ("csv", PANEL.encode()),
}


def verl_log(
    folder: Path,
    name: str,
    *,
    step_s: float = 10.0,
    steps: int = 6,
    more: Mapping[int, str] | None = None,
    tokens: int = 8000,
    devices: int = 8,
    head: str = "",
) -> Path:
    """A console log of verl, on 8 devices: steps 1 and 2 take three times as long, gen is half of a step."""
    lines = []
    for step in range(1, steps + 1):
        seconds = step_s * (3 if step <= 2 else 1)
        throughput = tokens / seconds / devices
        lines.append(
            f"step:{step} - timing_s/gen:{seconds / 2} - timing_s/generate_sequences:{seconds / 4}"
            f" - timing_s/update_actor:{seconds / 4} - timing_s/step:{seconds}{(more or {}).get(step, '')}"
            f" - perf/total_num_tokens:{tokens} - perf/throughput:{throughput} - response_length/mean:100.0\n"
        )
    path = folder / name
    path.write_text(head + "".join(lines))
    return path
