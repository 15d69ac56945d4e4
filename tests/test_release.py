"""The authors' release: games, losses, training and rules, against other ways to say them."""

import time
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import gymnasium
import numpy as np
import pandas as pd
import pytest
import torch
import torch._inductor  # a first optimiser imports it, and that sets a variable
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from torch import nn
from torch.testing import assert_close

from experiments.files import claim, replacing
from experiments.processes import in_processes
from experiments.release import limits, play, results, runs, training
from experiments.release.network import predictions
from experiments.release.settings import LOSSES, PROTOCOL, Run, settings_of
from experiments.release.training import Learner, block_draws, data_on, train

STEPS = 24
NUM_ACTIONS = 6  # of Pong


def tiny(name, **changed):
    """The named settings with a few steps of a small network."""
    small = {"steps": STEPS, "learn_from": 4, "window": 2, "copy_every": 3, "replay": 16}
    sizes = {"batch": 2, "hidden": 6, "embedding": 3, "states": 3, "pairs": 3, "horizon": 8}
    gram = {"gram_dim": 4} if name == "launcher" else {}
    return replace(settings_of(name, miniature=True), **small | sizes | gram | changed)


def made_up(num_steps=STEPS):
    """A play of random screens, in which all kinds of ends happen."""
    rng = np.random.default_rng(0)
    screens = rng.integers(256, size=(2 * num_steps + 1, 84, 84), dtype=np.uint8)
    return play.Collected(
        screens[: num_steps + 1],
        screens[num_steps + 1 :],
        play.distinct_pairs(rng.random((num_steps, 2)), NUM_ACTIONS),
        rng.integers(-1, 3, (num_steps, 2)).astype(np.float32),
        rng.random((num_steps, 2)) < 0.3,
        rng.choice(np.array([-1, 1], np.int8), num_steps),
        NUM_ACTIONS,
    )


def learner_of(name, found=None, **changed):
    settings = tiny(name, **changed)
    data = data_on("cpu", found or made_up(), settings)
    return Learner(Run(name, settings, "Pong", 0), data)


