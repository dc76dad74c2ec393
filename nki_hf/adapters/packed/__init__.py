"""Packed sequences: many sequences in one row, cut into pieces of a few sizes, so that few programs serve any lengths."""
