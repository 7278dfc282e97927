"""The command line, called within the test's own process."""

from pathlib import Path

from click.testing import CliRunner, Result

from placebench.cli import main


def invoke(*words: object) -> Result:
    """`placebench` with words, each as its text."""
    return CliRunner().invoke(main, list(map(str, words)), prog_name="placebench")


def run_folder() -> Path:
    """The folder of the only run that was made in the working directory."""
    (folder,) = Path("runs").iterdir()
    return folder