def nudge(learner):
    """Make the target another network than the one that learns, and its vectors no tiny ones."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for module in (learner.network, learner.target):
            for weights in module.parameters():
                weights.add_(0.1 * torch.randn(weights.shape))


class Plain:
    """A network in doubles: Sigma from its formula, for one screen and one action at a time."""

    def __init__(self, network):
        self.net = deepcopy(network).double()
        self.pair = hasattr(self.net.head, "layers")

    def h(self, screen):
        return self.net.encoder(torch.from_numpy(screen / 255.0)[None, None])[0]

    def mu(self, screen, action):
        return self.net.mean(self.h(screen))[action]

    def z(self, screen, action):
        return torch.cat([self.h(screen), self.net.embedding.weight[action]])

    def v(self, screen, action):
        return self.net.head.features(self.z(screen, action))

    def sigma(self, x, y):
        """Of two screens and actions."""
        if not self.pair:
            return self.mu(*x) * self.mu(*y) + self.v(*x) @ self.v(*y)
        x, y = self.z(*x), self.z(*y)
        return self.net.head.layers(torch.cat([x + y, (x - y).abs(), x * y]))[0]

    def second_of_gap(self, x, y):
        return self.sigma(x, x) + self.sigma(y, y) - 2 * self.sigma(x, y)


def plain_losses(online, target, found, settings, rows, next_actions):
    """The five losses, written from the formulas of the facts, one row of a batch after the other.

    rows (3, B): X, Y, Q. next_actions (6, B): for mu, diag, the two of cross, the two of same.
    """
    g = settings.gamma
    total = torch.zeros(5, dtype=torch.float64)

    def of(row, position):
        """Screen and action, reward, next screen, alive."""
        shock = settings.b * found.signs[row] * (1 if position == 0 else -1)
        paid = (1 - g) * min(max(found.rewards[row, position] + shock, 0.0), 1.0)
        then = found.screens[row + 1] if position == 0 else found.others[row]
        alive = 0.0 if found.ended[row, position] else 1.0
        return (found.screens[row], int(found.actions[row, position])), paid, then, alive

    def backup(one, two, a1, a2):
        """The target of a second moment."""
        (_, r1, then1, alive1), (_, r2, then2, alive2) = one, two
        later = r1 * alive2 * target.mu(then2, a2) + r2 * alive1 * target.mu(then1, a1)
        both = alive1 * alive2 * target.sigma((then1, a1), (then2, a2))
        return r1 * r2 + g * later + g**2 * both

    def error(one, two, *actions):
        x, y = one[0], two[0]
        t = backup(one, two, *actions)
        if online.pair:
            return (online.sigma(x, y) - t) ** 2
        return (online.v(*x) @ online.v(*y) - (t - target.mu(*x) * target.mu(*y))) ** 2

    for (i, j, k), actions in zip(rows.T.tolist(), next_actions.T.tolist(), strict=True):
        for_mu, for_diag, for_x, for_y, a, b = actions
        x, y, first, second = of(i, 0), of(j, 0), of(k, 0), of(k, 1)
        place, r, then, alive = x
        mu = (online.mu(*place) - r - g * alive * target.mu(then, for_mu)) ** 2
        diag = error(x, x, for_diag, for_diag)
        cross = error(x, y, for_x, for_y)
        t = backup(first, first, a, a) + backup(second, second, b, b)
        t = t - 2 * backup(first, second, a, b)
        gap = (online.second_of_gap(first[0], second[0]) - t) ** 2
        total = total + torch.stack([mu, diag, error(first, second, a, b), cross, gap])
    return total / rows.shape[1]


@pytest.mark.parametrize("name", ["defaults", "launcher"])
def test_losses_and_gradients_are_those_of_the_formulas(name):
    found = made_up()
    learner = learner_of(name, found, gamma=0.9)
    nudge(learner)
    rng = np.random.default_rng(2)
    rows = rng.integers(STEPS, size=(3, 4))
    rows[1, 0] = rows[0, 0]  # a row beside itself
    next_actions = rng.integers(NUM_ACTIONS, size=(6, 4))
    assert {found.ended[rows, 0].any(), found.ended[rows, 0].all()} == {True, False}
    given = learner._losses(
        torch.from_numpy(rows), learner.identity[torch.from_numpy(next_actions)]
    )
    online, target = Plain(learner.network), Plain(learner.target)
    expected = plain_losses(online, target, found, learner.settings, rows, next_actions)
    assert_close(given.double(), expected, rtol=1e-4, atol=1e-9)
    slopes, wanted = (
        torch.autograd.grad(every.sum(), list(network.parameters()), retain_graph=True)
        for every, network in ((given, learner.network), (expected, online.net))
    )
    for slope, exact in zip(slopes, wanted, strict=True):
        size = exact.abs().max().item()
        assert_close(slope.double(), exact, rtol=1e-3, atol=1e-4 * size)
    mean = torch.autograd.grad(given[4], learner.network.mean[2].weight)[0]
    assert mean.any() == (name == "launcher")  # the gap's gradient reaches the means


@pytest.mark.parametrize("name", ["defaults", "launcher"])
def test_predictions_are_those_of_the_formulas(name):
    learner = learner_of(name)
    nudge(learner)
    net, found = Plain(learner.network), made_up(3)
    asked = np.array([[0, 2], [3, 1], [5, 4]])
    told = predictions(
        learner.network, torch.from_numpy(found.others), learner.identity[torch.from_numpy(asked)]
    )
    coupled, independent = [], []
    for s, (a, b) in zip(found.others, asked.tolist(), strict=True):
        x, y = (s, a), (s, b)
        squares = [net.sigma(place, place) - net.mu(*place) ** 2 for place in (x, y)]
        independent.append(sum(max(0.0, square.item()) for square in squares))
        variance = net.second_of_gap(x, y) - (net.mu(*x) - net.mu(*y)) ** 2
        coupled.append(max(0.0, variance.item()))
    assert told["coupled"] == pytest.approx(np.mean(coupled), rel=1e-3, abs=1e-7)
    assert told["independent"] == pytest.approx(np.mean(independent), rel=1e-3, abs=1e-7)
    assert told["independent"] > 0.0


def test_networks_are_those_of_the_release():
    for name, head in (("defaults", [(256, 864), (256, 256), (1, 256)]), ("launcher", None)):
        settings = settings_of(name)
        network = training.new_network(settings, 18, np.random.SeedSequence(0))
        shapes = {key: tuple(value.shape) for key, value in network.named_parameters()}
        matrices = [shape for key, shape in shapes.items() if key.endswith("weight")]
        body = [(32, 1, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (256, 3136), (256, 256), (18, 256)]
        assert matrices == [*body, (18, 32), *(head or [(256, 288), (128, 256)])]
        kinds = [nn.Conv2d, nn.ReLU] * 3 + [nn.Flatten, nn.Linear, nn.ReLU]
        assert [type(layer) for layer in network.encoder] == kinds
    last = network.head.features[2]
    assert not last.bias.any()
    assert last.weight.std().item() == pytest.approx(1e-3, rel=0.05)
    largest = network.head.features[0].weight.abs().max().item()
    assert largest == pytest.approx(288**-0.5, rel=0.01)  # torch's own start


def test_update_is_a_step_of_adam_with_a_short_gradient():
    learner = learner_of("launcher", gradient_norm=1e-3)
    nudge(learner)
    learner.begin_block(6)
    rows, actions = (torch.from_numpy(drawn[0]) for drawn in block_draws(learner, 6))
    found = learner._losses(rows, learner.identity[actions])
    loss = found[:4].sum() + 0.1 * found[4]
    before = [weights.detach().clone() for weights in learner.network.parameters()]
    slopes = torch.autograd.grad(loss, list(learner.network.parameters()))
    norm = torch.cat([slope.flatten() for slope in slopes]).norm()
    assert norm > 1e-2
    target = [weights.clone() for weights in learner.target.parameters()]
    learner.update()
    for was, slope, now in zip(before, slopes, learner.network.parameters(), strict=True):
        cut = slope * 1e-3 / norm
        step = 1e-4 * cut / (cut.abs() + 1e-8)
        assert_close(was - now, step, rtol=1e-2, atol=2e-7)
    assert_close(learner.written[0], found.detach())
    assert all(map(torch.equal, target, learner.target.parameters()))


def test_target_is_copied_and_records_are_made_after_the_updates_of_their_steps(monkeypatch):
    learner = learner_of("defaults")
    wanted = learner.target.embedding.weight.clone()
    assert torch.equal(wanted, learner.network.embedding.weight)
    seen, errors = [], []
    update = learner.update

    def spied():
        old = learner.target.embedding.weight.clone()
        place = int(learner.position)
        update()
        seen.append((old, learner.network.embedding.weight.detach().clone()))
        errors.append(float(learner.written[place, 0]))

    monkeypatch.setattr(learner, "update", spied)
    train([learner])
    assert len(seen) == STEPS - 4 + 1  # the first at step 4
    copies = 0
    for step, (target, learned) in enumerate(seen, start=4):
        assert torch.equal(target, wanted)
        assert learner.settings.copies(step) == copies
        if step % 3 == 0:
            wanted, copies = learned, copies + 1
    at_full_size = map(settings_of("launcher").copies, [5000, 6000, 6001, 50000, 50001, 200000])
    assert list(at_full_size) == [0, 0, 1, 22, 23, 97]
    for told, step in zip(learner.records, range(6, STEPS + 1, 2), strict=True):
        last = 5 if step == 6 else step  # of a window of two updates
        assert (told["step"], told["td_step"]) == (step, last)
        assert told["mu"] == pytest.approx(sum(errors[last - 5 : last - 3]) / 2)


def test_draws_reach_from_the_ring_buffers_oldest_row_to_the_present():
    learner = learner_of("defaults", batch=400)
    learner.num_actions = 3
    rows, next_actions = block_draws(learner, 20)
    newest = np.arange(4, 21) - 1  # the row of a step is there at its update
    assert_array_equal(rows.max(2), np.stack([newest] * 3, 1))
    assert_array_equal(rows.min(2), np.stack([np.maximum(0, newest - 15)] * 3, 1))
    assert next_actions.shape == (17, 6, 400)
    assert np.bincount(next_actions.ravel()).tolist() == pytest.approx([13600] * 3, rel=0.05)
    for drawn in (rows, next_actions):
        whole = {part.tobytes() for part in drawn.reshape(-1, 400)}
        assert len(whole) == drawn.size // 400  # each batch and each use has its own
    learner.step = 19
    assert not np.array_equal(block_draws(learner, 20)[1], next_actions[:1])  # and each block


# ---- the games -----------------------------------------------------------------------------------


class Gym:
    """Gymnasium's emulator, which saves and takes back whole states, as the release has it."""

    def __init__(self, game):
        self.env = gymnasium.make(
            f"ALE/{game}-v5", obs_type="rgb", frameskip=1, repeat_action_probability=0.0
        )
        self.ale = self.env.unwrapped.ale
        self.reset()

    def reset(self):
        return self.seen(self.env.reset(seed=0)[0])

    def seen(self, rgb):
        return np.asarray(Image.fromarray(rgb).convert("L").resize((84, 84), Image.BILINEAR))

    def ram(self, state):
        self.ale.restoreState(state)
        return bytes(self.ale.getRAM())

    def after(self, state, action):
        """Reward, screen and state after an action in a saved state."""
        self.ale.restoreState(state)
        rgb, reward, *_ = self.env.step(action)
        return reward, self.seen(rgb), self.ale.cloneState()


