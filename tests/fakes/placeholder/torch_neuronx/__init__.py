"""The empty placeholder that the public index serves under this name."""
