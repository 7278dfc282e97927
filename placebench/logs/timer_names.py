"""Phases by the names that frameworks' timers give them, in their logs and to placebench's hooks alike.

Apart from the readers of these logs, and without what they load: who plans a job needs the names alone.
"""

from collections.abc import Mapping

SKYRL_TIMERS: Mapping[str, str] = {
    "generate": "gen",
    "compute_advantages_and_returns": "adv",
    "critic_train": "update_critic",
    "policy_train": "update_actor",
    "sync_weights": "update_weights",
    "eval": "testing",
    "save_checkpoints": "save_checkpoint",
}
AREAL_TIMERS: Mapping[str, str] = {
    "critic_values": "values",
    "ref_logp": "ref",
    "recompute_logp": "old_log_prob",
    "compute_advantage": "adv",
    "train_step": "update_actor",
    "critic_train_step": "update_critic",
    "save": "save_checkpoint",
    "eval": "testing",
}
