"""What the library says of the machine: missing extras."""

from __future__ import annotations

from importlib import import_module

import pytest

from jmdp_lib.machine import extra


def test_a_missing_extra_is_named_with_the_command_that_installs_it() -> None:
    missing = pytest.raises(ImportError, match="no_such_module is not installed")
    with missing as caught, extra("figures", "torch"):
        import_module("no_such_module")
    assert 'pip install "jmdp_lib[figures,torch]"' in str(caught.value)
    assert caught.value.name == "no_such_module"
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_the_inner_extra_is_named() -> None:
    with pytest.raises(ImportError, match=r"jmdp_lib\[torch\]"), extra("atari"), extra("torch"):
        import_module("no_such_module")


def test_a_mistake_of_our_own_is_not_blamed_on_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), extra("figures"):
        import_module("jmdp_lib.no_such_module")
