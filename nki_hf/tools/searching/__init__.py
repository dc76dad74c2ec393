"""The search: rounds of an agent and the judge, what is remembered of them, and how kernels are compared and ranked."""
