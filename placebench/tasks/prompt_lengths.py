"""Whether prompts are as short as they have to be: all of them are looked at before a step draws one."""

from collections.abc import Iterator

from placebench.spec.legible import shown
from placebench.spec.workload import Data
from placebench.tasks.data import FilePrompts, Prompt, PromptSource
from placebench.tasks.tokenizer import Tokenizer


def too_long(source: PromptSource, tokenizer: Tokenizer, data: Data, longest: int) -> Iterator[str]:
    """The prompt with the most tokens, where it has more than `longest`.

    Of sums, which are drawn, the largest and the first are looked at.

    Raises:
        UsageError: the tokenizer cannot encode a prompt.
    """
    if isinstance(source, FilePrompts):
        prompts: tuple[Prompt, ...] = source.prompts
    else:
        largest = data.operand_max
        prompts = (Prompt(f"{largest}+{largest}=", str(2 * largest)), *source.step_prompts(1, 1))
    lengths = [len(tokenizer.encode(prompt.text)) for prompt in prompts]
    if (length := max(lengths)) > longest:
        prompt = prompts[lengths.index(length)]
        above = sum(one > longest for one in lengths)
        others = f" ({above} of {len(prompts)} are too long)" if prompt.where else ""
        yield (
            f"{prompt.where or f'data.source {data.source}'}: the prompt {shown(prompt.text[:40])} has {length} tokens"
            f"{others} and batch.max_prompt_length is {longest}; raise it"
        )
