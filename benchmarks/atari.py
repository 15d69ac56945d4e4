"""Outcomes per second of `CoupledAtari.query` against raw emulator steps: `python atari.py`.

One step is `frame_skip` frames. The raw emulator plays uniform random actions with the ALE's own
frame skip and sticky actions; the wrapper queries m actions at every state of such a trajectory
and executes the last. The bare loop is the least that a query could do with the ALE's own means,
on the same trajectory: it plays the repeated frames once, clones, restores between the actions
and reads nothing. Its ratio says what clones and restores cost. The wrapper's are cheaper
(`jmdp_lib.atari.emulator.compact`), so that it can be the faster one although it reads.

The three take turns with blocks that start at the same states. All blocks are played several times,
and of each the least seconds of the process count, since a busy machine only adds to them. About
two minutes.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from ale_py import ALEInterface, ALEState, roms

from jmdp_lib.atari import CoupledAtari, Snapshot
from jmdp_lib.atari.emulator import compact, load

GAMES = ("Pong", "BattleZone", "Boxing", "Atlantis")
FRAME_SKIP, OUTCOMES, STRETCHES, REPEATS = 4, 36, 24, 4
Queries = list[list[int]]  # (Q, m)


def raw_emulator(rom: str, sticky_prob: float) -> ALEInterface:
    ale = ALEInterface()
    ale.setInt("frame_skip", FRAME_SKIP)
    ale.setFloat("repeat_action_probability", sticky_prob)
    ale.loadROM(str(roms.get_rom_path(rom)))
    return ale


def raw_block(ale: ALEInterface, here: ALEState, queries: Queries) -> float:
    """Seconds of one step for every action."""
    ale.restoreState(here)
    start = time.process_time()
    for codes in queries:
        for code in codes:
            ale.act(code)
    return time.process_time() - start


def bare_block(
    ale: ALEInterface, here: ALEState, previous: int, queries: Queries, repeats: list[int]
) -> float:
    """Seconds of the bare loop. repeats: (Q,) frames on which the previous action is repeated."""
    ale.restoreState(here)
    start = time.process_time()
    for codes, repeated in zip(queries, repeats, strict=False):
        own = range(FRAME_SKIP - repeated)
        for _ in range(repeated):
            ale.act(previous)
        fork = ale.cloneState()
        for i, code in enumerate(codes):
            if i and own:
                ale.restoreState(fork)
            for _ in own:
                ale.act(code)
        previous = codes[-1] if own else previous
    return time.process_time() - start


def query_block(
    env: CoupledAtari, here: Snapshot, queries: Queries, seed: int
) -> tuple[float, list[int], Snapshot]:
    """Seconds of the queries and steps, the frames that their draws repeat, and where they end."""
    env.np_random = np.random.default_rng(seed)
    env.restore(here)
    repeats = []
    start = time.process_time()
    for actions in queries:
        repeats.append(env.draw.repeats)
        outcomes = env.query(actions)
        if env.step(actions[-1])[2]:
            break
    took = time.process_time() - start
    return took, repeats, outcomes[-1].snapshot._replace(draw=env.draw)


def row(game: str, sticky_prob: float, m: int | None) -> str:
    rng, env = np.random.default_rng(0), CoupledAtari(game, sticky_prob, FRAME_SKIP)
    raw, bare = raw_emulator(env.game, sticky_prob), load(env.game)
    names = [action.value for action in raw.getMinimalActionSet()] + [0]
    m, begin, over = m or env.num_actions, bare.cloneState(), True
    blocks = []
    while len(blocks) < STRETCHES:
        if over:
            env.reset()
            here, state = env.snapshot(), begin
        queries = [rng.permutation(env.num_actions)[:m].tolist() for _ in range(OUTCOMES // m)]
        codes = [[names[action] for action in actions] for actions in queries]
        _, repeats, after = query_block(env, here, queries, len(blocks))
        bare_block(bare, state, names[here.previous], codes, repeats)
        raw_block(raw, state, codes)
        over = after.over
        if not over and not raw.game_over():  # a game that has ended takes no time
            blocks.append((state, codes, here, queries, repeats))
        here, state = after, bare.cloneState()
    assert compact(state) == env.snapshot().saved
    times = np.empty((REPEATS, STRETCHES, 3))
    for repeat in range(REPEATS):
        for i, (state, codes, here, queries, repeats) in enumerate(blocks):
            times[repeat, i] = (
                raw_block(raw, state, codes),
                bare_block(bare, state, names[here.previous], codes, repeats),
                query_block(env, here, queries, i)[0],
            )
    seconds = times.min(0).mean(0) / OUTCOMES
    rates = [f"{1.0 / seconds[i]:.0f}" for i in (0, 2)]
    ratios = [f"{seconds[0] / seconds[i]:.2f}" for i in (1, 2)]
    return f"| {' | '.join([game, str(sticky_prob), str(m), *rates, *ratios])} |"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| game | sticky | m | raw steps/s | outcomes/s | ratio of the bare loop | ratio |")
    print("|---|---|---|---|---|---|---|")
    for game in GAMES:
        for sticky_prob in (0.0, 0.25):
            for m in (2, None):
                print(row(game, sticky_prob, m))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
