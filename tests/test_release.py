"""The authors' release: losses, gradients, predictions, games, and trainings in pieces."""

import time
from copy import deepcopy
from dataclasses import replace

import gymnasium
import numpy as np
import pandas as pd
import pytest
import torch
import torch._inductor  # a first optimiser imports it, and that sets a variable
from numpy.testing import assert_array_equal
from PIL import Image
from programs import ROOT
from torch.testing import assert_close

from experiments.processes import in_processes
from experiments.release import results, rollouts, runs, training
from experiments.release.network import predictions
from experiments.release.settings import PROTOCOL, Run, settings_of
from experiments.release.training import Learner, data_on, train

STEPS = 24
NUM_ACTIONS = 6  # of Pong
both_settings = pytest.mark.parametrize("name", ["defaults", "launcher"])


def tiny(name, **changed):
    """The named settings with a few steps of a small network."""
    small = {"steps": STEPS, "learn_from": 4, "window": 2, "hidden": 6, "embedding": 3}
    return replace(settings_of(name, miniature=True), **small | changed)


def random_rollout():
    """A rollout of random screens, in which all kinds of ends happen."""
    rng = np.random.default_rng(0)
    screens = rng.integers(256, size=(2 * STEPS + 1, 84, 84), dtype=np.uint8)
    return rollouts.Collected(
        screens[: STEPS + 1],
        screens[STEPS + 1 :],
        rollouts.distinct_pairs(rng.random((STEPS, 2)), NUM_ACTIONS),
        rng.integers(-1, 3, (STEPS, 2)).astype(np.float32),
        rng.random((STEPS, 2)) < 0.3,
        rng.choice(np.array([-1, 1], np.int8), STEPS),
        NUM_ACTIONS,
    )


def learner_of(name, **changed):
    """A learner whose target is another network than the one that learns, with large weights."""
    settings = tiny(name, **changed)
    learner = Learner(
        Run(name, settings, "Pong", 0, ROOT), data_on("cpu", random_rollout(), settings)
    )
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for module in (learner.network, learner.target):
            for weights in module.parameters():
                weights.add_(0.1 * torch.randn(weights.shape))
    return learner


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
        """The second moment of two screens and actions."""
        if not self.pair:
            return self.mu(*x) * self.mu(*y) + self.v(*x) @ self.v(*y)
        x, y = self.z(*x), self.z(*y)
        return self.net.head.layers(torch.cat([x + y, (x - y).abs(), x * y]))[0]

    def second_of_gap(self, x, y):
        return self.sigma(x, x) + self.sigma(y, y) - 2 * self.sigma(x, y)


def plain_losses(online, target, data, settings, rows, next_actions):
    """The five losses, written from the formulas of the facts, one row of a batch after the other.

    rows (3, B): X, Y, Q. next_actions (6, B): for mu, diag, the two of cross, the two of same.
    """
    g = settings.gamma
    total = torch.zeros(5, dtype=torch.float64)

    def of(row, position):
        """Screen and action, reward, next screen, alive."""
        shock = settings.b * data.signs[row] * (1 if position == 0 else -1)
        paid = (1 - g) * min(max(data.rewards[row, position] + shock, 0.0), 1.0)
        then = data.screens[row + 1] if position == 0 else data.others[row]
        alive = 0.0 if data.ended[row, position] else 1.0
        return (data.screens[row], int(data.actions[row, position])), paid, then, alive

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


@both_settings
def test_losses_and_gradients_are_those_of_the_formulas(name):
    learner = learner_of(name, gamma=0.9)
    data = random_rollout()
    rng = np.random.default_rng(2)
    rows = rng.integers(STEPS, size=(3, 4))
    rows[1, 0] = rows[0, 0]  # a row beside itself
    next_actions = rng.integers(NUM_ACTIONS, size=(6, 4))
    assert {data.ended[rows, 0].any(), data.ended[rows, 0].all()} == {True, False}
    losses = learner._losses(
        torch.from_numpy(rows), learner.identity[torch.from_numpy(next_actions)]
    )
    online, target = Plain(learner.network), Plain(learner.target)
    expected = plain_losses(online, target, data, learner.settings, rows, next_actions)
    assert_close(losses.double(), expected, rtol=1e-4, atol=1e-9)
    weights, exact_weights = ([*network.parameters()] for network in (learner.network, online.net))
    slopes = torch.autograd.grad(losses.sum(), weights, retain_graph=True)
    exact_slopes = torch.autograd.grad(expected.sum(), exact_weights)
    for slope, exact in zip(slopes, exact_slopes, strict=True):
        size = exact.abs().max().item()
        assert_close(slope.double(), exact, rtol=1e-3, atol=1e-4 * size)
    mean = torch.autograd.grad(losses[4], learner.network.mean[2].weight)[0]
    assert mean.any() == (name == "launcher")  # the gap's gradient reaches the means


