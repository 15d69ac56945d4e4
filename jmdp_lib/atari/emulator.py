"""The games that ship with ale-py, and an emulator without any randomness of its own."""

from __future__ import annotations

import difflib
from functools import lru_cache

from ale_py import ALEInterface, LoggerMode, roms


@lru_cache(maxsize=1)
def _roms() -> dict[str, str]:
    """ROM ids by lower-case name without underscores, for the ROMs that the emulator can play."""
    playable = [g for g in roms.get_all_rom_ids() if ALEInterface.isSupportedROM(_path(g))]
    return {rom.replace("_", ""): rom for rom in playable}


def games() -> list[str]:
    """The names that `CoupledAtari` takes: Adventure, AirRaid, ..., Zaxxon."""
    return sorted(rom.title().replace("_", "") for rom in _roms().values())


def rom_id(game: str) -> str:
    """`battle_zone` for BattleZone, battle_zone or battlezone; the closest names for a typo."""
    key = game.lower().replace("_", "") if isinstance(game, str) else game
    if key in _roms():
        return _roms()[key]
    names = {name.lower(): name for name in games()}
    close = [names[k] for k in difflib.get_close_matches(str(key), names, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(close)}?" if close else "games() lists the names"
    raise ValueError(f"unknown game {game!r}: {hint}")


def load(rom: str) -> ALEInterface:
    """An emulator of one frame per act, started, whose only input is the actions.

    Its own sticky actions are off: "previous action" is no part of its saved state, so after a
    restore it would repeat what another branch played.
    """
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", 1)  # memory at power-on; the default is the time of day
    ale.setInt("frame_skip", 1)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(_path(rom))
    ale.reset_game()
    return ale


def _path(rom: str) -> str:
    return str(roms.get_rom_path(rom))
