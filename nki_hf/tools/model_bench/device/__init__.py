"""The benchmark's device half: what a run on Trainium sets, compiles, keeps and calls. Documented, not run on a chip."""
