"""The native package in a container that was given no Neuron device."""

raise RuntimeError("Failed to get Neuron instance information. Is the Neuron driver loaded?")
