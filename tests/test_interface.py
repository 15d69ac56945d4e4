"""The public interface: every parameter is documented, every option has its name at the call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pages
import pytest


def public_calls() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Every public function, constructor and method, and the docstring that lists its parameters."""
    for path, thing in pages.public_names().items():
        if inspect.isfunction(thing) or (
            inspect.isclass(thing) and not issubclass(thing, Exception) and not is_protocol(thing)
        ):
            yield path, thing, inspect.getdoc(thing) or ""
        for name, member in vars(thing).items() if inspect.isclass(thing) else ():
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function) and not name.startswith("_"):
                yield f"{path}.{name}", getattr(thing, name), inspect.getdoc(function) or ""


def is_protocol(thing: Any) -> bool:
    return bool(getattr(thing, "_is_protocol", False))


def parameters(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Those that a user gives."""
    every = inspect.signature(call).parameters
    return {name: p for name, p in every.items() if name != "self" and name[0] != "_"}


def listed(doc: str) -> set[str]:
    """The names in the lists of arguments and attributes of a docstring in Google style."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:(?: .*)?\n)+)", doc + "\n", re.MULTILINE)
    entries = re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*): ", "".join(sections), re.MULTILINE)
    return {name.lstrip("*") for entry in entries for name in entry.split(", ")}


def test_every_public_parameter_is_documented() -> None:
    missing = {
        path: sorted(parameters(call).keys() - listed(doc))
        for path, call, doc in public_calls()
        if parameters(call).keys() - listed(doc)
    }
    assert not missing
