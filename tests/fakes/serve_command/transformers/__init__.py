"""A stand-in for Transformers with nothing but its server command, which starts in no time."""

__version__ = "0"
