"""Arguments that a user's command is given: which commands hand them on to their program."""

import shlex
from pathlib import Path

import pytest
from fake_jobs import write

from placebench.jobs.arguments import lost_arguments
from placebench.jobs.scripts import read_command


@pytest.mark.parametrize(
    ("command", "lost"),
    [
        ("bash deaf.sh", "deaf.sh takes no arguments"),
        ("bash -x -o pipefail deaf.sh", "deaf.sh takes no arguments"),
        ("./deaf", "./deaf takes no arguments"),
        ("env A=1 -u B bash deaf.sh", "deaf.sh takes no arguments"),
        ("srun -N 2 --gpus=8 ./deaf", "./deaf takes no arguments"),
        ("uv run deaf.sh", "deaf.sh takes no arguments"),
        ("nohup conda run -n rl bash deaf.sh", "deaf.sh takes no arguments"),
        ("bash deaf.sh {args}", "deaf.sh takes no arguments"),
        ("bash one.sh", "one.sh takes no arguments"),
        ("bash commented.sh", "commented.sh takes no arguments"),
        ("bash -c 'cd . && python x.py'", "what bash -c runs takes no arguments"),
        ("env A=1 sh -lc 'python x.py' sh", "what sh -c runs takes no arguments"),
        ("bash -c 'python x.py' {args}", "what bash -c runs takes no arguments"),
        # The first of them is no argument there, but the shell's name.
        ("bash -c 'python x.py \"$@\"'", "what bash -c runs takes no arguments"),
        ("bash -c 'python x.py \"$@\"' sh", None),
        ("bash -ec 'cd . && python x.py {args}'", None),
        ("bash one.sh {args}", None),
        ("bash hears.sh", None),
        ("srun bash hears.sh", None),
        ("env 'MORE={args}' bash deaf.sh", None),
        ("bash elsewhere.sh", None),
        ("bash -s", None),
        ("python x.py deaf.sh", None),
        ("srun python3.12 x.py deaf.sh", None),
        ("my-tool deaf.sh", None),
    ],
)
def test_arguments_that_a_shell_would_drop_are_seen(tmp_path: Path, command: str, lost: str | None) -> None:
    write(tmp_path, "deaf.sh", "python x.py\n")
    write(tmp_path, "deaf", "#!/usr/bin/env bash\npython x.py\n")
    write(tmp_path, "one.sh", 'python x.py --model "$1"\n')
    write(tmp_path, "commented.sh", '# hand on "$@"\npython x.py\n')
    write(tmp_path, "hears.sh", 'python x.py "$@"\n')
    write(tmp_path, "x.py", "print(1)\n")
    reason = lost_arguments(read_command(shlex.split(command), tmp_path), "verl")
    assert (reason or "").startswith(lost or ""), reason
    assert (reason is None) == (lost is None), reason
