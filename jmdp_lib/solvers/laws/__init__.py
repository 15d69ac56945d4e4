"""The law of a gap: pairs of states as rows, two orders of laws, brackets, and the solver."""