@pytest.mark.parametrize(("game", "sticky"), [("Boxing", 0.0), ("Pong", 1.0), ("Atlantis", 0.5)])
def test_collected_play_is_that_of_gymnasium(game, sticky, monkeypatch):
    monkeypatch.setattr(play, "MAX_FRAMES", 25)  # plays are cut off then
    played = []
    act = play.Emulator.act
    monkeypatch.setattr(
        play.Emulator, "act", lambda player, action: played.append(action) or act(player, action)
    )
    found = play.collect(tiny("defaults", steps=60, sticky=sticky), game, 3)
    gym = Gym(game)
    assert_array_equal(found.screens[0], gym.reset())
    state, last, repeated = gym.ale.cloneState(), 0, []
    for t, chosen in enumerate(found.actions.tolist()):
        queried = sorted(played[2 * t : 2 * t + 2])
        repeated.append(queried != sorted(chosen))
        actions = [last, last] if repeated[-1] else chosen
        assert queried == sorted(actions)  # one lottery for both
        (r1, screen, then), (r2, other, _) = (gym.after(state, a) for a in actions)
        over = t % 25 == 24
        assert found.ended[t].tolist() == [over, over]
        assert found.rewards[t].tolist() == [r1, r2]
        state, last = then, chosen[0]
        if over:
            screen, last = gym.reset(), 0
            state = gym.ale.cloneState()
        assert_array_equal(found.screens[t + 1], screen)
        assert_array_equal(found.others[t], other)
    assert np.mean(repeated) == pytest.approx(sticky, abs=0.2 if 0.0 < sticky < 1.0 else 0.0)
    assert (found.actions[:, 0] != found.actions[:, 1]).all()
    other = play.collect(tiny("defaults", steps=24, sticky=sticky), game, 4)  # another seed
    assert not np.array_equal(other.actions, found.actions[:24])


