"""Solvers: the paper's iteration, and the same fixed points by linear systems."""
