"""Models saved in a folder: what is refused, before a run and when they are loaded."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import run_job, save_model

from placebench.errors import JobExit, LaunchError, UsageError
from placebench.plan.workload_checks import unusable_workload
from placebench.ppo.batch import SequenceBatch
from placebench.ppo.generation import Generation
from placebench.ppo.models import PolicyModel, load_critic_model, load_language_model
from placebench.ppo.passes import log_probs
from placebench.ppo.training import TrainedModel
from placebench.spec.shapes import PRESETS
from placebench.spec.workload import Data, Workload
from placebench.spec.workload_reading import build_workload
from placebench.tasks.data import FilePrompts, Prompt, open_prompts
from placebench.tasks.prompt_lengths import too_long
from placebench.tasks.tokenizer import CharacterTokenizer, ModelTokenizer


def save_plain_model(folder: Path, kind: str, **settings: Any) -> Any:
    """A small language model of another architecture, saved; returns it, ready to be used."""
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = transformers.AutoConfig.for_model(kind, **sizes, **heads, **settings)
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    return model.eval()


def test_a_critic_reads_all_of_the_actors_words() -> None:
    words = PRESETS["tiny"].vocab_size
    assert load_critic_model("tiny", words - 1).value_head.out_features == 1
    with pytest.raises(UsageError, match=f"critic_model tiny: .* {words} words, fewer than the actor's {words + 1}"):
        load_critic_model("tiny", words + 1)


def test_a_model_that_is_trained_drops_nothing_out(tmp_path: Path, alone: None) -> None:
    plain = save_plain_model(tmp_path, "starcoder2", residual_dropout=0.5)
    module = PolicyModel(load_language_model(str(tmp_path)), 1.0, torch.float32, compiled=False)
    trained = TrainedModel(module, build_workload({}), torch.device("cpu"), 0, 1e-5)
    batch = SequenceBatch.build([[1, 2, 3]], [[4, 5, 6, 7]])
    found = trained.per_token(batch, log_probs)
    with torch.no_grad():
        table = plain(torch.tensor([[1, 2, 3, 4, 5, 6, 7]])).logits.log_softmax(-1)[0]
    np.testing.assert_allclose(found, [float(table[2 + number, 4 + number]) for number in range(4)], atol=1e-5)


def test_an_output_head_with_a_bias_is_refused(tmp_path: Path) -> None:
    save_plain_model(tmp_path, "phi")
    reason = f"--model {tmp_path}: its output head has a bias, which is not supported; choose another model"
    with pytest.raises(UsageError, match=re.escape(reason)):
        load_language_model(str(tmp_path))
    assert reason in list(unusable_workload(build_workload({"model": str(tmp_path)})))


@pytest.mark.parametrize(
    ("kind", "settings", "blocks"),
    [
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "conv"),
        ("falcon_h1", {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64}, "hybrid"),
    ],
)
def test_blocks_that_carry_one_packed_sequence_into_the_next_are_refused(
    tmp_path: Path, kind: str, settings: dict[str, Any], blocks: str
) -> None:
    save_plain_model(tmp_path, kind, **settings)
    with pytest.raises(UsageError, match=rf"^--model .*: has {blocks} blocks, which are not supported; choose another"):
        load_language_model(str(tmp_path))
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"layer_types": [blocks, "full_attention"]}))
    (reason,) = unusable_workload(build_workload({"model": str(tmp_path)}))
    assert reason == f"{config}: has {blocks} blocks, which are not supported; choose another model"


def test_blocks_that_are_not_where_they_are_looked_for_are_refused(tmp_path: Path) -> None:
    save_plain_model(tmp_path, "gpt_neox")
    with pytest.raises(UsageError, match=r"has no model\.layers and lm_head as Llama has them"):
        load_language_model(str(tmp_path))


def test_blocks_that_do_not_say_where_sequences_begin_are_refused(tmp_path: Path, alone: None) -> None:
    save_plain_model(tmp_path, "stablelm")
    module = PolicyModel(load_language_model(str(tmp_path)), 1.0, torch.float32, compiled=False)
    trained = TrainedModel(module, build_workload({}), torch.device("cpu"), 0, 1e-5)
    with pytest.raises(LaunchError, match="do not tell attention where sequences begin; choose another model"):
        trained.per_token(SequenceBatch.build([[1]], [[2]]), log_probs)


def saved(folder: Path, **models: str) -> Workload:
    """The job of a model that is saved there with its tokenizer."""
    save_plain_model(folder, "llama")
    (folder / "tokenizer.json").write_text("{}")
    content = {"rollout": {"backend": "torch"}, "batch": {"max_prompt_length": 8}, "model": str(folder), **models}
    return build_workload(content)


def test_weights_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    workload = saved(tmp_path)
    assert list(unusable_workload(workload)) == []
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (reason,) = unusable_workload(workload)
    assert reason.startswith(f"--model {tmp_path}: cannot read model.safetensors: ")
    assert reason.endswith("; save the model again")


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    workload = saved(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.rename(tmp_path / "model-00001-of-00002.safetensors")
    shards = {
        "lm_head.weight": "model-00002-of-00002.safetensors",
        "model.norm.weight": "model-00001-of-00002.safetensors",
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (reason,) = unusable_workload(workload)
    assert reason.startswith(f"--model {tmp_path}: model.safetensors.index.json names model-00002-of-00002")
    for file in tmp_path.glob("model*"):
        file.unlink()
    (reason,) = unusable_workload(workload)
    assert reason.startswith(f"--model {tmp_path}: no weights there, such as model.safetensors;")
    (reason,) = unusable_workload(workload.model_copy(update={"model": "tiny", "critic_model": str(tmp_path)}))
    assert reason.startswith(f"critic_model {tmp_path}: no weights there")
    (tmp_path / "pytorch_model.bin").touch()
    assert list(unusable_workload(workload)) == []


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("vocab_size", 80, "the embedding in model.safetensors is 64 x 32, but config.json has vocab_size 80 and"),
        ("layer_types", ["full_attention"], "config.json: num_hidden_layers is 2 and layer_types names 1; make them"),
    ],
)
def test_a_config_that_contradicts_itself_or_the_weights_is_refused(
    tmp_path: Path, key: str, value: object, reason: str
) -> None:
    workload = saved(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {key: value}))
    (found,) = unusable_workload(workload)
    assert reason in found
    if key == "vocab_size":
        with pytest.raises(UsageError, match="its weights have other sizes than its config"):
            load_language_model(str(tmp_path))


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    workload = saved(tmp_path)
    (tmp_path / "tokenizer.json").rename(tmp_path / "tokenizer_config.json")
    (reason,) = unusable_workload(workload)
    assert reason.startswith(f"--model {tmp_path}: no tokenizer there, such as tokenizer.json; ")
    assert list(unusable_workload(workload.model_copy(update={"model": "tiny", "critic_model": str(tmp_path)}))) == []


def test_a_tokenizer_that_knows_no_words_is_told() -> None:
    class NoWords(CharacterTokenizer):
        def encode(self, text: str) -> list[int]:
            return []

    workload = build_workload({})
    generation = Generation(workload, open_prompts(workload.data, 0, 16), NoWords())
    with pytest.raises(UsageError, match="the tokenizer of tiny gives no tokens for the prompt"):
        generation.arguments(1, generation.step_prompts(1), [0])


def test_prompts_that_are_too_long_for_a_model_end_its_launch_before_anything_starts(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    prompts = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"prompt": "1+" * length + "1=", "answer": "3"}) for length in (3, 1, 9, 12, 2)]
    prompts.write_text("\n".join(["", *lines, ""]))
    settings = (f"model={tmp_path / 'model'}", "rollout.backend=torch", f"data.source={prompts}")
    job = run_job(tmp_path / "job", "standard", 2, *settings, "batch.max_prompt_length=8")
    reason = (
        f"{prompts}, line 5: the prompt '1+1+1+1+1+1+1+1+1+1+1+1+1=' has 26 tokens (2 of 5 are too long) and"
        " batch.max_prompt_length is 8; raise it"
    )
    assert job.exit_code == JobExit.USAGE, job.output[-3000:]
    assert job.output.endswith(f"UsageError: {reason}\n")
    assert not job.trial.spans.exists()


def test_a_prompt_is_one_message_of_the_user_and_what_the_template_adds_counts(tmp_path: Path) -> None:
    save_model(tmp_path)
    plain = ModelTokenizer(str(tmp_path)).encode("1+1=")
    template = "{% for one in messages %}{{ '++' if one.role == 'user' else '0' }}{{ one.content }}{% endfor %}="
    (tmp_path / "chat_template.jinja").write_text(template)
    tokenizer = ModelTokenizer(str(tmp_path))
    assert tokenizer.encode("1+1=") == [plain[1], plain[1], *plain, plain[3]]
    prompts = FilePrompts(0, (Prompt("1+1=", "2", "a.jsonl, line 1"),))
    assert list(too_long(prompts, tokenizer, Data(), 7)) == []
    (reason,) = too_long(prompts, tokenizer, Data(), 6)
    assert reason.startswith("a.jsonl, line 1: the prompt '1+1=' has 7 tokens (1 of 1 are too long) and ")


@pytest.mark.parametrize(
    ("content", "tokens"),
    [(None, (0,)), ("{}", (0,)), ('{"eos_token_id": 7}', (0, 7)), ('{"eos_token_id": [9, 0, 7]}', (0, 7, 9))],
)
def test_a_response_ends_at_every_token_that_the_model_names(
    tmp_path: Path, content: str | None, tokens: tuple[int, ...]
) -> None:
    save_model(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    if content is not None:
        (tmp_path / "generation_config.json").write_text(content)
    assert ModelTokenizer(str(tmp_path)).stop_token_ids == tokens


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("tokenizer.json", "{}", "no tokenizer can be loaded: KeyError: 'added_tokens'"),
        ("generation_config.json", "{", "cannot read generation_config.json: OSError: "),
        ("generation_config.json", "[]", "cannot read generation_config.json: TypeError: "),
        ("generation_config.json", '{"eos_token_id": "x"}', "must be a token's number, or a list"),
        ("chat_template.jinja", "{{ raise_exception('no') }}", "cannot encode the prompt '1+1=': TemplateError: no"),
    ],
)
def test_a_tokenizer_that_does_not_work_is_one_line(tmp_path: Path, file: str, content: str, reason: str) -> None:
    save_model(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(UsageError, match=re.escape(reason)) as refused:
        ModelTokenizer(str(tmp_path)).encode("1+1=")
    assert str(refused.value).startswith(f"--model {tmp_path}: ")


def test_weights_are_not_waited_for_at_a_pipe(tmp_path: Path) -> None:
    save_plain_model(tmp_path, "llama")
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
    found = list(unusable_workload(build_workload({"model": str(tmp_path)})))
    assert len([line for line in found if "it is a pipe or a device; name a regular file" in line]) == 2
