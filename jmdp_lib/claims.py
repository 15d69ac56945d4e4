"""Claims that are checked where they are made, and listed at the end."""

from __future__ import annotations


class Claims:
    """`check` asserts a claim and remembers it; `print` lists `claim | value | verdict`."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def check(self, claim: str, value: object, holds: object) -> None:
        """Record the claim with its value, and fail if it does not hold."""
        verdict = "holds" if bool(holds) else "FAILS"
        self._lines.append(f"{claim} | {value} | {verdict}")
        assert bool(holds), self._lines[-1]

    def print(self) -> None:
        """One line per claim."""
        print("\n".join(self._lines))