@both_settings
def test_predictions_are_those_of_the_formulas(name):
    learner = learner_of(name)
    net, screens = Plain(learner.network), random_rollout().others[:3]
    actions = np.array([[0, 2], [3, 1], [5, 4]])
    predicted = predictions(
        learner.network, torch.from_numpy(screens), learner.identity[torch.from_numpy(actions)]
    )
    gaps, sums = [], []
    for s, (a, b) in zip(screens, actions.tolist(), strict=True):
        x, y = (s, a), (s, b)
        variances = [net.sigma(place, place) - net.mu(*place) ** 2 for place in (x, y)]
        sums.append(sum(max(0.0, variance.item()) for variance in variances))
        gaps.append((net.second_of_gap(x, y) - (net.mu(*x) - net.mu(*y)) ** 2).item())
    close = {"rel": 1e-3, "abs": 1e-7}
    assert predicted["coupled"] == pytest.approx(np.maximum(gaps, 0.0).mean(), **close)
    assert predicted["negative"] == pytest.approx(np.mean(np.array(gaps) < 0.0))
    assert predicted["independent"] == pytest.approx(np.mean(sums), **close)


def test_results_are_those_of_the_committed_figures():
    """Falls and floors of Figure 7, both columns of Table 1, and their recursion."""
    read = {path.stem: pd.read_csv(path) for path in ROOT.glob("figures/**/*.csv")}
    curves = results.ratios(read["predictions"], read["pairs"], "launcher", 0.25)
    curves["recursion_ratio"] = results.recursion(curves, 0.99)
    td = read["td_errors"]
    floors = td.assign(**results.floors(td, read["predictions"]))
    falls = results.figure7(td, 50_000).reset_index()
    falls["floor"] = results.figure7(floors, 50_000)["last"].to_numpy()
    for name, found in {
        "table1": results.table1(curves),
        "fig_release_ratios": curves,
        "fig_first_and_last": falls,
    }.items():
        columns = read[name].columns
        committed = read[name].merge(found[columns[:2]].drop_duplicates())  # without crossed ones
        pd.testing.assert_frame_equal(found[columns], committed, check_dtype=False)


@pytest.mark.parametrize("sticky", [0.0, 1.0])
def test_a_rollout_is_that_of_gymnasium(sticky, monkeypatch):
    """The first action is executed, the second one looked at; or the last action, for both."""
    monkeypatch.setattr(rollouts, "MAX_FRAMES", 25)  # rollouts are cut off then
    data = rollouts.collect(tiny("defaults", steps=60, sticky=sticky), "Boxing", 3)
    env = gymnasium.make(
        "ALE/Boxing-v5", obs_type="rgb", frameskip=1, repeat_action_probability=0.0
    )
    env.reset(seed=0)
    last = 0
    for t, chosen in enumerate(data.actions.tolist()):
        first, second = (last, last) if sticky else chosen
        here = env.unwrapped.ale.cloneState()
        other = env.step(second)[0]
        env.unwrapped.ale.restoreState(here)
        screen = env.step(first)[0]
        last = chosen[0]
        if t % 25 == 24:
            screen, last = env.reset()[0], 0
        for rgb, seen in ((screen, data.screens[t + 1]), (other, data.others[t])):
            grey = Image.fromarray(rgb).convert("L")
            assert_array_equal(grey.resize((84, 84), Image.BILINEAR), seen)


@pytest.mark.parametrize("sticky", [False, True])
def test_one_query_serves_branches_in_one_state(sticky):
    """The lottery of the first one counts, and last actions are a part of a sticky state."""
    start = rollouts.evaluation_starts(tiny("defaults", states=40), "Boxing", 0)[-1]
    envs = [rollouts.Emulator("Boxing"), rollouts.Emulator("Boxing")]
    actions = np.full((2, 12), 3)
    actions[1, [0, 5]] = 2  # 3 goes right, 2 goes up
    repeats = np.zeros((2, 12), bool)
    repeats[0, 0] = True
    *_, same = rollouts.simulate_pair(envs, start.state, actions, repeats, sticky)
    assert same.tolist() == [True, not sticky, *[True] * 4, *[False] * 6]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"step": 12}, "state.pt is damaged: 'torch'"),
        ({"torch": "0.1", "device": "cpu"}, "state.pt is of torch 0.1, and this is torch 2"),
    ],
)
def test_a_state_of_another_training_is_refused(content, message, tmp_path):
    torch.save(content, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=message):
        training.load_state(tmp_path / "state.pt", "cpu")