def test_evaluation_states_are_the_first_of_a_play_of_single_actions():
    starts, stuck = (
        play.evaluation_starts(tiny("defaults", states=40, sticky=sticky), "Boxing", 0)
        for sticky in (0.0, 1.0)
    )
    gym = Gym("Boxing")
    state, screen = gym.ale.cloneState(), gym.reset()
    assert starts[0].last == 0
    for start, following in pairwise(starts):
        assert_array_equal(start.screen, screen)
        assert gym.ram(start.state) == gym.ram(state)
        assert start.asked[0] != start.asked[1]
        _, screen, state = gym.after(state, following.last)
    assert [start.last for start in stuck] == [start.last for start in starts]  # what was chosen
    assert len({start.last for start in starts}) > 10


@pytest.mark.parametrize("sticky", [0.0, 0.5])
def test_shared_query_plays_both_branches_from_one_state(sticky):
    """Equal RAM is taken for one state: the release has one emulator for all branches."""
    start = play.evaluation_starts(tiny("defaults", sticky=sticky), "Pong", 0)[-1]
    rng = np.random.default_rng(3)
    gym = Gym("Pong")
    players = [play.Emulator("Pong"), play.Emulator("Pong")]
    shared = []
    for _ in range(6):
        plays = rng.integers(NUM_ACTIONS, size=(2, 60))
        plays[:, 1:4] = plays[0, 1:4]  # so that last actions are equal now and then
        repeats = rng.random((2, 60)) < sticky
        rewards, alive, same = play.play_pair(players, start, plays, repeats, sticky=sticky > 0.0)
        assert alive.all()
        states, rams = [start.state] * 2, [gym.ram(start.state)] * 2
        last = [start.last] * 2
        for t in range(60):
            one = rams[0] == rams[1] and (sticky == 0.0 or last[0] == last[1])
            assert same[t] == one
            if one:
                states[1] = states[0]
            for branch in (0, 1):
                stuck = repeats[0 if one else branch, t]
                action = int(last[branch] if stuck else plays[branch, t])
                reward, _, states[branch] = gym.after(states[branch], action)
                rams[branch] = gym.ram(states[branch])
                last[branch] = plays[branch, t]
                assert rewards[branch, t] == reward
        shared.append(same.mean())
    assert 0.0 < np.mean(shared) < 1.0


