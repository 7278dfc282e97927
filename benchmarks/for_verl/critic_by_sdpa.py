"""verl's critic without flash-attn, which verl 0.9.1 asks for by name: a module for `VERL_USE_EXTERNAL_MODULES`."""

from typing import Any

import torch
import verl.utils.model
from transformers import AutoModelForTokenClassification


def _load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    # The value head is in no checkpoint: without a seed every launch has another critic.
    torch.manual_seed(0)
    return AutoModelForTokenClassification.from_pretrained(
        local_path, torch_dtype=torch_dtype, config=model_config, attn_implementation="sdpa"
    )


verl.utils.model.load_valuehead_model = _load
