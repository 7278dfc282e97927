"""Sizes that the job works in, and that its need of memory follows from; nothing here needs torch."""

BUCKET_BYTES = 256 << 20
"""Most bytes of weights that are sent to another pool at a time, but for a single weight that has more."""

TABLE_VALUES = 1 << 28
"""Float32 logits that exist at a time: 1 GiB."""

CACHE_BLOCK_TOKENS = 128
"""Tokens of a block of the key-value cache: vLLM's on CPU, and a multiple of its on GPUs."""
