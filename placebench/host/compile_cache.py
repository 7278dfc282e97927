"""The folder in which torch keeps what it has compiled, for launches to come."""

import getpass
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path


def remove_empty_cache() -> None:
    """Remove torch's own folder where nothing was compiled: torch makes it when it is imported.

    One that holds something stays, and so does one that the user has named.
    """
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    # What `torch._inductor` takes where TORCHINDUCTOR_CACHE_DIR is not set; it sets that, so it is not looked at.
    own = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    with suppress(OSError):
        Path(tempfile.gettempdir(), own).rmdir()
