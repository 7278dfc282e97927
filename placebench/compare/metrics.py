"""What the numbers of a comparison are called, in which unit they are, and which side of them is better."""

from collections.abc import Iterable
from dataclasses import dataclass

from placebench.compare.statistics.verdicts import Better
from placebench.spec.phases import PHASES, phase_order
from placebench.spec.placement import Role

# Phases of models whose work is known; the reward may be a function, and what generates is bound by its memory.
COMPUTING = tuple(phase for phase in PHASES if phase.has_sequences and phase.role not in (Role.ROLLOUT, Role.REWARD))


@dataclass(frozen=True)
class Metric:
    """One number of a placement."""

    key: str
    """Its name in frames and files, such as `phase/gen`."""
    label: str
    """Its name for people."""
    unit: str
    """`s`, `tokens/s`, `1` (a share), `B`, `B/s`, `J`, `tokens/J`, `sequences`, `updates`."""
    meaning: str
    """One line that defines it."""
    better: Better = Better.NEITHER
    """What a larger value means."""


STEP_TIME = Metric("step_time", "step", "s", "wall time of a training step", Better.LESS)
LOG_CLOCK = Metric(
    "log_clock", "step by the log's clock", "s", "time between the lines of consecutive steps of a log", Better.LESS
)
UNATTRIBUTED = Metric("unattributed", "unattributed", "s", "step without the time in which any phase was under way")
HIDDEN = Metric("hidden", "hidden by overlap", "s", "busy time of every pool summed, without that of all together")
TOKENS = Metric(
    "tokens_per_s", "tokens/s", "tokens/s", "real tokens of prompts and responses / wall time of the step", Better.MORE
)
TOKENS_PER_DEVICE = Metric(
    "tokens_per_s_per_device", "tokens/s/device", "tokens/s", "the same / all devices allocated", Better.MORE
)
# Names of the parts of a step, and of what lies beside them, begin with these; see `critical_path`.
PATH, GAP, OFF_PATH, IMBALANCE, BESIDE = "path/", "gap/", "off_path/", "imbalance/", "beside/"
PATH_KEYS = (PATH, GAP, OFF_PATH, IMBALANCE, BESIDE)
# The gap behind a step's last phase, and what a device waits for that waits for no phase of another pool.
END, NO_PHASE, OWN_POOL = "end of the step", "no phase", "own pool"
# Share of the step from which a part of it is worth a word.
NOTABLE = 0.01
FORMULAS = (
    "MFU: FLOPs / (time · devices · dense bfloat16 peak). A token takes 6·N + 12·layers·width·length FLOPs in training"
    " and 2·N + 4·layers·width·length in a forward pass, where width is that of all heads. Attention is not counted as"
    " causal, the output head is counted for every token, and recomputation is left out. MBU: bytes of weights, keys"
    " and values that decoding reads / (time · devices · peak of the memory)."
)
# One question, the step time, and the same in other units: what a comparison is made for.
HEADLINES = (STEP_TIME.key, LOG_CLOCK.key, TOKENS.key, TOKENS_PER_DEVICE.key)
LOAD = Metric("load", "device load", "1", "mean over measured steps and devices")
MEMORY = Metric(
    "peak_memory", "peak memory", "B", "highest sample of the fullest device in a launch, up to its last step"
)
IDLE = Metric("idle", "idle", "s", "step without the device's own phases, mean of the devices")
ENERGY = Metric("energy", "energy per step", "J", "of all devices, from their energy counters, mean of the steps")

TOKENS_PER_J = Metric("tokens_per_j", "tokens/J", "tokens/J", "tokens of all steps / energy of all devices in them")
WEIGHTS_RATE = Metric("weights_rate", "weights written", "B/s", "weights a device gets / time of update_weights")
MBU = Metric(
    "mbu/gen",
    "MBU gen",
    "1",
    "bytes that decoding must read (weights for each token of the longest response, keys and values)"
    " / time of gen / the pool's peak of memory traffic",
)
TRAINER_WAIT = Metric("queues/trainer_wait", "learners wait", "s", "step in which training only waits for sequences")
ENGINE_WAIT = Metric("queues/engine_wait", "engines wait", "s", "step in which an engine has nothing to do, their mean")
TRAINER_TOKENS = Metric(
    "trainer_tokens_per_s", "learners' tokens/s", "tokens/s", "tokens / step without learners' wait"
)
ENGINE_TOKENS = Metric(
    "engine_tokens_per_s",
    "engines' tokens/s",
    "tokens/s",
    "tokens of prompts and responses that engines finish / time in which they generate, all engines together",
)
QUEUE = Metric("flow/fill", "queue", "sequences", "sequences that wait for the trainer, mean over the step")
LAG = Metric("flow/lag", "lag", "updates", "updates by which the weights that generated lag behind, mean")
DROPPED = Metric("flow/dropped", "dropped", "sequences", "sequences of a step that were too old")
ENGINES = (TRAINER_WAIT, ENGINE_WAIT, TRAINER_TOKENS, ENGINE_TOKENS, QUEUE, LAG, DROPPED)
_FLOPS = {
    True: "(6·N + 12·layers·width·length) · tokens · epochs",
    False: "(2·N + 4·layers·width·length) · tokens",
}


