"""What timings are to their step, on logs whose arithmetic is known."""

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placebench.logs.timing import PLACEBENCH_TIMING, VERL_TIMING, Kind, TimingRules, Timings, timings_of
from placebench.spec.phases import PHASE_ORDER, phase_order

Steps = dict[int, dict[str, float]]


def timings_in(steps: Steps, rules: TimingRules = VERL_TIMING) -> Timings:
    found = timings_of(pd.DataFrame.from_dict(steps, orient="index"), rules)
    assert found is not None
    return found


def kinds(steps: Steps, rules: TimingRules = VERL_TIMING) -> dict[str, str]:
    return {phase: kind.value for phase, kind in timings_in(steps, rules).kinds.items()}


def seconds_of(phase: str, steps: Steps, rules: TimingRules = VERL_TIMING) -> dict[int, float]:
    return {int(str(step)): value for step, value in timings_in(steps, rules).seconds[phase].dropna().items()}


def timings(**seconds: float) -> dict[str, float]:
    return {f"timing_s/{name}": value for name, value in seconds.items()}


def test_both_prefixes_give_phases_and_the_newer_counts() -> None:
    steps = {1: {"timing/gen": 1.0, "timing/adv": 2.0, "timing_s/gen": 3.0, "critic/kl": 9.0}}
    assert seconds_of("gen", steps) == {1: 3.0}
    assert seconds_of("adv", steps) == {1: 2.0}
    assert "critic/kl" not in kinds(steps)


def test_phases_stand_in_the_order_of_the_step_graph() -> None:
    names = ["step", "zeta", *reversed(PHASE_ORDER), "unattributed", "alpha"]
    assert phase_order(names) == [*PHASE_ORDER, "alpha", "zeta", "unattributed", "step"]
    steps = {1: timings(**dict.fromkeys(names, 0.0))}
    assert list(timings_in(steps).tidy("a")["phase"]) == phase_order(names)


def test_unattributed_is_the_step_without_its_serial_phases() -> None:
    steps = {
        1: timings(gen=2.0, adv=1.0, step=10.0),
        2: timings(gen=2.0, adv=1.0, generate_sequences=1.5, reshard=0.5, step=3.5),
        3: timings(gen=2.0, adv=1.0, step=2.999),
    }
    assert seconds_of("unattributed", steps) == pytest.approx({1: 7.0, 2: 0.5, 3: 0.0})
    assert kinds(steps)["reshard"] == Kind.DETAIL


def test_details_and_counts_are_no_phases() -> None:
    details = {
        "timing_s/agent_loop/generate_sequences/max": 1.0,
        "timing_s/generation_timing/max": 1.0,
        "timing_s/timing_s/param_sync": 1.0,
    }
    counts = {
        "timing_s/agent_loop/num_preempted/mean": 5.0,
        "timing_s/agent_loop/slowest/prompt_length": 5.0,
        "timing_s/generation_timing/topk_ratio": 5.0,
    }
    found = kinds({1: {**timings(gen=1.0, step=1.0), **details, **counts}})
    assert set(found) == {"gen", "step", "unattributed", *(name.removeprefix("timing_s/") for name in details)}
    assert [phase for phase, kind in found.items() if kind == Kind.PHASE] == ["gen"]


def test_without_a_step_time_nothing_is_unattributed() -> None:
    assert kinds({1: {"timing/gen": 1.0, "timing/adv": 1.0}}) == {"gen": Kind.PHASE, "adv": Kind.PHASE}


def test_phases_that_exceed_the_step_overlap() -> None:
    found = kinds({1: timings(gen=2.0, update_actor=2.0, update_critic=2.0, step=4.1)})
    assert found == {
        "gen": Kind.OVERLAP,
        "update_critic": Kind.OVERLAP,
        "update_actor": Kind.OVERLAP,
        "step": Kind.STEP,
    }


def test_generation_beside_the_step_is_not_part_of_it() -> None:
    steps = {1: timings(generate_async=9.0, gen=1.0, update_actor=2.0, step=4.0)}
    assert kinds(steps)["generate_async"] == Kind.OVERLAP
    assert kinds(steps)["gen"] == Kind.PHASE
    assert seconds_of("unattributed", steps) == {1: 1.0}


