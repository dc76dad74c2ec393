"""`transformers serve` in a process of its own, clients of it, good and bad: the parts of examples/serve.py."""
