"""``python -m twostroke``."""

from twostroke.cli.main import main

main()
