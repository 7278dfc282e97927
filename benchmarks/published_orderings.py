"""What the model of a step says of placements that others have published, and how firm that is.

    python benchmarks/published_orderings.py

HybridFlow (arXiv:2409.19256, section 8.3) says in its text which placement was fastest on how many A100s; nothing in it
says what phases took. So each ordering is asked of 45 settings of what is not known: the shares of the peaks that
computing and memory reach, and how much of the rate is left on 128 GPUs, counted from 16 and from 8.

NeMo-RL publishes tables of whole steps (runs/reference/published/nemo_rl.csv): of each model on each hardware the first
on-policy row sets one factor, and the other rows are predicted. Nothing is fitted beyond that. Prints both as Markdown.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import log
from pathlib import Path
from statistics import fmean

import click

from placebench.predict.peaks import DevicePeak, known_peak
from placebench.predict.walk import step_times
from placebench.spec.phases import GEN, PHASE
from placebench.spec.placement import Overlap, Role

PUBLISHED = Path(__file__).parent.parent / "runs" / "reference" / "published"
PPO = ("gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights")
GRPO = tuple(name for name in PPO if name not in ("values", "update_critic", "reward"))
SETTINGS = tuple(product((0.3, 0.4, 0.5), (0.4, 0.6, 0.8), (1.0, 0.9, 0.8, 0.668, 0.55)))
# The paper's own mean strong-scaling efficiency, at the largest number of GPUs.
PAPER = 0.668
A100 = known_peak("NVIDIA A100-SXM4-80GB")
# Shares of the peaks that NeMo-RL's rows are predicted with, and those between which they may be.
USUAL, SHARES = (0.4, 0.6), tuple(product((0.2, 0.4, 0.6), (0.4, 0.6, 0.8)))


@dataclass(frozen=True)
class Model:
    """What a decoder takes."""

    parameters: float
    """That a token passes through."""
    weights: float
    """That an engine reads in a token step."""
    cache_bytes: float
    """Bytes of a token's keys and values."""
    shared_by: int
    """Devices that share an engine."""


# Llama 2 and Code Llama in float16, and engines as the paper's figure 15 finds them best.
M13 = Model(13.0e9, 13.0e9, 2 * 2 * 40 * 5120, 4)
M34 = Model(33.7e9, 33.7e9, 2 * 2 * 48 * 1024, 8)
M70 = Model(69.0e9, 69.0e9, 2 * 2 * 80 * 1024, 8)
# Of mixtures of experts a token passes through few of the parameters, and a batch reads all of them.
NEMO: Mapping[str, Model] = {
    "LLAMA3.1_8B": Model(8.0e9, 8.0e9, 2 * 2 * 32 * 1024, 1),
    "Qwen3-32B": Model(32.8e9, 32.8e9, 2 * 2 * 64 * 1024, 4),
    "Qwen3-30B3A": Model(3.3e9, 30.5e9, 2 * 2 * 48 * 512, 1),
    "Qwen3-235B": Model(22.0e9, 235e9, 2 * 2 * 94 * 512, 8),
    "DeepSeek V3": Model(37.0e9, 671e9, 2 * 61 * 576, 32),
}
HARDWARE: Mapping[str, str] = {"H100": "NVIDIA H100 80GB HBM3", "GB200": "NVIDIA GB200"}


@dataclass(frozen=True)
class Job:
    """Sequences of a step and what the devices reach."""

    models: Mapping[Role, Model]
    sequences: int
    prompt: float
    response: float
    peak: DevicePeak
    computing: float
    """Share of the peak that computing reaches."""
    reading: float
    """Share of the memory's rate that generation reaches."""
    kept: float = 1.0
    """Share of the rate of few devices that is left on 128."""
    few: int = 16
    """Devices up to which nothing is lost."""

    def seconds(self, name: str, devices: int) -> float:
        """What a phase takes."""
        phase = PHASE[name]
        if not phase.has_sequences:
            return 0.0
        model = self.models[Role.ACTOR if phase.role in (Role.ROLLOUT, Role.REF) else Role(str(phase.role))]
        rate = self.peak.flops * self.computing
        if name == GEN:
            return self._generation(model, devices, rate)
        tokens = self.sequences * (self.prompt + self.response)
        loss = float((max(devices, self.few) / self.few) ** (-log(self.kept) / log(128 / self.few)))
        return phase.activity.passes * 2 * model.parameters * tokens / devices / rate * loss

    def _generation(self, model: Model, devices: int, rate: float) -> float:
        """Token steps that read weights, keys and values, or compute, whichever takes longer; and the prompts."""
        shared_by = min(model.shared_by, devices)
        running = self.sequences * shared_by / devices
        context = self.prompt + self.response / 2
        read = (2 * model.weights + model.cache_bytes * context * running) / (self.peak.bandwidth * self.reading)
        step = max(read, 2 * model.parameters * running / rate) / shared_by
        return self.response * step + 2 * model.parameters * self.prompt * running / rate / shared_by

    def step(self, names: Sequence[str], pools: Mapping[Role, tuple[str, int]], staleness: int = 0) -> float:
        """A step with each role in a pool of a name and so many devices."""
        where = {name: pools[role] if (role := PHASE[name].role) else ("", 1) for name in names}
        _, whole = step_times(
            names,
            {name: self.seconds(name, devices) for name, (_, devices) in where.items()},
            {name: pool for name, (pool, _) in where.items()},
            Overlap.ALL,
            staleness=staleness,
            has_engines=pools[Role.ROLLOUT][0] != pools[Role.ACTOR][0],
        )
        return whole


