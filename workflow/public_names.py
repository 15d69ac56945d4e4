"""Which public names a notebook executes, as a trace of its run says.

`pair.py` has `start` and `finish` run in the kernel, before the first cell and after the last one,
and keeps the names in the notebook's metadata. The reference shows them, and a test holds them
against all public names.
"""

from __future__ import annotations

import cProfile
import importlib
import inspect
import json
from pathlib import Path
from types import CodeType
from typing import Any

JMDP_LIB: Any = importlib.import_module("jmdp_lib")
LIBRARY = str(Path(JMDP_LIB.__file__).parent)
TRACE = cProfile.Profile(builtins=False)


def start() -> None:
    TRACE.enable()


def finish() -> None:
    """Print the public names that were executed, as JSON."""
    TRACE.disable()
    print(json.dumps(executed(TRACE)))


def executed(trace: cProfile.Profile) -> list[str]:
    """The functions that were called from outside the library, and the classes whose code ran."""
    entries = trace.getstats()
    ran = {id(entry.code) for entry in entries}
    called = {
        id(inner.code)
        for entry in entries
        if isinstance(entry.code, CodeType) and not entry.code.co_filename.startswith(LIBRARY)
        for inner in entry.calls or ()
    }
    return [
        name
        for name, thing in public_names().items()
        if codes(thing) & (ran if inspect.isclass(thing) else called)
    ]


def public_names() -> dict[str, Any]:
    """What `jmdp_lib` and its sub-packages export, by the full names."""
    found: dict[str, Any] = {}
    for name in JMDP_LIB.__all__:
        thing = getattr(JMDP_LIB, name)
        if inspect.ismodule(thing):
            found |= {f"{thing.__name__}.{inner}": getattr(thing, inner) for inner in thing.__all__}
        else:
            found[f"jmdp_lib.{name}"] = thing
    return found


def codes(thing: Any) -> set[int]:
    """Ids of the code of a function, or of all methods and properties of a class.

    Code of equal text is equal, and dataclasses share a part of theirs, which does not count.
    """
    found = set()
    for part in vars(thing).values() if inspect.isclass(thing) else [thing]:
        function = part
        for inner in ("fget", "func", "__func__"):  # of properties, cached ones and class methods
            function = getattr(function, inner, function)
        if inspect.isfunction(function):
            code = inspect.unwrap(function).__code__
            if code.co_filename.startswith((LIBRARY, "<string>")):
                found.add(id(code))
    return found
