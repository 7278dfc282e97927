"""The report of a run: terminal tables, Markdown, HTML, figures, a Perfetto trace and summary.json.

All of it is built from the run folder alone, so it works without torch, ray or GPUs, on any machine.
"""

import logging

# Where the home cannot be written to, matplotlib warns of the temporary folder that it makes, and removes, for it. This
# is run before any module of the package imports it.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
