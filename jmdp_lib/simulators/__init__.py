"""Simulators: worlds that are asked for one shared draw, played, and compared action by action."""
