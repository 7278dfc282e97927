"""The reward function of a project: the code whose speed the gate watches."""


def score(prompt: str, response: str, answer: str) -> float:
    """The share of the answer that the response begins with."""
    matching = 0
    for given, wanted in zip(response, answer, strict=False):
        if given != wanted:
            break
        matching += 1
    return matching / max(len(answer), 1)
