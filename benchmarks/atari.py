"""Outcomes per second of `CoupledAtari.query` against raw emulator steps: `python atari.py`.

One step is `frame_skip` frames. The raw emulator plays uniform random actions with the ALE's own
frame skip and sticky actions; the wrapper queries m actions at every state of such a trajectory
and executes the last. Seconds are those of the process, and blocks of both take turns, so that a
busy machine slows both alike; the ratio is the median over blocks. About a minute.

A restore costs as much as a tenth of a step, or more where steps are short (Pong); sticky actions
give some of it back, because the repeated frames are played once for all queried actions.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import numpy as np
from ale_py import ALEInterface, LoggerMode, roms

from jmdp_lib.atari import CoupledAtari

GAMES = ("Pong", "BattleZone", "Boxing", "Atlantis")
FRAME_SKIP, OUTCOMES, BLOCKS = 4, 72, 25


def raw_emulator(rom: str, sticky_prob: float) -> ALEInterface:
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", 1)
    ale.setInt("frame_skip", FRAME_SKIP)
    ale.setFloat("repeat_action_probability", sticky_prob)
    ale.loadROM(str(roms.get_rom_path(rom)))
    ale.reset_game()
    return ale


def raw_block(ale: ALEInterface, codes: list[int], rng: np.random.Generator) -> float:
    """Seconds for one block; after game over `act` returns at once, so the game is restarted."""
    took = 0.0
    for code in rng.choice(codes, OUTCOMES).tolist():
        if ale.game_over():
            ale.reset_game()
        start = time.process_time()
        ale.act(code)
        took += time.process_time() - start
    return took


def query_block(env: CoupledAtari, m: int, rng: np.random.Generator) -> float:
    """Seconds for the same number of outcomes, steps included."""
    took, over = 0.0, False
    for _ in range(OUTCOMES // m):
        if over:
            env.reset()
        actions = rng.permutation(env.num_actions)[:m].tolist()
        start = time.process_time()
        env.query(actions)
        _, _, terminated, truncated, _ = env.step(actions[-1])
        took += time.process_time() - start
        over = terminated or truncated
    return took / (OUTCOMES // m * m) * OUTCOMES


def row(game: str, sticky_prob: float, m: int | None) -> str:
    rng = np.random.default_rng(0)
    env = CoupledAtari(game, sticky_prob, FRAME_SKIP, seed=0)
    env.reset()
    ale = raw_emulator(env.game, sticky_prob)
    codes = [action.value for action in ale.getMinimalActionSet()]
    m = m or env.num_actions
    raw, wrapped = [], []
    for _ in range(BLOCKS):
        raw.append(raw_block(ale, codes, rng))
        wrapped.append(query_block(env, m, rng))
    ratio = median(r / w for r, w in zip(raw, wrapped, strict=True))
    rates = [f"{OUTCOMES / median(times):.0f}" for times in (raw, wrapped)]
    return f"| {game} | {sticky_prob} | {m} | {rates[0]} | {rates[1]} | {ratio:.2f} |"


def main() -> None:
    print("| game | sticky | m | raw steps/s | outcomes/s | ratio |\n|---|---|---|---|---|---|")
    for game in GAMES:
        for sticky_prob in (0.0, 0.25):
            for m in (2, None):
                print(row(game, sticky_prob, m))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
