"""Memory of devices, estimated before anything starts: what models and engines take, and what fits where."""
