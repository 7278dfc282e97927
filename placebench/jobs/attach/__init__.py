"""Hooks that a job of the user's loads into its own Python: which phase ran when, in which process, on which device.

Everything under `on-path` runs in the user's environment, where placebench need not be installed: Python 3.8 or newer
and its standard library alone. `environment` puts that folder on the job's path.
"""
