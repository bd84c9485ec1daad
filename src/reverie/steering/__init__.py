"""Verbs that draw something wanted: edit, invert, interpolate, illusion, inpaint, restore."""
