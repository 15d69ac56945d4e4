"""The coupled emulator: one draw for all actions, on the games of the paper."""

import pickle
from functools import lru_cache, partial
from itertools import product

import numpy as np
import pytest
from ale_py import ALEInterface, LoggerMode, roms
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from jmdp_lib.atari import CoupledAtari, Draw
from jmdp_lib.atari.emulator import _roms, compact, load, rom_id, title

GAMES = ("Pong", "BattleZone", "Boxing", "Atlantis")
EVERY = sorted(map(title, _roms().values()))
on_all_games = pytest.mark.parametrize("game", GAMES)


@lru_cache
def emulator(game, sticky_prob=0.25, obs="ram"):
    return CoupledAtari(game, sticky_prob=sticky_prob, obs=obs)


def started(game, seed=0, steps=30, **settings):
    """A fresh stream, some random steps into the game."""
    env = emulator(game, **settings)
    env.reset(seed=seed)
    for action in np.random.default_rng(seed).integers(env.num_actions, size=steps):
        env.step(action)
    return env


def facts(outcome):
    """All of an outcome, comparable bit for bit."""
    after = outcome.snapshot
    return (
        outcome.action,
        outcome.reward,
        outcome.observation.tobytes(),
        outcome.terminated,
        outcome.truncated,
        outcome.info["lives"],
        after.previous,
        after.identity,
    )


def trajectory(env, actions):
    results = []
    for action in actions:
        seen, *rest = env.step(action)
        results.append((seen.tobytes(), *rest, env.draw, env.snapshot().identity))
    return results


@pytest.mark.parametrize("repeats", [0, 1, 4])
@pytest.mark.parametrize(("game", "obs"), [*product(GAMES, ["ram"]), ("Boxing", "pixels")])
def test_executed_branch_is_the_queried_one(game, obs, repeats):
    """With clones and without; pixels are those of the branch, not of the last emulated frame."""
    env = started(game, 2, obs=obs)
    last = env.num_actions - 1
    for action in (last, 0, 2):  # the last queried, another queried, one that was not
        env.redraw(Draw(repeats))
        here = env.snapshot()
        queried = {o.action: o for o in env.query([0, 1, last], clones=True)}
        seen, reward, terminated, truncated, info = env.step(action)
        after = env.snapshot()
        result = (action, reward, seen.tobytes(), terminated, truncated, info["lives"])
        assert (env.restore(here) == here.observation).all()
        outcome = queried.get(action) or env.query([action], clones=True)[0]
        assert (*result, after.previous, after.identity) == facts(outcome)
        env.restore(here)
        way = env.query([action, 1 if action else 2])[0]
        moved = pickle.loads(pickle.dumps(way.snapshot))
        with pytest.raises(ValueError, match="was not cloned"):
            _ = moved.identity
        assert (way.observation == seen).all()
        for successor in (outcome.snapshot, moved):
            assert (env.restore(successor) == seen).all()
            assert (env.snapshot().identity, env.previous) == (after.identity, after.previous)


@on_all_games
def test_querying_does_not_disturb_the_trajectory(game):
    actions = np.random.default_rng(3).integers(emulator(game).num_actions, size=12)
    plain = trajectory(started(game, 3), actions)
    env = started(game, 3)
    results = []
    for action in actions:
        first = env.query([0, 1, 2])
        assert env.query([2, 0])[1] is first[0]  # one table, however often it is read
        env.snapshot()
        results += trajectory(env, [action])
    assert results == plain