def test_simulated_pairs_begin_with_the_asked_actions(monkeypatch):
    asked = []
    play_pair = play.play_pair

    def spied(players, start, plays, repeats, sticky):
        asked.append((plays[:, 0].tolist() == start.asked.tolist(), plays.shape, sticky))
        return play_pair(players, start, plays, repeats, sticky)

    monkeypatch.setattr(play, "play_pair", spied)
    found = play.simulate(tiny("launcher"), "Atlantis", 0)
    assert asked == [(True, (2, 9), False)] * 9  # the first query and 8 more steps
    assert found.alive.shape == (3, 3, 2, 9)
    assert found.same[:, :, 0].all()


def pairs_of(same, alive=None, count=1, horizon=4):
    """Pairs of one state whose games pay nothing."""
    alive = np.ones((1, count, 2, horizon), bool) if alive is None else alive
    return play.Pairs(np.zeros(alive.shape, np.float32), alive, np.full((1, count, horizon), same))


def test_nothing_is_paid_after_the_end():
    rng = np.random.default_rng(0)
    alive = np.ones((1, 50, 2, 4), bool)
    alive[:, :, 1, 1:] = False
    ended = play.pair_returns(pairs_of(False, alive), 1.0, 0.99, rng)
    assert set(np.round(ended[0, :, 1], 9)) == {0.0, 0.01}
    lonely = pairs_of(False, count=500, horizon=1)
    lonely.rewards[:] = -0.5  # a unit of shock is half paid
    alone = np.unique(play.pair_returns(lonely, 1.0, 0.99, rng))
    assert_allclose(alone, [0.0, 0.005], atol=1e-12)


