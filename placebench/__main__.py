"""`python -m placebench`: the command without its script."""

from placebench.cli import main

if __name__ == "__main__":
    main(prog_name="placebench")
