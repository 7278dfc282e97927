"""Rollout backends behind one interface: `torch` on the policy's own weights, `vllm` with its own engine."""
