"""Stand-in; see the package."""
