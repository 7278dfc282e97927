"""What a model is: `predict`, `search`, `placements` and a dry run of `run` agree on it, in the same words."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from placebench.cli import main

COMMANDS = (
    ("predict", "--gpu", "H100", "--devices", "gpu:1", "--placements", "standard"),
    ("search", "--gpu", "H100", "--devices", "gpu:1"),
    ("placements", "--devices", "gpu:1x1"),
    ("run", "--dry-run", "--devices", "gpu:1x1", "--placements", "standard", "--set", "rollout.backend=torch"),
)
QWEN = {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24} | {
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}
NO_WEIGHTS = "no weights there, such as model.safetensors; copy them there, or save the model again"


@pytest.mark.parametrize(
    ("settings", "reasons"),
    [
        (
            ("model=qwen",),
            [
                f"--model qwen: {NO_WEIGHTS}",
                "--model qwen: no tokenizer there, such as tokenizer.json; save the model's tokenizer there",
            ],
        ),
        (("model=qwen2.5-0.5b", "critic_model=qwen"), [f"critic_model qwen: {NO_WEIGHTS}"]),
        (
            ("model=qwen2.5-0.5b", "reward_model=qwen"),
            [
                f"reward_model qwen: {NO_WEIGHTS}",
                "reward_model qwen: gives 2 scores; name a sequence classifier with a single one",
            ],
        ),
        (("model=empty",), ["empty: no config.json there; --model takes the folder of a saved model"]),
    ],
)
def test_four_commands_refuse_a_model_in_the_same_words(
    settings: tuple[str, ...], reasons: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("qwen").mkdir()
    Path("qwen/config.json").write_text(json.dumps(QWEN))
    for words in COMMANDS:
        result = CliRunner().invoke(main, [*words, *(f"--set={one}" for one in settings)], prog_name="placebench")
        lines = [line.removeprefix("placebench: ") for line in result.stderr.splitlines()]
        assert (words[0], result.exit_code, lines) == (words[0], 2, reasons)
