"""Variables of a user's shell script: which of them are known before it runs, and what depends on it."""

from pathlib import Path

import pytest
from fake_jobs import write
from hypothesis import given
from hypothesis import strategies as st
from told_settings import job

from placebench.errors import UsageError
from placebench.jobs.scripts import Given, read_command
from placebench.jobs.shell_variables import ShellVariables


@pytest.mark.parametrize(
    ("script", "text", "filled"),
    [
        ("adv=grpo", "$adv ${adv} ${adv:-gae}", "grpo grpo grpo"),
        ("export A=1 B='2'; C=\"3\"", "$A$B$C", "123"),
        ("local adv=grpo && true", "$adv", "grpo"),
        ("if x; then adv=grpo; fi", "$adv", "grpo"),
        ("if x; then adv=grpo; else adv=gae; fi", "$adv", "$adv"),
        ("adv=grpo\nadv=grpo", "$adv", "grpo"),
        ("base=/m\nmodel=${base}/q", "$model", "/m/q"),
        ("model=${1:-grpo}", "$model", "$model"),
        ("n=$(nproc)", "$n", "$n"),
        ("n=`nproc`", "$n", "$n"),
        ("n=(1 2)", "$n", "$n"),
        ("n=1\nn+=2", "$n", "$n"),
        ("n=1\nfor n in 1 2; do x; done", "$n", "$n"),
        ("read -r n", "$n", "$n"),
        ("a=$b; b=$a", "$a", "$a"),
        ("python x.py n=3", "${n:-4}", "4"),
        ("", "${N:-4} ${SET:-4} ${SET-4} ${EMPTY:-4} ${EMPTY-4} $N", "4 5 5 4  $N"),
        ("", "${OPEN:-4} $OPEN", "${OPEN:-4} $OPEN"),
        ("SET=${SET:-4}; N=${N:-4}", "$SET $N", "5 4"),
        ("a=${N:-$SET}", "$a", "5"),
        ("source more.sh", "${N:-4}", "${N:-4}"),
        (". ~/rl/bin/activate", "${N:-4}", "4"),
        ("n='it is", "$n", "$n"),
        ("n=1 \\\n  m=2", "$n$m", "12"),
    ],
)
def test_references_are_filled_where_their_values_are_known(script: str, text: str, filled: str) -> None:
    environment = {"SET": "5", "EMPTY": "", "OPEN": "$"}
    assert ShellVariables(script, environment).filled(text) == filled


def test_without_an_environment_only_what_the_script_sets_is_known() -> None:
    assert ShellVariables("a=1", None).filled("$a ${b:-2}") == "1 ${b:-2}"


@given(st.text(), st.text())
def test_no_script_is_in_the_way(script: str, text: str) -> None:
    assert ShellVariables(f"{script}\nlast=1", {}).filled(f"{text} plain").endswith(" plain")


def test_only_a_shell_fills_in_what_stands_in_a_command() -> None:
    text = "n=3; train --rank=$n"
    assert Given(("bash", "-c", text), {}, {}).settings["rank"] == "3"
    assert "rank" not in Given(("env", "n=3", "train", "--rank=$n"), {}, {}).settings


def test_variables_in_front_of_a_script_are_its_environment(tmp_path: Path) -> None:
    write(tmp_path, "run.sh", 'train --rank ${RANKS:-4} "$@"\n')
    assert read_command(("env", "RANKS=8", "bash", "run.sh"), tmp_path, {}).number("rank") == 8
    assert read_command(("bash", "run.sh"), tmp_path, {"RANKS": "2"}).number("rank") == 2
    assert read_command(("bash", "run.sh"), tmp_path, {}).number("rank") == 4


VERL = 'python3 -m verl.trainer.main_ppo algorithm.adv_estimator={} "$@"\n'


@pytest.mark.parametrize(
    "script",
    [
        f"adv_estimator=grpo\n{VERL.format('${adv_estimator}')}",
        VERL.format("${ADV:-grpo}"),
        VERL.format("$ESTIMATOR"),
    ],
)
def test_an_estimator_in_a_variable_counts_as_if_it_stood_there(tmp_path: Path, script: str) -> None:
    write(tmp_path, "run.sh", script)
    asked = job("verl", "bash run.sh", tmp_path, env={"ESTIMATOR": "grpo"})
    with pytest.raises(UsageError, match=r"algorithm\.adv_estimator=grpo trains no critic"):
        asked.placement("split:3+1", (4,), "gpu")
    assert asked.remarks == ()


@pytest.mark.parametrize("keys", [{}, {"placements": {"split:3+1": {"env": {"ADV": "gae"}}}}])
def test_of_an_estimator_that_nobody_knows_there_is_a_note(tmp_path: Path, keys: dict[str, object]) -> None:
    write(tmp_path, "run.sh", VERL.format("${ADV:-grpo}" if keys else "$1"))
    asked = job("verl", "bash run.sh", tmp_path, **keys)
    assert asked.placement("split:3+1", (4,), "gpu").name == "split:3+1"
    remark, of_critic = asked.remarks
    assert of_critic.startswith("verl starts a critic's value head from new random weights")
    assert remark.startswith(f"algorithm.adv_estimator is {'${ADV:-grpo}' if keys else '$1'}, which is known only when")
    assert remark in asked.record.notes
