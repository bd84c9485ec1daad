"""`python -m reverie` is the same as `reverie`."""

from reverie.cli.main import main

main()
