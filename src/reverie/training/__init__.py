"""From data to a trained run: planning, steps, checks, checkpoints, previews and the verdict."""
