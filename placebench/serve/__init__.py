"""The live page and `/metrics`: what the files of runs tell while these go on. It starts nothing and writes nothing."""
