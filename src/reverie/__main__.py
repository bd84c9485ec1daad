"""`python -m reverie` is the same as `reverie`."""

from reverie.cli import main

main()
