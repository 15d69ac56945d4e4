"""The games of ale-py, an emulator without its own randomness, and a compact form of its states."""

import difflib
from functools import lru_cache

import numpy as np
from ale_py import Action, ALEInterface, ALEState, LoggerMode, roms
from numpy.typing import NDArray

# An ALEState in bytes: seven integers, the saved console and two integers. The first two are the
# paddle knobs. The console begins with a checksum, its name and its cycles; the numbers of a
# generator follow, as text after its length.
_KNOBS = slice(0, 8)
_CONSOLE = 28
_NAME = slice(68, 74)
_NUMBERS = 78
_END = -8
_SYSTEM = b"System"
_NO_TEXT = bytes(4)


@lru_cache(maxsize=1)
def _roms() -> dict[str, str]:
    """ROM ids by lower-case name without underscores, for the ROMs that the emulator can play."""
    return {
        rom.replace("_", ""): rom
        for rom in roms.get_all_rom_ids()
        if ALEInterface.isSupportedROM(str(roms.get_rom_path(rom)))
    }


def title(game: str) -> str:
    """The title of a game, such as BattleZone, from any name that `rom_id` takes."""
    return rom_id(game).title().replace("_", "")


def rom_id(game: str) -> str:
    """The id battle_zone of BattleZone, battle_zone or battlezone; an error names close titles."""
    key = game.lower().replace("_", "") if isinstance(game, str) else ""
    if key in _roms():
        return _roms()[key]
    names = {short: title(rom) for short, rom in sorted(_roms().items())}
    close = [names[k] for k in difflib.get_close_matches(key, names, n=3, cutoff=0.5)]
    hint = (
        f"did you mean {' or '.join(close)}?"
        if close
        else f"the games are {', '.join(names.values())}"
    )
    raise ValueError(f"unknown game {game!r}: {hint}")


def load(rom: str) -> ALEInterface:
    """A started emulator of one frame per act, whose only input is the actions.

    Its own sticky actions are off: its saved state does not contain the previous action, so after a
    restore it would repeat the action of another branch.
    """
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", 1)  # memory at power-on; the default is the time of day
    ale.setInt("frame_skip", 1)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(str(roms.get_rom_path(rom)))
    ale.reset_game()
    start = ale.cloneState()
    ale.act(Action.NOOP)  # in Qbert, a saved state lacks something that settles with a frame
    ale.restoreState(start)
    return ale


def ram_and_paddles(ale: ALEInterface) -> NDArray[np.uint8]:
    """(130,) the memory, and the two paddle knobs in steps of 4096.

    The emulator turns a knob by 23,000 a frame while left or right is pressed, up to its ends,
    27,450 and 790,196. At an end, pressing on changes nothing, so two actions have one future. The
    memory does not show that: the game reads the knob late, and stores another position.
    """
    raw = ale.cloneState().serialize()
    if raw[_NAME] != _SYSTEM:
        raise RuntimeError("obs='ram+paddles': this ale-py saves its states in an unknown way")
    knobs = np.frombuffer(raw[_KNOBS], "<i4") >> 12
    return np.append(ale.getRAM(), knobs.astype(np.uint8))


def compact(state: ALEState) -> ALEState:
    """The state without the numbers of the console's generator, which are most of its bytes.

    The emulator writes 624 of them as text in every clone and reads them in every restore, which
    takes longer than everything else. They are used when the console is switched on, never in play.
    Restoring a compact state leaves the emulator's own numbers as they are.
    """
    raw = state.serialize()
    if raw[_NAME] != _SYSTEM:  # an ale-py that saves its states in another way
        return state
    after = _NUMBERS + 4 + int.from_bytes(raw[_NUMBERS : _NUMBERS + 4], "little")
    return ALEState(state, raw[_CONSOLE:_NUMBERS] + _NO_TEXT + raw[after:_END])
