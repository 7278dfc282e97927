"""The commands, one module each: thin, with heavy imports inside the functions. `placebench.cli` lists them."""
