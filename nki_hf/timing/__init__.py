"""The timing model: what an event costs on a chip, and when it runs."""
