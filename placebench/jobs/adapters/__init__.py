"""The frameworks whose jobs placebench can start: one module each."""