def test_nothing_is_unattributed_where_no_phase_is_known() -> None:
    assert set(kinds({1: timings(step=4.0), 2: timings(step=5.0)})) == {"step"}
    upkeep = {step: timings(step=4.0 + step % 2, **({"testing": 1.0} if step % 2 else {})) for step in range(6)}
    assert set(kinds(upkeep)) == {"step", "testing"}
    some = {1: timings(gen=3.0, step=4.0), 2: timings(step=5.0)}
    assert seconds_of("unattributed", some) == pytest.approx({1: 1.0})


def test_the_logs_own_unattributed_is_taken() -> None:
    serial = {1: timings(gen=2.0, adv=1.0, unattributed=0.5, step=3.5)}
    assert seconds_of("unattributed", serial, PLACEBENCH_TIMING) == {1: 0.5}
    assert kinds(serial, PLACEBENCH_TIMING)["gen"] == Kind.PHASE
    # 2 s of phases overlap and 1.5 s are idle: the sum alone would look serial.
    overlapping = {1: timings(gen=2.0, ref=2.0, values=2.0, unattributed=2.5, step=6.5)}
    assert seconds_of("unattributed", overlapping, PLACEBENCH_TIMING) == {1: 2.5}
    assert kinds(overlapping, PLACEBENCH_TIMING)["gen"] == Kind.OVERLAP


@pytest.mark.parametrize("whole", [{"step": 6.5}, {}])
def test_phases_that_may_overlap_are_not_summed(whole: dict[str, float]) -> None:
    found = kinds({1: timings(gen=2.0, ref=2.0, **whole)}, PLACEBENCH_TIMING)
    assert found["gen"] == found["ref"] == Kind.OVERLAP
    assert "unattributed" not in found


moved = st.fixed_dictionaries({"testing": st.floats(0.5, 90), "save_checkpoint": st.floats(0.5, 90)})


@settings(deadline=None, max_examples=30)
@given(
    gen=st.floats(0.1, 90),
    idle=st.floats(0, 30),
    lengths=moved,
    inside=st.fixed_dictionaries({"testing": st.booleans(), "save_checkpoint": st.booleans()}),
    jitter=st.lists(st.floats(-0.05, 0.05), min_size=12, max_size=12),
)
def test_the_log_shows_whether_validation_is_inside_the_step(
    gen: float, idle: float, lengths: dict[str, float], inside: dict[str, bool], jitter: list[float]
) -> None:
    steps: Steps = {}
    for step, noise in enumerate(jitter):
        extra = {name: lengths[name] for name, every in (("testing", 3), ("save_checkpoint", 4)) if step % every == 1}
        whole = gen + idle + 0.05 + noise + sum(extra[name] for name in extra if inside[name])
        steps[step] = timings(gen=gen, step=whole, **extra)
    found = kinds(steps)
    for name, is_inside in inside.items():
        assert found[name] == (Kind.PHASE if is_inside else Kind.OUTSIDE)


def test_validation_on_every_step_is_outside_if_it_does_not_fit() -> None:
    for whole, kind in ((3.1, Kind.OUTSIDE), (5.1, Kind.PHASE)):
        assert kinds({step: timings(gen=3.0, testing=2.0, step=whole) for step in range(3)})["testing"] == kind


def test_a_zero_says_that_there_was_no_validation() -> None:
    steps = {step: timings(gen=3.0, testing=0.0, save_checkpoint=0.0, step=3.1 + 0.01 * step) for step in range(6)}
    assert set(kinds(steps)) == {"gen", "step", "unattributed"}
    steps[2] |= timings(testing=2.0, step=5.12)
    assert kinds(steps)["testing"] == Kind.PHASE
    assert seconds_of("testing", steps) == {2: 2.0}
    assert seconds_of("unattributed", steps)[2] == pytest.approx(0.12)
    # Beside it, the step stays as it is.
    steps[2] |= timings(step=3.12)
    assert kinds(steps)["testing"] == Kind.OUTSIDE


def test_without_seconds_there_are_no_timings() -> None:
    assert timings_of(pd.DataFrame({"critic/kl": [1.0, 2.0]}, [1, 2])) is None
    assert timings_of(pd.DataFrame({"timing_s/gen": [float("nan"), float("inf")]}, [1, 2])) is None
    assert timings_of(pd.DataFrame(index=pd.Index([], dtype="int64"))) is None