def mfu_metric(phase: str, trains: bool) -> Metric:
    """How much of its pool's peak a phase uses."""
    counted = "attention not counted as causal, the output head for every token"
    meaning = f"{_FLOPS[trains]} / time of {phase} / the pool's bfloat16 peak, {counted}"
    return Metric(f"mfu/{phase}", f"MFU {phase}", "1", meaning)


def clocked_mfu_metric(phase: str) -> Metric:
    """How much of what its pool can do at the clock that it had a phase uses."""
    meaning = f"MFU of {phase} · SM clock of the peak / mean SM clock in {phase}: power and heat hold clocks down"
    return Metric(f"clocked_mfu/{phase}", f"MFU {phase} at its clock", "1", meaning)


EFFICIENCY = (
    *(mfu_metric(phase.name, phase.trains) for phase in COMPUTING),
    *(clocked_mfu_metric(phase.name) for phase in COMPUTING if phase.trains),
    MBU,
    WEIGHTS_RATE,
)


def phase_metric(phase: str) -> Metric:
    """A phase in its device view."""
    return Metric(f"phase/{phase}", phase, "s", "time of the device that worked longest on the phase", Better.LESS)


def controller_metric(phase: str) -> Metric:
    """A phase in the controller's view."""
    return Metric(f"controller/{phase}", phase, "s", "from submission of the phase to its result", Better.LESS)


def part_metric(name: str) -> Metric:
    """A time of a log that is never added to others."""
    return Metric(f"part/{name}", name, "s", "part of a phase, or time outside the step", Better.LESS)


def device_metrics(device: str) -> tuple[Metric, ...]:
    """The numbers of one device: load, peak memory, idle time, energy."""
    return (
        Metric(f"load/{device}", "load", "1", "mean over measured steps"),
        Metric(f"peak_memory/{device}", "peak memory", "B", "highest sample of a launch, up to its last step"),
        Metric(f"idle/{device}", "idle", "s", "step without the device's own phases"),
        Metric(f"energy/{device}", "energy per step", "J", "from the device's energy counter, mean of the steps"),
    )


def pool_metrics(pool: str) -> tuple[Metric, ...]:
    """Those numbers of the devices that a pool had in each launch, together."""
    return (
        Metric(f"load_in/{pool}", "load", "1", "mean over measured steps and devices"),
        Metric(f"peak_memory_in/{pool}", "peak memory", "B", "highest sample of a launch, up to its last step"),
        Metric(f"idle_in/{pool}", "idle", "s", "step without the device's own phases, mean of the devices"),
        Metric(f"energy_in/{pool}", "energy per step", "J", "from the energy counters of all devices"),
    )


def wait_metrics(device: str) -> tuple[Metric, ...]:
    """What one device waited for: idle time by cause, and of a traced GPU what lies inside its phases (`waits`)."""
    return (
        Metric(f"wait_nothing_to_do/{device}", "nothing to do", "s", "idle while no other device of its pool works"),
        Metric(f"wait_slower_ranks/{device}", "slower ranks", "s", "idle while another rank of its pool works"),
        Metric(
            f"wait_slower_ranks_inside/{device}",
            "slower ranks, inside phases",
            "s",
            "time in collectives alone, less that of the rank of its pool with the least",
        ),
        Metric(
            f"wait_collectives/{device}",
            "collectives",
            "s",
            "time in collectives alone, of the rank of its pool with the least",
        ),
        Metric(f"wait_host/{device}", "host", "s", "time in phases with nothing on the device"),
        Metric(f"not_traced/{device}", "not traced", "s", "time in phases of which there is no trace"),
    )


def placement_metrics(phases: Iterable[str]) -> tuple[Metric, ...]:
    """The numbers that stand side by side for placements, in the order of the tables."""
    return (
        STEP_TIME,
        *(phase_metric(phase) for phase in phase_order(phases)),
        UNATTRIBUTED,
        HIDDEN,
        TOKENS,
        TOKENS_PER_DEVICE,
        *ENGINES,
        LOAD,
        MEMORY,
        IDLE,
        ENERGY,
        TOKENS_PER_J,
        *EFFICIENCY,
    )
