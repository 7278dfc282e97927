"""placebench measures which placement of RL post-training roles on devices is faster, and why."""

__version__ = "0.2.0"
