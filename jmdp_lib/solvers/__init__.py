"""Solvers: one fixed-point loop, and the evaluations that run it."""
