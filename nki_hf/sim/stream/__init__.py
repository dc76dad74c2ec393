"""The stream of events of a run, and the order that its accesses demand."""
