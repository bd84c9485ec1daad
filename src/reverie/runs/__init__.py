"""Run folders, their configuration, and sampling from runs."""