@pytest.mark.parametrize("same", [False, True])
def test_simulated_variances_of_coins(same):
    coins = pairs_of(same, count=4000, horizon=30)
    found = play.simulated_variances(play.pair_returns(coins, 0.25, 0.9, np.random.default_rng(1)))
    independent = 2.0 / 64.0 * 0.1**2 * np.sum(0.9 ** (2 * np.arange(30)))
    exact = 2.0 * independent if same else independent  # one is paid what the other is not
    assert found["gap_variance"] == pytest.approx(exact, rel=0.1)
    assert found["independent_variance"] == pytest.approx(independent, rel=0.1)
    assert abs(found["gap_variance"] - exact) < 4.0 * found["gap_variance_error"] < 0.2 * exact
    two = np.array([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 0.0]]])
    divided_by_two = play.simulated_variances(two)  # gaps 1 and -1, gaps 2 and 0
    assert (divided_by_two["gap_variance"], divided_by_two["independent_variance"]) == (1.0, 0.75)


# ---- the settings, the tables and the command ----------------------------------------------------


def test_steps_that_no_window_ends_are_refused():
    with pytest.raises(
        ValueError, match="steps must be a multiple of window = 2, and at least 6, got 25"
    ):
        tiny("defaults", steps=25)


def test_rule_of_figure_7():
    rows = [
        {"settings": "defaults", "game": "Pong", "seed": seed, "step": step}
        | dict.fromkeys(LOSSES, value)
        for seed, (first, last) in enumerate([(400.0, 1.0), (100.0, 3.0)])
        for step, value in ((7000, 50.0), (60000, 1e-9), (50000, last), (5999, first))
    ]
    table = results.figure7(pd.DataFrame(rows), 50000)
    assert len(table) == 4
    diag = table.loc["defaults", "Pong", "sigma_diag"]
    assert diag.tolist() == [250.0, 2.0, 125.0, 1, 2]  # of the means; one seed by itself
    falls = results.falls(pd.DataFrame(rows), 50000)
    assert falls.sigma_same.tolist() == pytest.approx([400.0, 100.0 / 3.0])


def test_rule_of_table_1():
    columns = ["settings", "seed", "step", "coupled", "independent"]
    said = [
        ("launcher", 0, 50000, 3.0, 160.0),
        ("launcher", 1, 50000, 2.3, 330.0),
        ("launcher", 1, 49000, 99.0, 99.0),
        ("defaults", 0, 50000, 99.0, 99.0),
    ]
    played = [("reward", 0, 0.25, 2.0), ("reward", 1, 0.25, 1.0), ("reward", 1, 1.0, 16.0)]
    pairs = pd.DataFrame(
        [*played, ("both", 1, 0.25, 77.0)], columns=["coupling", "seed", "b", "gap_variance"]
    )
    predicted = pd.DataFrame(said, columns=columns).assign(game="Pong")
    rows = results.ratios(predicted, pairs.assign(game="Pong"), "launcher", 0.25)
    found = results.table1(rows).set_index("column").drop(columns="game").astype(float)
    assert found.loc["coupled_ratio"].tolist() == [1.3, 1.9, 1.5, 2.3, 2, True]
    assert found.loc["independent_ratio"].tolist() == [135.4, 205.0, 80.0, 330.0, 2, False]


def test_floors_are_the_least_errors_that_shocks_allow():
    mean, b, g = 0.06, 0.25, 0.99
    signs = np.array([[1, 1, -1, -1], [1, -1, 1, -1]])  # of two queries
    x, y = ((1 - g) * play.shocked(np.zeros((4, 2)), sign[:, None], b) for sign in signs)
    found = limits.shock_floors(b, np.array([mean]), g)
    assert found["mu"][0] == pytest.approx(np.var(x[:, 0]))
    blocks = {"diag": (x[:, 0], x[:, 0]), "same": (x[:, 0], x[:, 1]), "cross": (x[:, 0], y[:, 0])}
    for block, (one, other) in blocks.items():
        least = np.var(one * other + g * mean * (one + other))
        assert found[f"sigma_{block}"][0] == pytest.approx(least, abs=1e-20)


