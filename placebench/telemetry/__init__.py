"""Recording what the devices did: the sampler process, its sources, and the phase spans of the job."""
