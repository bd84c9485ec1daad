"""The run folder on disk, its configuration, and the run that samples from it."""
