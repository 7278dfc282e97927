"""The vLLM rollout beside transformers with the same weights, two ranks in one process group, for real on CPU.

The ranks are processes of their own that write down what they saw, once for all tests.
"""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scipy.stats import chisquare
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from placebench.errors import LaunchError
from placebench.ppo.models import model_config
from placebench.ppo.rollout import vllm_driving
from placebench.ppo.rollout.base import Generated, SamplingSettings
from placebench.ppo.rollout.vllm_steady import steady_steps
from placebench.ppo.worker import Worker
from placebench.predict.memory.engine import EngineMemory, token_cache_bytes
from placebench.record.writing import read_jsonl
from placebench.sessions.base import LOOPBACK
from placebench.spec.shapes import PRESETS
from placebench.spec.workload_reading import build_workload

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; `make test-slow` sets it up"),
]

RANKS = 2
THREADS = 2
LENGTH = 12
NO_TOKEN = 10_000
# The first is longer than a block of vLLM's prefix cache, so that keys and values of old weights would be used again.
PROMPTS = [[1 + i % 60 for i in range(150)], [5, 6, 7], [9] * 10, [3]]
SEEDS = [11, 12, 13, 14]
# So small a nucleus holds the most likely token alone.
GREEDY = SamplingSettings(1.0, 1e-9, True, (NO_TOKEN,))
SAMPLED = [SamplingSettings(*drawn, True, (NO_TOKEN,)) for drawn in ((1.0, 1.0), (0.7, 1.0), (1.5, 0.8))]
FREQUENCIES = SamplingSettings(0.7, 1.0, True, (NO_TOKEN,))
# Eight sequences of two blocks, the second of which they need while they generate, and the share of 1 GiB in which an
# engine has room for three of them.
FEW = build_workload(
    {
        "batch": {"size": 8, "mini_batch_size": 8, "max_prompt_length": 120, "max_response_length": 16},
        "rollout": {"backend": "vllm", "ignore_eos": True},
    }
)
THREE_SEQUENCES = (
    EngineMemory(FEW, PRESETS["tiny"], 1, "cpu", 1 << 30).least + 2 * 2 * 128 * token_cache_bytes(FEW, PRESETS["tiny"])
) / (1 << 30)


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw, for a model with an output head of its own and for one tied to its embedding."""
    folder = tmp_path_factory.mktemp("ranks")
    start_and_join: Any = spawn
    start_and_join(_run_rank, (folder, request.param), nprocs=RANKS)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def test_greedy_tokens_are_those_of_transformers_before_and_after_an_update(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["before"]["greedy"] == rank["before"]["expected"]
        assert rank["after"]["greedy"] == rank["after"]["expected"]
        assert rank["before"]["greedy"] != rank["after"]["greedy"]


def test_log_probs_are_those_of_the_weights_at_every_temperature_and_top_p(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        for compared in (rank["before"], rank["after"]):
            assert len(compared["differences"]) == 1 + len(SAMPLED)
            assert max(compared["differences"]) < 1e-3


def test_stale_weights_show_in_the_log_probs(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert min(rank["stale"]["differences"]) > 0.1
        assert rank["stale"]["greedy"] != rank["stale"]["expected"]


def test_tokens_come_from_the_nucleus_and_in_the_right_shares(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["after"]["likelier_mass"] < SAMPLED[-1].top_p
        assert chisquare(rank["drawn"], rank["shares"]).pvalue > 1e-3


def test_a_response_follows_its_seed_and_not_its_batch_or_rank(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["alone"] == rank["together"] == rank["reversed"] == seen[0]["together"]
        assert rank["other_seeds"] != rank["together"]


def test_a_response_ends_with_the_first_token_that_ends_one_unless_these_are_ignored(
    seen: list[dict[str, Any]],
) -> None:
    for rank in seen:
        stops, whole, ended = rank["stops"], rank["after"]["greedy"], rank["ended"]
        assert [len(response) for response in whole] == [LENGTH] * len(PROMPTS)
        ends = [min([*response, stop].index(stop) for stop in stops) for response in whole]
        assert ended == [response[: end + 1] for response, end in zip(whole, ends, strict=True)]
        assert {ended[0][-1], ended[1][-1]} <= {*stops}
        assert rank["ignored"] == whole


def test_steps_that_the_scheduler_does_not_do_itself_generate_the_same(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        for by_itself, shortened in rank["shortened"]:
            assert shortened == by_itself
        assert rank["differs"] is None
        assert {"schedule", "update", "blocks", "end", "finished"} <= set(rank["kinds"])


def test_an_update_counts_its_bytes_and_refuses_to_leave_a_weight_behind(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["written"] == rank["weight_bytes"]
        assert "did not change 1 of vLLM's weights" in rank["incomplete"]
        assert "packs weights" in rank["packed"]


def test_the_engine_leaves_process_group_and_threads_to_training(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["sum"] == sum(range(RANKS))
        assert rank["threads"] == THREADS


def test_runs_of_both_placements_train_alike_on_current_weights(tmp_path: Path) -> None:
    sizes = ("--steps", "3", "--warmup-steps", "1", "--batch-size", "16", "--mini-batch-size", "8")
    options = ("--devices", f"cpu:{RANKS}", "--rollout", "vllm", "--rounds", "1")
    settings = ("--set", "optimizer.actor_lr=0.01", "--set", "rollout.log_probs=always")
    command = [sys.executable, "-m", "placebench", "run", "--out", str(tmp_path), *options, *settings, *sizes]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    standard, split = ([row["metrics"] for row in read_jsonl(path)] for path in tmp_path.glob("*/trials/*/steps.jsonl"))
    assert len(standard) == len(split) == 3
    for step, same in zip(standard, split, strict=True):
        assert max(step["training/rollout_probs_diff_max"], same["training/rollout_probs_diff_max"]) < 1e-4
        for name in ("actor/pg_loss", "critic/vf_loss", "critic/score/mean", "response_length/mean"):
            assert step[name] == pytest.approx(same[name], rel=1e-4, abs=1e-7)
    assert all(a["actor/pg_loss"] != b["actor/pg_loss"] for a, b in pairwise(standard))


def test_ranks_that_share_an_engine_leave_no_socket(tmp_path: Path) -> None:
    sizes = ("--steps", "2", "--warmup-steps", "1", "--batch-size", "8", "--mini-batch-size", "8")
    options = ("--devices", f"cpu:{RANKS}", "--rollout", "vllm", "--rounds", "1")
    settings = ("--placements", "standard", "--set", f"rollout.tensor_parallel_size={RANKS}")
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "placebench", "run", "--out", str(tmp_path), *options, *sizes, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(sockets)},
    )
    assert done.returncode == 0, done.stdout
    assert not [path for path in sockets.rglob("*") if path.is_socket()]


def test_ranks_that_are_more_than_the_heads_of_keys_have_room_for_every_sequence(tmp_path: Path) -> None:
    start_and_join: Any = spawn
    start_and_join(_share_one_head, (tmp_path,), nprocs=RANKS)
    for rank in range(RANKS):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        assert seen["tokens"] >= seen["needed"]
        assert seen["preempted"] == 0


def test_an_engine_with_room_for_few_sequences_generates_the_same_as_one_for_all(tmp_path: Path) -> None:
    start_and_join: Any = spawn
    seen = []
    for share in (None, THREE_SEQUENCES):
        start_and_join(_generate_in_a_share, (tmp_path, share), nprocs=1)
        seen.append(json.loads((tmp_path / "seen.json").read_text()))
    whole, few = seen
    # Blocks of two a sequence, and one of the engine's own.
    assert (whole["blocks"], few["blocks"]) == (2 * 8 + 1, 2 * 3 + 1)
    assert whole["preempted"] == 0 < few["preempted"]
    assert few["tokens"] == whole["tokens"]
    np.testing.assert_allclose(few["log_probs"], whole["log_probs"], atol=1e-4)


def _share_one_head(rank: int, folder: Path) -> None:
    from placebench.ppo.rollout.vllm import VllmRollout

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    config = model_config("tiny")
    config.num_key_value_heads = 1
    batch = {"size": 64, "mini_batch_size": 64, "max_prompt_length": 128, "max_response_length": 128}
    shared = {"backend": "vllm", "tensor_parallel_size": RANKS, "ignore_eos": True}
    rollout = VllmRollout(config, "cpu", build_workload({"batch": batch, "rollout": shared}), RANKS)
    preempted = _preemptions(rollout)
    rollout.generate(_prompts(32 * rank, 32, 128), [128] * 32, range(32), SAMPLED[0])
    cache = rollout._engine.llm_engine.vllm_config.cache_config
    tokens = cache.num_gpu_blocks * cache.block_size
    result = {"tokens": tokens, "needed": 64 * 256, "preempted": len(preempted)}
    (folder / f"{rank}.json").write_text(json.dumps(result))
    rollout.close()


def _generate_in_a_share(rank: int, folder: Path, share: float | None) -> None:
    """By a worker of its own, whose device has 1 GiB, with the actor's weights."""
    device = {"id": "cpu:0", "kind": "cpu", "memory_bytes": 1 << 30, "cores": sorted(os.sched_getaffinity(0))}
    job = FEW.model_copy(update={"rollout": FEW.rollout.model_copy(update={"memory_share": share})})
    worker = Worker(job.model_dump(mode="json"), ["actor", "rollout"], "pool", device, rank, 1)
    worker.start(LOOPBACK)
    worker.build(worker.open_store())
    rollout: Any = worker._rollout
    preempted = _preemptions(rollout)
    responses = rollout.generate(_prompts(0, 8, 120), [16] * 8, range(8), SAMPLED[0])
    result = {
        "blocks": rollout._engine.llm_engine.vllm_config.cache_config.num_gpu_blocks,
        "preempted": len(preempted),
        "tokens": _tokens(responses),
        "log_probs": [response.log_probs for response in responses],
    }
    (folder / "seen.json").write_text(json.dumps(result))
    worker.stop()