def placements(devices: int) -> Mapping[str, Mapping[Role, tuple[str, int]]]:
    """The placements that the paper compares, on so many devices."""
    half, quarter, eighth = (devices // part for part in (2, 4, 8))
    acting = (Role.ACTOR, Role.ROLLOUT)
    return {
        "colocate": dict.fromkeys(Role, ("all", devices)),
        "split": dict.fromkeys((*acting, Role.REF), ("a", half))
        | dict.fromkeys((Role.CRITIC, Role.REWARD), ("b", devices - half)),
        "standalone": dict.fromkeys(acting, ("a", half))
        | {Role.CRITIC: ("b", quarter), Role.REF: ("c", eighth), Role.REWARD: ("d", eighth)},
        "critic apart": dict.fromkeys((*acting, Role.REF, Role.REWARD), ("a", half))
        | {Role.CRITIC: ("b", devices - half)},
    }


# Name, models of actor and critic, GPUs, the fastest one by the text, and what it is compared with.
ORDERINGS: tuple[tuple[str, Model, Model, tuple[int, ...], str], ...] = (
    ("13B, 16–64 GPUs", M13, M13, (16, 32, 64), "colocate"),
    ("34B, 16–64 GPUs", M34, M34, (16, 32, 64), "colocate"),
    ("13B actor, 70B critic, 64 GPUs", M13, M70, (64,), "colocate"),
    ("13B, 96 GPUs", M13, M13, (96,), "split"),
    ("13B, 128 GPUs", M13, M13, (128,), "standalone"),
    ("34B, 96–128 GPUs", M34, M34, (96, 128), "split"),
    ("13B actor, 70B critic, 96 GPUs", M13, M70, (96,), "split"),
    ("13B actor, 70B critic, 128 GPUs", M13, M70, (128,), "critic apart"),
)


@dataclass(frozen=True)
class Ordering:
    """A published ordering, and what the settings say of it."""

    name: str
    fastest: str
    holds: tuple[int, int]
    """Settings that give it, with losses counted from 16 and from 8 devices."""
    at_paper: tuple[int, int]
    """Of these, those with the paper's own efficiency, out of 9."""
    least: tuple[float, float]
    """There the least by which the next placement's step is longer; below 0 where another one is faster."""

    @property
    def verdict(self) -> str:
        """In words."""
        shares = [count / len(SETTINGS) for count in self.holds]
        if min(shares) >= 0.9:
            return "holds"
        return "does not come out" if max(shares) < 0.5 else "not firm"


def orderings() -> Iterator[Ordering]:
    """Every ordering of the text, asked of all settings."""
    for name, actor, critic, counts, fastest in ORDERINGS:
        models = {Role.ACTOR: actor, Role.CRITIC: critic, Role.REWARD: critic}
        holds, at_paper, least = [], [], []
        for few in (16, 8):
            leads = {
                setting: min(_lead(Job(models, 1024, 1024, 1024, A100, *setting, few), n, fastest) for n in counts)
                for setting in SETTINGS
            }
            paper = [lead for setting, lead in leads.items() if setting[2] == PAPER]
            holds.append(sum(lead > 0 for lead in leads.values()))
            at_paper.append(sum(lead > 0 for lead in paper))
            least.append(min(paper))
        yield Ordering(name, fastest, (holds[0], holds[1]), (at_paper[0], at_paper[1]), (least[0], least[1]))


def _lead(job: Job, devices: int, fastest: str) -> float:
    """By how much the next placement's step is longer than that of the one said to be fastest, a fraction."""
    steps = {name: job.step(PPO, pools) for name, pools in placements(devices).items()}
    return min(seconds for name, seconds in steps.items() if name != fastest) / steps[fastest] - 1


@dataclass(frozen=True)
class NemoRow:
    """A row of NeMo-RL's tables as it is predicted from the first on-policy one of its model and hardware."""

    where: str
    model: str
    policy: str
    gpus: int
    measured: float
    predicted: float
    is_first: bool


def nemo_rows(shares: tuple[float, float] = USUAL) -> Iterator[NemoRow]:
    """All rows of GRPO whose model and hardware have an on-policy row, at these shares of both peaks."""
    rows = [
        row
        for row in csv.DictReader((PUBLISHED / "nemo_rl.csv").read_text(encoding="utf-8").splitlines())
        if row["algorithm"] == "GRPO" and row["model"] in NEMO and row["policy"] in ("On policy", "1-step Off")
    ]
    key = ("version", "table", "model")
    for (version, table, model), group in groupby(rows, lambda row: tuple(row[name] for name in key)):
        hardware = "GB200" if "GB200" in table else "H100"
        where = f"{version}, {hardware}{' FP8' if 'FP8' in table else ''}"
        of_model = list(group)
        first = next((row for row in of_model if row["policy"] == "On policy"), None)
        for row in of_model if first else ():
            assert first
            factor = float(first["step_s"]) / _arithmetic(first, hardware, shares)
            measured = float(row["step_s"])
            predicted = factor * _arithmetic(row, hardware, shares)
            yield NemoRow(where, model, row["policy"], round(float(row["gpus"])), measured, predicted, row is first)


def _arithmetic(row: Mapping[str, str], hardware: str, shares: tuple[float, float]) -> float:
    """The step of a row before it is calibrated."""
    response, whole = float(row["g_avg_len"]), float(row["tokens_per_sample"])
    model = NEMO[row["model"]]
    peak = known_peak(HARDWARE[hardware])
    job = Job({Role.ACTOR: model}, round(float(row["g_gbs"])), whole - response, response, peak, *shares)
    devices, generating = round(float(row["gpus"])), round(float(row["gen_gpus"]))
    if row["policy"] == "On policy":
        return job.step(GRPO, dict.fromkeys(Role, ("all", devices)))
    training = dict.fromkeys(Role, ("learners", devices - generating))
    return job.step(GRPO, training | {Role.ROLLOUT: ("engines", generating)}, staleness=1)


@click.command()
def main() -> None:
    """Print the tables."""
    header = ("HybridFlow's text", "fastest", "of 45 settings", "of 9 at 66.8 %", "least lead there", "")
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for one in orderings():
        holds, at_paper = (f"{pair[0]}, {pair[1]}" for pair in (one.holds, one.at_paper))
        least = ", ".join(f"{100 * lead:+.0f} %" for lead in one.least)
        print(f"| {one.name} | {one.fastest} | {holds} | {at_paper} | {least} | {one.verdict} |")
    rows = list(nemo_rows())
    print("\n| NeMo-RL | model | policy | GPUs | published | predicted | error |\n|---|---|---|---|---|---|---|")
    for row in rows:
        error = "calibrated on it" if row.is_first else f"{100 * (row.predicted / row.measured - 1):+.0f} %"
        step = f"{row.measured:g} s | {row.predicted:.0f} s"
        print(f"| {row.where} | {row.model} | {row.policy} | {row.gpus} | {step} | {error} |")
    means = [_mean_error(list(nemo_rows(shares))) for shares in SHARES]
    print(
        f"\n{sum(not row.is_first for row in rows)} rows predicted: off by {100 * _mean_error(rows):.0f} % on average,"
        f" by {100 * min(means):.0f} to {100 * max(means):.0f} % at other shares of the peaks."
    )
    print(f"\n{_signs(rows)}")


def _mean_error(rows: Sequence[NemoRow]) -> float:
    return fmean(abs(row.predicted / row.measured - 1) for row in rows if not row.is_first)


def _signs(rows: Sequence[NemoRow]) -> str:
    """How often the policy that the table has as faster on as many GPUs is predicted to be faster."""
    pairs = [
        (one.measured < other.measured, one.predicted < other.predicted)
        for one, other in product(rows, rows)
        if (one.where, one.model, one.gpus) == (other.where, other.model, other.gpus)
        and (one.policy, other.policy) == ("On policy", "1-step Off")
    ]
    right = sum(measured is predicted for measured, predicted in pairs)
    return f"On as many GPUs, on-policy against 1-step off: the faster one is right in {right} of {len(pairs)} pairs."


if __name__ == "__main__":
    main()
