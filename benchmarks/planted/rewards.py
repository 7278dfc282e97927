"""The reward function of examples/ci/project with a planted slowdown: it scores every response 100,000 times."""


def score(prompt: str, response: str, answer: str) -> float:
    """The share of the answer that the response begins with."""
    matching = 0
    for _ in range(100_000):
        matching = 0
        for given, wanted in zip(response, answer, strict=False):
            if given != wanted:
                break
            matching += 1
    return matching / max(len(answer), 1)