def _prompts(first: int, count: int, length: int) -> list[list[int]]:
    return [[1 + (7 * one + place) % 50 for place in range(length)] for one in range(first, first + count)]


def _preemptions(rollout: Any) -> list[Any]:
    """Grows by one whenever a sequence from here on loses its keys and values to others."""
    preempted: list[Any] = []
    scheduler = rollout._engine.llm_engine.engine_core.engine_core.scheduler
    preempt = scheduler._preempt_request

    def counted(*arguments: Any, **named: Any) -> None:
        preempted.append(arguments)
        preempt(*arguments, **named)

    scheduler._preempt_request = counted
    return preempted


def _run_rank(rank: int, folder: Path, tied: bool) -> None:
    from placebench.ppo.rollout.vllm import VllmRollout

    torch.set_num_threads(THREADS)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    old, new = _model(1, tied), _model(2, tied)
    longest = max(map(len, PROMPTS)) + LENGTH
    batch = {"size": 64 * RANKS, "max_prompt_length": longest - LENGTH, "max_response_length": LENGTH}
    rollout = VllmRollout(old.config, "cpu", build_workload({"batch": batch}), RANKS)
    result: dict[str, Any] = {"weight_bytes": sum(weight.nbytes for weight in old.parameters())}
    result["written"] = rollout.update_weights(old.named_parameters())
    result["before"] = _compare(rollout, old)
    result["stale"] = _compare(rollout, new)
    rollout.update_weights(new.named_parameters())
    result["after"] = _compare(rollout, new)
    result |= _ends(rollout, result["after"]["greedy"]) | _batches(rollout) | _frequencies(rollout, new)
    result |= _shortened(rollout, result["stops"][0]) | _refusals(rollout, new)
    result["threads"] = torch.get_num_threads()
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    result["sum"] = total.item()
    rollout.close()
    (folder / f"{rank}.json").write_text(json.dumps(result))