def test_floors_take_the_mean_of_the_network_that_was_copied():
    key = {"settings": "launcher", "game": "Pong", "seed": 0}
    told = {"step": [6000, 7000, 8000, 9000], "copies": [0, 1, 1, 2], "mean": [0.1, 0.2, 0.3, 0.4]}
    predicted = pd.DataFrame(key | told)
    td = predicted.assign(step=[5999, 7000, 8000, 9000]).set_index(np.arange(3, 7))
    found = results.floors(td, predicted[::-1]).sigma_diag
    used = np.array([0.1, 0.1, 0.1, 0.3])  # the first copy is made at 6000, 9000 has 8000's
    assert found.tolist() == limits.shock_floors(1.0, used, 0.99)["sigma_diag"].tolist()
    assert found.index.tolist() == td.index.tolist()


def test_recursion_goes_on_from_the_first_record_of_each_run():
    columns = ["seed", "step", "copies", "mean", "independent", "gap_variance"]
    rows = [
        (1, 9000, 2, 9.0, 9.0, 2.0),
        (0, 6000, 0, 0.0, 0.0, 1.0),
        (1, 6000, 0, 0.2, 0.008, 2.0),
        (0, 9000, 2, 9.0, 9.0, 1.0),
    ]
    found = results.recursion(pd.DataFrame(rows, columns=columns).assign(game="Pong"), gamma=0.9)
    m, c = 0.2, 0.004
    for _ in range(2):
        then = 0.05 + 0.9 * m
        m, c = then, 0.1**2 / 4 + then**2 - m**2 + 0.9**2 * c
    _, from_zero = limits.copies_recursion(2, 0.9)
    assert found.tolist() == pytest.approx([c, 0.0, 0.004, 2.0 * from_zero[2]])


def test_runs_are_in_the_protocols_order():
    names = [*PROTOCOL["games"], "Breakout"]
    files = [
        Path(f"{first}-{game}-{seed}.csv")
        for first in ("both", "reward")
        for game in names
        for seed in (2, 10)
    ]
    assert sorted(set(files), key=results.place) == files


def refused(words, capsys):
    """The one line that a command ends with."""
    with pytest.raises(SystemExit):
        runs.main([*map(str, words)])
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--games", "Pang"], "unknown game 'Pang': did you mean Pong"),
        (["--settings", "default"], "settings must be one of 'defaults', 'launcher'"),
        (["--seeds", "-1"], "--seeds must be at least 0"),
        (["--processes", "0"], "--processes must be at least 1"),
        (["--steps", "60500"], "steps must be a multiple of window = 1000, and at least 6000"),
        (["--steps", "5000"], "steps must be a multiple of window = 1000, and at least 6000"),
        (["--minutes", "nan"], "--minutes must be above 0"),
        (["--device", "cuda:99"], "device 'cuda:99' was asked for"),
    ],
)
def test_bad_input_is_refused_before_work(words, message, tmp_path, capsys):
    assert message in refused([*words, "--work", tmp_path / "work"], capsys)
    assert not list(tmp_path.iterdir())


