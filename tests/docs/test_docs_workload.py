"""docs/workload.md says of every key what its default is, and what the options, commands and files on it do."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from pages import ROOT, checkout, commands, shell

from placebench.cli import main
from placebench.commands.options import WORKLOAD_KEYS
from placebench.commands.run import run
from placebench.spec.shapes import PRESETS
from placebench.spec.workload import Workload, workload_keys
from placebench.spec.workload_reading import CODE, GRPO, RUN_KEYS, build_workload
from placebench.tasks.rewards import REWARDS

PAGE = (ROOT / "docs" / "workload.md").read_text(encoding="utf-8")
ROWS = {
    cells[0]: cells[1:]
    for cells in (
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in PAGE.splitlines()
        if re.match(r"\| `[a-z_.]+`", line)
    )
    if len(cells) == 3
}
KEYS = {re.findall(r"`([^`]+)`", cell)[0]: cell for cell in ROWS}


def defaults(model: str) -> dict[str, object]:
    content = build_workload({"model": model}).model_dump(mode="json")
    return {key: content[key] if "." not in key else content[key.split(".")[0]][key.split(".")[1]] for key in KEYS}


def shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def test_every_key_stands_there_once_in_order() -> None:
    assert list(KEYS) == list(workload_keys())
    assert len(ROWS) == len(KEYS)


def test_a_key_means_there_what_the_program_says() -> None:
    for key, cell in KEYS.items():
        section, _, name = key.rpartition(".")
        model = type(Workload.model_fields[section].default) if section else Workload
        told = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", ROWS[cell][1]).replace("`", "")
        assert model.model_fields[name].description == told, key


def test_the_defaults_are_those_of_the_program() -> None:
    small, real = defaults("tiny"), defaults("owner/name")
    for key, cell in KEYS.items():
        told = re.findall(r"`([^`]+)`", ROWS[cell][0])
        same = key == "model" or small[key] == real[key]
        assert told == ([shown(small[key])] if same else [shown(small[key]), shown(real[key])]), key
    preset = defaults("qwen2.5-0.5b")
    assert [key for key in KEYS if "`true` for presets but `tiny`" in ROWS[KEYS[key]][1]] == [
        key for key in KEYS if key != "model" and preset[key] != real[key]
    ]


def test_what_grpo_and_code_start_from_is_named() -> None:
    told = PAGE.split("With `algorithm.name=grpo`")[1].split("\n## ")[0].split("with\n`data.source=code`")
    for text, preset in zip(told, (GRPO, CODE), strict=True):
        for section, keys in preset.items():
            for key, value in keys.items():
                assert f"`{section}.{key}` {shown(value)}" in " ".join(text.split())


def test_options_presets_rewards_and_keys_of_the_run_are_all_named() -> None:
    flags = {param.name: param.opts + param.secondary_opts for param in run.params}
    for name, key in WORKLOAD_KEYS.items():
        assert re.findall(r"`(--[^`]+)`", KEYS[key]) == flags[name]
    assert all(f"`{name}`" in ROWS[KEYS["model"]][1] for name in PRESETS)
    assert all(f"| `{name}` |" in PAGE and f"`{name}`" in ROWS[KEYS["data.reward"]][1] for name in REWARDS)
    (config,) = re.findall(r"^```yaml\n# bench.yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert tuple(re.findall(r"^(\w+):", config, re.MULTILINE))[: len(RUN_KEYS)] == tuple(RUN_KEYS)


def test_its_commands_run(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    for language, name in (("yaml", "bench.yaml"), ("python", "rewards.py")):
        (content,) = re.findall(rf"^```{language}\n(# {name}.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        (tmp_path / name).write_text(content)
    found = commands(PAGE)
    assert len(found) == 5
    for command in found:
        assert " --dry-run" in command or " --print-config" in command
        shell(command, tmp_path, environment)


def test_its_line_of_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (row,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    Path("mine.jsonl").write_text(row)
    result = CliRunner().invoke(main, ["run", "--dry-run", "--devices", "cpu:2", "--set", "data.source=mine.jsonl"])
    assert (result.exit_code, result.stderr) == (0, "")


def ranges() -> dict[str, str]:
    """From and to of every number of a workload, as the page says it."""
    schema = Workload.model_json_schema()
    found = {}
    for key in workload_keys():
        section, _, name = key.rpartition(".")
        fields = schema["$defs"][type(Workload.model_fields[section].default).__name__] if section else schema
        field = fields["properties"][name]
        parts = (field, *field.get("anyOf", ()), *field.get("prefixItems", ()))
        for bounds in (part for part in parts if "maximum" in part or "exclusiveMaximum" in part):
            excluded = bounds.get("exclusiveMaximum")
            to = f"below {excluded}" if excluded else bounds["maximum"]
            least = bounds["minimum"] if "minimum" in bounds else bounds["exclusiveMinimum"] + 1
            found[key] = f"{least:.9g} to {to if isinstance(to, str) else format(to, ',.10g')}"
    return found


def test_numbers_are_taken_in_the_ranges_that_it_names() -> None:
    rows = re.findall(r"^\| (`[a-z_.`, ]+`) \| ([0-9][^|`]* to [^|`]+) \|$", PAGE, re.MULTILINE)
    assert {key: told for keys, told in rows for key in re.findall("`([^`]+)`", keys)} == ranges()
