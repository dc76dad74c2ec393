"""One launch, from its arguments to its recorded program."""
