"""A second kernel, as anyone would add one: this folder and one line in `registry.PACKAGES`. Up to 128 queries x 512 keys."""
