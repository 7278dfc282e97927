"""Loaded by every Python of a job as it starts: the hooks, then the `sitecustomize` that comes without them.

Costs next to nothing in a process that imports no framework: all that a hook needs is imported with the framework.
"""

import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load_the_next():  # type: () -> None
    spec = PathFinder.find_spec("sitecustomize", [place for place in sys.path if os.path.abspath(place) != _HERE])
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        # Other modules may ask what is in `sitecustomize`: it is the user's then, as it is without the hooks.
        sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["sitecustomize"])


# One that comes after this may look for the next one in the same way, and find this.
if not hasattr(sys, "_placebench_site"):
    setattr(sys, "_placebench_site", True)  # noqa: B010 - a type checker knows no such attribute
    if os.environ.get("PLACEBENCH_SPANS"):
        try:
            from placebench_attach.imports import watch_imports

            watch_imports()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not break the job that is watched
            sys.stderr.write(f"placebench: no spans from process {os.getpid()}: {error!r}\n")
    _load_the_next()