def _model(seed: int, tied: bool) -> Any:
    """A model in which every parameter is random, biases and norms too, so that none can be missed."""
    import transformers

    auto_model: Any = transformers.AutoModelForCausalLM
    config = model_config("tiny")
    config.tie_word_embeddings = tied
    torch.manual_seed(seed)
    model = auto_model.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def _compare(rollout: Any, model: Any) -> dict[str, Any]:
    """Greedy tokens, the largest log-prob difference per setting, the mass before a nucleus's last token."""
    differences, likelier = [], 0.0
    for settings in (GREEDY, *SAMPLED):
        responses = _generate(rollout, PROMPTS, SEEDS, settings)
        largest = 0.0
        for prompt, response in zip(PROMPTS, responses, strict=True):
            log_probs = torch.log_softmax(_logits(model, prompt, response) / settings.temperature, dim=-1)
            chosen = log_probs.gather(1, torch.tensor(response.tokens)[:, None])
            largest = max(largest, (chosen.squeeze(1) - torch.tensor(response.log_probs)).abs().max().item())
            mass = torch.where(log_probs > chosen, log_probs.exp(), 0.0).sum(1)
            likelier = max(likelier, mass.max().item()) if settings is SAMPLED[-1] else likelier
        differences.append(largest)
    greedy = _generate(rollout, PROMPTS, SEEDS, GREEDY)
    expected = [_logits(model, *pair).argmax(-1).tolist() for pair in zip(PROMPTS, greedy, strict=True)]
    return {"greedy": _tokens(greedy), "expected": expected, "differences": differences, "likelier_mass": likelier}


