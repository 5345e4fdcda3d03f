"""The whole flow: what a run and the other commands do, in the order of time."""
