"""Functions of the event stream: capacity, races, reports, traces. None of them runs a kernel."""