def test_a_job_under_way_ends_at_the_deadline():
    with pytest.raises(TimeoutError):
        in_processes(time.sleep, [(60.0,)], 1, "x", time.monotonic() + 0.1)


# Two small trainings that copy, cut and forget, on games that end.
SMALL = {"learn_from": 8, "steps": 24, "window": 4, "batch": 2, "states": 2, "horizon": 25}
SMALL |= {"copy_every": 5, "replay": 12, "gradient_norm": 1e-2}
# Where they ended when the games, draws and updates were those of the committed results: the last
# errors of mu and cross, the last means, and the simulated variances.
ENDS = [0.0115375, 0.0127528, 0.000182281, 6.56855e-05, 0.0283705, 0.0356856]
ENDS += [3.58705e-05, 2.79271e-05, 4.46833e-04]


@pytest.fixture
def command(monkeypatch, tmp_path):
    """A function that runs both in two folders; its exit status and tables."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the command sets them
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    monkeypatch.setitem(PROTOCOL, "miniature", PROTOCOL["miniature"] | SMALL)
    monkeypatch.setattr(rollouts, "MAX_FRAMES", 16)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)

    def command(work, out, *more):
        words = ["--work", tmp_path / work, "--out", tmp_path / out, "--games", "boxing"]
        words += ["--seeds", "0", "--processes", "1", "--miniature", *more]
        status = 0
        try:
            runs.main([*map(str, words)])
        except SystemExit as end:
            status = end.code
        return status, {path.stem: path.read_bytes() for path in tmp_path.glob(f"{out}/*")}

    return command


@pytest.mark.slow
def test_training_in_pieces_is_that_in_one_piece(command, tmp_path, capsys, monkeypatch):
    """A training is stopped before its rollout, after fewer steps, and after a single block."""
    status, tables = command("work", "whole")
    assert status == 0
    td, predicted, pairs = (
        pd.read_csv(tmp_path / "whole" / f"{name}.csv")
        for name in ("td_errors", "predictions", "pairs")
    )
    assert td.settings.tolist() == ["defaults"] * 4 + ["launcher"] * 4
    assert td.step.tolist() == [11, 16, 20, 24] * 2
    assert predicted.copies.tolist() == [1, 2, 2, 3] * 2
    assert (tmp_path / "whole" / "td_errors_extra.csv").read_text().count("\n") == 1
    shocks = [("both", 0.25), ("reward", 0.25), ("reward", 1.0)]
    assert list(zip(pairs.coupling, pairs.b, strict=True)) == shocks
    ends = [*td.mu[3::4], *td.sigma_cross[3::4], *predicted["mean"][3::4], *pairs.gap_variance]
    assert ends == pytest.approx(ENDS, rel=1e-3)

    work = tmp_path / "work"
    kept = {path: path.stat().st_mtime_ns for path in work.glob("*/*-*.*")}
    for name in ("runs/launcher-Boxing-0.csv", "states/launcher-Boxing-0.pt"):
        assert kept.pop(work / name)
        (work / name).unlink()  # what is lost is made again, and is the same
    assert command("work", "whole") == (0, tables)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept

    assert command("other", "none", "--steps", "17") == (2, {})
    assert command("other", "pieces", "--minutes", "1e-9") == (1, {})
    printed = capsys.readouterr()
    assert "steps must be a multiple of window = 4, and at least 12" in printed.err
    assert "over before all games are simulated\n2 runs are left" in printed.out
    assert command("other", "pieces", "--steps", "16")[0] == 0
    monkeypatch.setattr(runs, "train", lambda learners, note, deadline: train(learners, note, 0.0))
    assert command("other", "pieces")[0] == 1
    assert "2 runs are left: to go on, give the same command again" in capsys.readouterr().out
    assert set(pd.read_csv(tmp_path / "pieces" / "runs.csv").steps) == {20}
    assert command("other", "pieces") == (0, tables)