def frames_from(state, ale):
    """Rewards and states of forty frames."""
    ale.restoreState(state)
    return [(ale.act(frame // 7 % 18), compact(ale.cloneState())) for frame in range(40)]


@pytest.mark.parametrize(
    "names", [GAMES, pytest.param(EVERY[4::16], marks=pytest.mark.slow)], ids=["paper", "others"]
)
def test_compact_states_lead_where_whole_ones_lead(names):
    for rom in map(rom_id, names):
        ale = load(rom)
        for frame in range(100):
            ale.act(frame // 7 % 18)
        saved = ale.cloneState()
        assert len(compact(saved).serialize()) < len(saved.serialize()) / 5, rom
        assert compact(compact(saved)) == compact(saved), rom
        _, once, again = (frames_from(state, ale) for state in (saved, saved, compact(saved)))
        assert once == again, rom


def test_all_resets_have_one_future():
    """In Qbert the first game after loading differed from all later ones."""
    env = CoupledAtari("Qbert", sticky_prob=0.0)
    futures = []
    for _ in range(2):
        env.reset()
        for _ in range(20):
            env.step(0)
        futures.append(env.snapshot().identity)
    assert futures[0] == futures[1]


def test_draws_follow_from_the_seed():
    one, other = (CoupledAtari("Pong", rng=7) for _ in range(2))
    for env in (one, other):
        env.reset()
    for _ in range(20):
        assert one.draw == other.draw
        one.redraw()
        other.redraw()


def test_fresh_draws_are_independent():
    env = started("Pong", 5)
    repeats = []
    for _ in range(16_000):
        env.redraw()
        repeats.append(env.draw.repeats)
    probs = np.array([0.75 * 0.25**k for k in range(4)] + [0.25**4])
    errors = np.bincount(repeats, minlength=5) / 16_000 - probs
    assert (abs(errors) < 4.5 * np.sqrt(probs * (1.0 - probs) / 16_000)).all()
    assert abs(np.corrcoef(repeats[1:], repeats[:-1])[0, 1]) < 4.5 / np.sqrt(16_000)


@on_all_games
@pytest.mark.parametrize(
    "sticky_prob",
    [0.25, pytest.param(0.0, marks=pytest.mark.slow), pytest.param(1.0, marks=pytest.mark.slow)],
)
def test_reproduces_native_play_with_its_own_lottery(game, sticky_prob):
    """The ALE draws two numbers per frame, the first one for player A, from a seeded MT19937."""
    env, seed = emulator(game), 1
    ALEInterface.setLoggerMode(LoggerMode.Error)
    native = ALEInterface()
    native.setInt("random_seed", seed)
    native.setInt("frame_skip", env.frame_skip)
    native.setFloat("repeat_action_probability", sticky_prob)
    native.loadROM(str(roms.get_rom_path(env.game)))
    native.reset_game()
    codes = [action.value for action in native.getMinimalActionSet()]
    lottery = np.random.RandomState(seed)._bit_generator.random_raw(2 * 4 * 80)[::2] / 2.0**32
    env.reset(seed=0)
    assert env.snapshot().saved == compact(native.cloneState())
    repeated = 0
    for t, action in enumerate(np.random.default_rng(8).integers(env.num_actions, size=80)):
        obeyed = lottery[4 * t : 4 * t + 4] >= sticky_prob
        repeats = int(obeyed.argmax()) if obeyed.any() else 4
        repeated += repeats
        env.redraw(Draw(repeats))
        _, reward, terminated, _, info = env.step(action)
        assert reward == native.act(codes[action])
        assert (terminated, info["lives"]) == (native.game_over(), native.lives())
        assert env.snapshot().saved == compact(native.cloneState()), f"step {t}"
    assert (repeated > 0) == (sticky_prob > 0)


@on_all_games
def test_identities_are_equal_where_states_are(game):
    env = started(game, 9, sticky_prob=0.0)
    for _ in range(20):
        ways = [outcome.snapshot for outcome in env.query(range(4), clones=True)]
        for a, b in product(ways, ways):
            assert (a.identity == b.identity) == (a.saved == b.saved)
        env.step(env.action_space.sample())


def test_shock_is_shared_by_the_actions():
    env = CoupledAtari("Pong", shock=0.3, rng=11)
    env.reset()
    shocks = []
    for _ in range(50):
        outcomes = env.query(range(6))
        rewards = np.array([o.reward for o in outcomes]) - 0.3 * env.draw.shock
        assert np.allclose(rewards, np.clip(np.round(rewards), -1, 1))
        shocks.append(env.draw.shock)
        env.step(0)
    assert set(shocks) == {-1.0, 1.0}


OVER = "after the end of the episode"


def refuses_play(env, message):
    for call in (partial(env.step, 0), partial(env.query, [0]), env.redraw):
        with pytest.raises(ResetNeeded, match=message):
            call()


def test_end_of_the_game_and_of_the_time(monkeypatch):
    monkeypatch.setattr("jmdp_lib.atari.env.MAX_FRAMES", 60)
    env = CoupledAtari("BattleZone", sticky_prob=0.0)
    env.reset()
    for _ in range(15):
        _, _, terminated, truncated, _ = env.step(0)
    assert (terminated, truncated) == (False, True)
    refuses_play(env, OVER)


@pytest.mark.slow
def test_game_over_belongs_to_the_branch():
    env = started("BattleZone", 12, steps=0)
    rng, visited = np.random.default_rng(12), []
    terminated = False
    while not terminated:
        visited.append(env.snapshot())
        _, _, terminated, _, info = env.step(rng.integers(18))
    assert info["lives"] == 0
    env.restore(visited[-1])
    ends = [o for o in env.query(range(18)) if o.terminated]
    assert ends
    env.restore(ends[0].snapshot)
    refuses_play(env, OVER)
    env.restore(visited[-60])
    assert not any(o.terminated for o in env.query(range(18)))
    env.reset()
    assert env.query([0])[0].info["lives"] == 5


@pytest.mark.slow
def test_paddle_knobs_decide_futures_that_memory_does_not():
    """At an end of its range pressing on changes nothing: NOOP and RIGHT have one future."""
    env = started("Pong", 12, sticky_prob=0.0, obs="ram+paddles")
    assert env.observed.shape == env.observation_space.shape == (130,)
    futures, choices = {}, np.random.default_rng(12)
    for _ in range(400):
        noop, _, right, left = (o.snapshot.identity for o in env.query(range(4), clones=True))
        futures.setdefault(int(env.observed[128]), set()).add((noop == right, noop == left))
        if any(env.step(choices.integers(6))[2:4]):
            env.reset()
    ends = min(futures), max(futures)
    assert len(futures) > 10
    assert sorted(futures[ends[0]] | futures[ends[1]]) == [(False, True), (True, False)]
    assert all(futures[knob] == {(False, False)} for knob in futures if knob not in ends)


@pytest.mark.parametrize("obs", ["ram", "ram+paddles", "pixels"])
def test_gymnasium_approves(obs):
    check_env(CoupledAtari("Pong", obs=obs), skip_render_check=True)


@pytest.mark.slow
def test_other_games_can_be_queried():
    assert len(EVERY) >= 100
    for game in [*EVERY[::16], "Backgammon"]:  # the last has no NOOP in its action set
        env = CoupledAtari(game, rng=0)
        env.reset()
        outcomes = env.query(range(env.num_actions))
        seen = env.step(env.num_actions - 1)[0]
        assert (seen == outcomes[-1].observation).all(), game


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"game": "Pnog"}, "unknown game 'Pnog': did you mean Pong"),
        ({"game": "#"}, "the games are Adventure, "),
        ({"sticky_prob": 1.5}, r"sticky_prob must lie in \[0, 1\], got 1.5"),
        ({"frame_skip": 0}, "frame_skip must be at least 1, got 0"),
        ({"obs": "rgb"}, r"obs must be one of 'ram', 'ram\+paddles', 'pixels', got 'rgb'"),
        ({"rng": -1}, "rng must be an integer that is not negative.*got -1"),
        ({"shock": 0.0}, "shock must lie in"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(ValueError, match=message):
        CoupledAtari(**{"game": "Pong", **change})


def test_bad_calls():
    refuses_play(CoupledAtari("Pong"), r"before reset\(\)")
    env, boxing = started("Pong", 0), emulator("Boxing")
    drawn = env.snapshot()._replace(draw=Draw(4))
    pixels = started("Boxing", obs="pixels").snapshot()
    none = "is not a draw of this game"
    for call, given, error, message in (
        (env.query, [0, 6], IndexError, "action 6 is out of range: there are 6"),
        (env.step, -1, IndexError, "action -1 is out of range"),
        (env.step, 1.0, IndexError, r"action must be an integer, got 1\.0"),
        (env.query, [1, 1], ValueError, "all distinct"),
        (env.query, [], ValueError, "at least one action"),
        (
            env.redraw,
            Draw(5),
            ValueError,
            rf"Draw\(repeats=5, shock=None\) {none}: repeats \[0, 1, 2, 3, 4\] have",
        ),
        (env.redraw, Draw(2.0), ValueError, none),
        (env.redraw, Draw(1, 1.0), ValueError, f"{none}: .*, the shock is None"),
        (env.redraw, 3, ValueError, f"3 {none}"),
        (env.restore, drawn.saved, TypeError, "must be a Snapshot"),
        (boxing.restore, drawn, ValueError, "a snapshot of pong cannot be restored in boxing"),
        (boxing.restore, pixels, ValueError, "the snapshot's observation must have shape"),
    ):
        with pytest.raises(error, match=message):
            call(given)
    for settings, message in (
        ({"frame_skip": 2}, rf"{none}: repeats \[0, 1, 2\]"),
        ({"sticky_prob": 0.0}, rf"{none}: repeats \[0\]"),
        ({"shock": 1.0}, f"{none}: .*, the shock is 1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            CoupledAtari("Pong", **settings).restore(drawn)
