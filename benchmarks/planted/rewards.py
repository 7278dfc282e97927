"""The reward function of examples/ci/project with a planted slowdown: it waits 30 ms for every response."""

import time


def score(prompt: str, response: str, answer: str) -> float:
    """The share of the answer that the response begins with."""
    time.sleep(0.03)
    matching = 0
    for given, wanted in zip(response, answer, strict=False):
        if given != wanted:
            break
        matching += 1
    return matching / max(len(answer), 1)
