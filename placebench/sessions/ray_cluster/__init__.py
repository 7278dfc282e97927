"""Running on an existing Ray cluster of several nodes: what is there, pools over nodes, clocks, a sampler a node."""
