"""`placebench`, and `python -m placebench`: the command line, which Ctrl-C may stop before it is all loaded."""

import sys


def main() -> None:
    """Run the command line and exit."""
    try:
        from placebench.cli import main as run
    except KeyboardInterrupt:
        print("placebench: stopped", file=sys.stderr)
        sys.exit(130)
    run(prog_name="placebench")


if __name__ == "__main__":
    main()