def test_bad_work_folder_is_refused_before_work(tmp_path, capsys):
    claim(tmp_path / "settings.json", {"miniature": PROTOCOL["miniature"]})
    assert "has files of other settings: miniature" in refused(["--work", tmp_path], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """The command sets them."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@pytest.fixture
def miniature(monkeypatch):
    """A miniature of the miniature."""
    small = {"learn_from": 8, "steps": 24, "window": 4, "batch": 2, "states": 2, "horizon": 4}
    monkeypatch.setitem(PROTOCOL, "miniature", PROTOCOL["miniature"] | small)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


@pytest.mark.slow
@pytest.mark.usefixtures("miniature")
def test_the_whole_experiment_in_miniature(tmp_path, capsys):
    """What is there is not made again; what is lost is, and is the same."""
    work, out = tmp_path / "work", tmp_path / "out"
    words = miniature_words(work, out)
    runs.main(words)
    tables = contents(out)
    td, predicted, pairs, told = (
        pd.read_csv(out / f"{name}.csv") for name in ("td_errors", "predictions", "pairs", "runs")
    )
    assert td.settings.tolist() == ["defaults"] * 4 + ["launcher"] * 4
    assert td.step.tolist() == [11, 16, 20, 24] * 2
    assert (td[list(LOSSES)] > 0.0).all(axis=None)
    assert predicted.step.tolist() == [12, 16, 20, 24] * 2
    shocks = [("both", 0.25), ("reward", 0.25), ("reward", 1.0)]
    assert list(zip(pairs.coupling, pairs.b, strict=True)) == shocks
    assert len(results.ratios(predicted, pairs, "launcher", 0.25)) == 4
    assert told.steps.tolist() == [24, 24]
    assert set(told.device) == {"cpu"}
    made = {path: path.stat().st_mtime_ns for path in work.glob("*/*")}
    lost = [work / "runs" / "launcher-Pong-0.csv", work / "states" / "launcher-Pong-0.pt"]
    for path in lost:
        assert made.pop(path)
        path.unlink()
    capsys.readouterr()
    runs.main(words)
    assert capsys.readouterr().out.count("step 24: 1 networks") == 1
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert contents(out) == tables


def miniature_words(work, out, *more):
    """A command of two small runs."""
    words = ["--work", work, "--out", out, "--games", "pong", "--seeds", "0", "--processes", "1"]
    return [*map(str, words), "--miniature", *more]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.usefixtures("miniature")
def test_training_in_pieces_is_that_in_one_piece(tmp_path, capsys, monkeypatch):
    """First to fewer steps, then, as if the minutes were over, at most one block a command."""
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    runs.main(miniature_words(tmp_path / "work", whole))
    runs.main(miniature_words(tmp_path / "other", pieces, "--steps", "16"))
    assert set(pd.read_csv(pieces / "runs.csv").steps) == {16}
    monkeypatch.setattr(runs, "train", lambda learners, note, deadline: train(learners, note, 0.0))
    words = miniature_words(tmp_path / "other", pieces)
    with pytest.raises(SystemExit, match="1"):
        runs.main(words)
    assert "2 runs are left: to go on, give the same command again" in capsys.readouterr().out
    assert set(pd.read_csv(pieces / "runs.csv").steps) == {20}
    runs.main(words)
    assert contents(pieces) == contents(whole)


@pytest.mark.usefixtures("miniature")
def test_minutes_bound_plays(tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        runs.main(miniature_words(tmp_path / "work", tmp_path / "out", "--minutes", "1e-9"))
    assert capsys.readouterr().out.splitlines() == [
        "the time is over before all games are played",
        "2 runs are left: to go on, give the same command again",
    ]
    assert not list(tmp_path.rglob("*.npz")) + list(tmp_path.rglob("*.part"))


def stop_at_once(path):
    with replacing(path) as part:
        part.write_text("half")
        time.sleep(60.0)


def test_a_job_under_way_ends_at_the_deadline_and_leaves_nothing(tmp_path):
    """Even in a process of its own."""
    with pytest.raises(TimeoutError):
        in_processes(
            stop_at_once, [(tmp_path / "a",), (tmp_path / "b",)], 2, "x", time.monotonic() + 1.0
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no state", "Pong-0.pt is damaged: "),
        ({"step": 12}, "Pong-0.pt is damaged: 'torch'"),
        ({"torch": "0.1", "device": "cpu"}, "Pong-0.pt is of torch 0.1, and this is torch 2"),
        ({"torch": str(torch.__version__), "device": "cuda"}, "of device cuda, and this is device"),
    ],
)
def test_state_of_another_training_is_refused_before_work(content, message, tmp_path, capsys):
    path = tmp_path / "states" / "launcher-Pong-0.pt"
    path.parent.mkdir()
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    words = ["--work", tmp_path, "--settings", "launcher", "--games", "Pong", "--seeds", "0"]
    assert message in refused(words, capsys)
    assert not (tmp_path / "plays").exists()
    assert not (tmp_path / "results").exists()
