"""Functions of the event stream: time, capacity, races, traces. None of them runs a kernel."""
