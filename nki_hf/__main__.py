"""`python -m nki_hf` is the `nki_hf` program."""

from nki_hf.cli import main

main()
