"""The parts of `nki_hf cost`: times, dollars, and the text."""
