"""A batch of requests through a vLLM engine of this process, with little of the host's time for each token.

While the GPU computes a token step the host has to get ready for the next, and at many sequences it is the slower one.
vLLM's front end works on every token of every request: it keeps statistics, looks for the ends of texts that nobody
decodes, and turns each log-probability into objects. Here it sees a request once, when that is over; tokens and
log-probabilities are taken where the scheduler has those of a whole step, as one array.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from placebench.ppo.rollout.base import Generated


def run_requests(
    engine: Any, prompts: Sequence[Any], parameters: Sequence[Any], before_step: Callable[[], None]
) -> list[Generated]:
    """Generate one response per prompt; log-probabilities are there where the parameters ask for them.

    Args:
        engine: an `LLM` whose core is in this process.
        prompts: as vLLM takes them.
        parameters: of each prompt's sampling.
        before_step: called before each step of the engine.
    """
    core = engine.llm_engine
    with _taken_from(core.engine_core.engine_core.scheduler) as taken:
        numbers = engine.enqueue(prompts, parameters, use_tqdm=False)
        while core.has_unfinished_requests():
            before_step()
            core.step()
    return [taken.response(number) for number in numbers]


class _Taken:
    """What requests have generated so far."""

    def __init__(self) -> None:
        self._tokens: defaultdict[str, list[int]] = defaultdict(list)
        self._log_probs: defaultdict[str, list[float]] = defaultdict(list)

    def take(self, outputs: Any, rows: dict[str, int], log_probs: list[float] | None) -> None:
        """Take a step's tokens and leave in its outputs those of requests that are over.

        Args:
            outputs: vLLM's `EngineCoreOutputs`.
            rows: the row of each request in the step's arrays.
            log_probs: of each row's token; None where none were asked for.
        """
        over = []
        for one in outputs.outputs:
            number = one.request_id
            # A request that ends by an error has none.
            if one.new_token_ids:
                self._tokens[number] += one.new_token_ids
                if log_probs is not None:
                    self._log_probs[number].append(log_probs[rows[number]])
            if one.finish_reason is not None:
                over.append(one)
        outputs.outputs = over

    def response(self, number: str) -> Generated:
        """A request's tokens and, where they were asked for, their log-probabilities."""
        return Generated(self._tokens[number], self._log_probs.get(number))


@contextmanager
def _taken_from(scheduler: Any) -> Iterator[_Taken]:
    """What a scheduler's requests generate inside; nobody else gets it."""
    update, taken = scheduler.update_from_output, _Taken()

    def update_and_take(scheduled: Any, output: Any) -> Any:
        # Taken off, so that it is not cut up by request.
        log_probs, output.logprobs = output.logprobs, None
        by_client = update(scheduled, output)
        # One token a request and step, and of it no log-probability but its own: the first column.
        values = None if log_probs is None else log_probs.logprobs[:, 0].tolist()
        for outputs in by_client.values():
            taken.take(outputs, output.req_id_to_index, values)
        return by_client

    scheduler.update_from_output = update_and_take
    try:
        yield taken
    finally:
        scheduler.update_from_output = update