@torch.no_grad()
def _logits(model: Any, prompt: list[int], response: Generated) -> Tensor:
    logits: Tensor = model(input_ids=torch.tensor([prompt + response.tokens])).logits[0]
    return logits[len(prompt) - 1 : -1]


def _ends(rollout: Any, greedy: list[list[int]]) -> dict[str, Any]:
    stops = (greedy[0][LENGTH // 2], greedy[1][LENGTH // 2])
    ended, ignored = (
        _generate(rollout, PROMPTS, SEEDS, SamplingSettings(1.0, 1e-9, ignore, stops)) for ignore in (False, True)
    )
    return {"stops": stops, "ended": _tokens(ended), "ignored": _tokens(ignored)}


def _generate(rollout: Any, prompts: Any, seeds: Any, settings: SamplingSettings) -> list[Generated]:
    responses: list[Generated] = rollout.generate(prompts, [LENGTH] * len(prompts), seeds, settings)
    return responses


def _batches(rollout: Any) -> dict[str, Any]:
    alone = [_generate(rollout, [prompt], [seed], SAMPLED[0])[0] for prompt, seed in zip(PROMPTS, SEEDS, strict=True)]
    return {
        "alone": _tokens(alone),
        "together": _tokens(_generate(rollout, PROMPTS, SEEDS, SAMPLED[0])),
        "reversed": _tokens(_generate(rollout, PROMPTS[::-1], SEEDS[::-1], SAMPLED[0]))[::-1],
        "other_seeds": _tokens(_generate(rollout, PROMPTS, [seed + 1 for seed in SEEDS], SAMPLED[0])),
    }


def _shortened(rollout: Any, eos: int) -> dict[str, Any]:
    """Responses of many lengths, all by vLLM itself and with steps that it does not do; asked for log-probs or not."""
    prompts = [PROMPTS[place % 4][: 1 + 7 * place] for place in range(2 * len(PROMPTS))]
    # The longest prompt goes on into a block of its own.
    prompts += [[2] * 122]
    longest = [1 + (5 * place) % LENGTH for place in range(len(prompts) - 1)] + [LENGTH]
    pairs = []
    for log_probs in (True, False):
        settings = SamplingSettings(1.0, 1.0, False, (eos,), log_probs)
        pair = []
        for steps in (lambda *arguments: nullcontext(), steady_steps):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(vllm_driving, "steady_steps", steps)
                responses = rollout.generate(prompts, longest, range(len(prompts)), settings)
            pair.append([[response.tokens, response.log_probs] for response in responses])
        pairs.append(pair)
    return {"shortened": pairs, "differs": rollout._known.differs, "kinds": sorted(rollout._known.kinds)}


def _frequencies(rollout: Any, model: Any) -> dict[str, Any]:
    """First tokens of one prompt under many seeds, counted, and how many the model expects; the rare ones together."""
    draws = 640
    first = [
        response.tokens[0] for response in rollout.generate([[5, 6, 7]] * draws, [1] * draws, range(draws), FREQUENCIES)
    ]
    logits = _logits(model, [5, 6, 7], Generated([0], [0.0]))[0]
    expected = draws * torch.softmax(logits.double() / FREQUENCIES.temperature, dim=-1).numpy()
    counts = np.bincount(first, minlength=len(expected))
    rare = expected < 10
    drawn, shares = ([*values[~rare], values[rare].sum()] for values in (counts, expected))
    return {"drawn": [float(count) for count in drawn], "shares": [float(share) for share in shares]}


def _refusals(rollout: Any, model: Any) -> dict[str, str]:
    def refusal(weights: Any) -> str:
        try:
            rollout.update_weights(weights)
        except LaunchError as error:
            return str(error)
        return "accepted"

    incomplete = refusal(list(model.named_parameters())[:-1])
    rollout._engine.apply_model(lambda served: setattr(served.lm_head, "cpu_linear", _packed))
    return {"incomplete": incomplete, "packed": refusal(model.named_parameters())}


def _packed(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    raise NotImplementedError


def _tokens(responses: list[Generated]) -> list[list[int]]:
    return [response.tokens for response in responses]
