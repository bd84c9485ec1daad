"""What developers run: `python -m tools.map` draws docs/map.svg."""
