"""Honest measurement: what `reverie evaluate` measures, says and draws."""
