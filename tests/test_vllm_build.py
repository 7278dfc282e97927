"""What vLLM is told, as far as no engine is needed for it."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from placebench.ppo.rollout.vllm_build import graph_sizes


@given(st.integers(1, 2048))
def test_decoding_a_batch_has_a_graph_of_its_size_and_others_that_pad_little(sequences: int) -> None:
    sizes = graph_sizes(sequences)
    assert sizes[0] == 1
    assert sizes[-1] == sequences
    assert all(before < size <= max(2 * before, before + 16) for before, size in pairwise(sizes))
