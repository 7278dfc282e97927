"""A reward model: a sequence classifier whose score of the last token is the reward."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import run_job, save_model

from placebench.errors import UsageError
from placebench.plan.workload_checks import unusable_workload
from placebench.ppo.batch import SequenceBatch
from placebench.ppo.models import load_reward_model, model_config
from placebench.ppo.training import SequenceModel
from placebench.predict.memory.estimate import MemoryEstimate
from placebench.spec.placement import Role
from placebench.spec.shapes import PRESETS
from placebench.spec.workload_reading import build_workload

TINY = PRESETS["tiny"]


def save_classifier(folder: Path, scores: int) -> Any:
    """A sequence classifier of the preset's shape with random weights, saved; returns it."""
    import transformers

    auto_model: Any = transformers.AutoModelForSequenceClassification
    config = model_config("tiny")
    config.num_labels = scores
    classifier = auto_model.from_config(config, dtype=torch.float32).eval()
    classifier.save_pretrained(folder)
    return classifier


def test_a_saved_classifier_scores_as_transformers_does(tmp_path: Path) -> None:
    classifier = save_classifier(tmp_path, 1)
    random = np.random.default_rng(0)
    texts = [random.integers(1, TINY.vocab_size, length).tolist() for length in (9, 4, 12)]
    batch = SequenceBatch.build([text[:3] for text in texts], [text[3:] for text in texts])
    module = load_reward_model(str(tmp_path), TINY.vocab_size).requires_grad_(False)
    model = SequenceModel(module, build_workload({"batch": {"micro_batch_tokens": 24}}), torch.device("cpu"), 0)
    found = model.per_sequence(batch, lambda part, pack: part(pack.inputs, pack.predict_positions + 1))
    with torch.no_grad():
        expected = [float(classifier(torch.tensor([text])).logits) for text in texts]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_gives_no_single_score_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "language")
    save_classifier(tmp_path / "three", 3)
    for name, scores in (("language", 2), ("three", 3)):
        folder = str(tmp_path / name)
        (reason,) = unusable_workload(build_workload({"reward_model": folder}))
        assert reason == f"reward_model {folder}: gives {scores} scores; name a sequence classifier with a single one"
        with pytest.raises(UsageError, match=f"gives {scores} scores"):
            load_reward_model(folder, TINY.vocab_size)


def test_another_vocabulary_is_refused() -> None:
    words = PRESETS["qwen2.5-0.5b"].vocab_size
    (reason,) = unusable_workload(build_workload({"reward_model": "qwen2.5-0.5b"}))
    assert f"its vocabulary has {words} words and that of tiny {TINY.vocab_size}" in reason
    with pytest.raises(UsageError, match="name one of the actor's family"):
        load_reward_model("qwen2.5-0.5b", TINY.vocab_size)
    (unknown,) = unusable_workload(build_workload({"reward_model": "judge9"}))
    assert unknown.startswith("unknown model 'judge9'")


def test_a_reward_model_takes_memory_where_it_lives() -> None:
    job, shape = build_workload({"model": "qwen2.5-1.5b"}), PRESETS["qwen2.5-1.5b"]
    with_it = MemoryEstimate(job, shape, shape, (Role.REWARD,), 2, "gpu", shape).moments["reward"]
    assert with_it["weights"] == 2 * shape.critic_parameters // 2
    assert with_it["optimizer"] == 0
    assert "reward" not in MemoryEstimate(job, shape, shape, (Role.REWARD,), 2, "gpu").moments


@pytest.mark.slow
def test_placements_with_a_reward_model_agree(tmp_path: Path) -> None:
    settings = ("steps=2", "warmup_steps=1", "batch.size=8", "batch.mini_batch_size=4", "reward_model=tiny")
    alone = run_job(tmp_path / "alone", "standard", 1, *settings)
    apart = run_job(tmp_path / "apart", "split", 2, *settings, "sharding=shard")
    for job in (alone, apart):
        assert job.exit_code == 0, job.output[-3000:]
    assert len(alone.steps) == len(apart.steps) == 2
    for step, expected in zip(apart.steps, alone.steps, strict=True):
        for name in ("critic/score/mean", "critic/score/max", "critic/vf_loss", "actor/pg_loss"):
            assert step[name] == pytest.approx(expected[name], abs=1e-4), name
        assert expected["critic/score/min"] < expected["critic/score/max"]
    pools = {span["pool"] for span in apart.spans if span["phase"] == "reward"}
    assert pools == {"critic_pool"}
