"""Pictures that show a formula at work."""
