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
from programs import ROOT, stop_at_once
from torch.testing import assert_close

from experiments.files import claim
from experiments.processes import in_processes
from experiments.release import results, rollouts, runs, training
from experiments.release.network import predictions
from experiments.release.settings import PROTOCOL, Run, settings_of
from experiments.release.training import Learner, block_draws, data_on, train

STEPS = 24
NUM_ACTIONS = 6  # of Pong
both_settings = pytest.mark.parametrize("name", ["defaults", "launcher"])


def tiny(name, **changed):
    """The named settings with a few steps of a small network."""
    small = {"steps": STEPS, "learn_from": 4, "window": 2, "copy_every": 3, "replay": 16}
    sizes = {"batch": 2, "hidden": 6, "embedding": 3, "states": 3, "pairs": 3, "horizon": 8}
    gram = {"gram_dim": 4} if name == "launcher" else {}
    return replace(settings_of(name, miniature=True), **small | sizes | gram | changed)


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


def test_networks_have_the_sizes_of_the_release():
    """Numbers of weights: encoder, means, embeddings, head."""
    for name, head in (("defaults", 287_489), ("launcher", 106_880)):
        network = training.new_network(settings_of(name), 18, np.random.SeedSequence(0))
        sizes = [sum(w.numel() for w in part.parameters()) for part in network.children()]
        assert sizes == [874_912, 70_418, 18 * 32, head]
    last = network.head.features[2]
    assert not last.bias.any()
    assert last.weight.std().item() == pytest.approx(1e-3, rel=0.05)


def test_update_is_a_step_of_adam_with_a_short_gradient():
    learner = learner_of("launcher", gradient_norm=1e-3)
    learner.begin_block(6)
    rows, actions = (torch.from_numpy(drawn[0]) for drawn in block_draws(learner, 6))
    losses = learner._losses(rows, learner.identity[actions])
    weights = [*learner.network.parameters()]
    before = [weight.detach().clone() for weight in weights]
    slopes = torch.autograd.grad(losses[:4].sum() + 0.1 * losses[4], weights)
    norm = torch.cat([slope.flatten() for slope in slopes]).norm()
    assert norm > 1e-2
    learner.update()
    for was, slope, now in zip(before, slopes, weights, strict=True):
        cut = slope * 1e-3 / norm
        assert_close(was - now, 1e-4 * cut / (cut.abs() + 1e-8), rtol=1e-2, atol=2e-7)
    assert_close(learner.written[0], losses.detach())


def test_when_the_target_is_copied_and_records_are_made(monkeypatch):
    """Both come after the updates of their steps."""
    learner = learner_of("defaults")
    update, seen, errors = learner.update, [], []

    def spied():
        place = int(learner.position)
        used = learner.target.embedding.weight.clone()
        update()
        seen.append((used, learner.network.embedding.weight.detach().clone()))
        errors.append(float(learner.written[place, 0]))

    monkeypatch.setattr(learner, "update", spied)
    train([learner])
    assert len(seen) == STEPS - 4 + 1  # the first at step 4
    expected, copies = seen[0][0], 0
    for step, (target, learned) in enumerate(seen, start=4):
        assert torch.equal(target, expected)
        assert learner.settings.copies(step) == copies
        if step % 3 == 0:
            expected, copies = learned, copies + 1
    for record, step in zip(learner.records, range(6, STEPS + 1, 2), strict=True):
        last = 5 if step == 6 else step  # of a window of two updates
        assert (record["step"], record["td_step"]) == (step, last)
        assert record["mu"] == pytest.approx(sum(errors[last - 5 : last - 3]) / 2)


def test_draws_reach_from_the_oldest_row_to_the_present():
    learner = learner_of("defaults", batch=400)
    rows, next_actions = block_draws(learner, 20)
    newest = np.arange(4, 21) - 1  # the row of a step is there at its update
    assert_array_equal(rows.max(2), np.stack([newest] * 3, 1))
    assert_array_equal(rows.min(2), np.stack([np.maximum(0, newest - 15)] * 3, 1))
    assert next_actions.shape == (17, 6, 400)
    assert set(next_actions.flat) == set(range(NUM_ACTIONS))
    for drawn in (rows, next_actions):
        batches = {part.tobytes() for part in drawn.reshape(-1, 400)}
        assert len(batches) == drawn.size // 400  # each batch and each use has its own
    learner.step = 19
    assert not np.array_equal(block_draws(learner, 20)[1], next_actions[:1])  # and each block


# ---- the games -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("game", "sticky"), [("Boxing", 0.0), ("Atlantis", 1.0)])
def test_a_rollout_is_that_of_gymnasium(game, sticky, monkeypatch):
    """The first action is executed, the second one looked at; or the last action, for both."""
    monkeypatch.setattr(rollouts, "MAX_FRAMES", 25)  # rollouts are cut off then
    data = rollouts.collect(tiny("defaults", steps=60, sticky=sticky), game, 3)
    env = gymnasium.make(
        f"ALE/{game}-v5", obs_type="rgb", frameskip=1, repeat_action_probability=0.0
    )

    def assert_seen(rgb, screen):
        grey = Image.fromarray(rgb).convert("L")
        assert_array_equal(grey.resize((84, 84), Image.BILINEAR), screen)

    assert_seen(env.reset(seed=0)[0], data.screens[0])
    last = 0
    for t, chosen in enumerate(data.actions.tolist()):
        first, second = (last, last) if sticky else chosen
        here = env.unwrapped.ale.cloneState()
        other, reward_of_second, *_ = env.step(second)
        assert_seen(other, data.others[t])
        env.unwrapped.ale.restoreState(here)
        screen, reward, *_ = env.step(first)
        assert data.rewards[t].tolist() == [reward, reward_of_second]
        last = chosen[0]
        if t % 25 == 24:
            screen, last = env.reset()[0], 0
        assert_seen(screen, data.screens[t + 1])
        assert (data.ended[t] == (t % 25 == 24)).all()


@pytest.mark.parametrize("sticky", [False, True])
def test_one_query_serves_branches_in_one_state(sticky):
    """The lottery of the first one counts, and last actions are a part of a sticky state."""
    start = rollouts.evaluation_starts(tiny("defaults", states=40), "Boxing", 0)[-1]
    envs = [rollouts.Emulator("Boxing"), rollouts.Emulator("Boxing")]
    actions = np.full((2, 12), 3)
    actions[1, [0, 5]] = 2  # 3 goes right, 2 goes up
    repeats = np.zeros((2, 12), bool)
    repeats[0, 0] = True
    _, alive, same = rollouts.simulate_pair(envs, start.state, actions, repeats, sticky)
    assert alive.all()
    assert same.tolist() == [True, not sticky, *[True] * 4, *[False] * 6]


def test_simulated_pairs_begin_with_the_requested_actions(monkeypatch):
    settings = tiny("launcher")
    monkeypatch.setattr(rollouts, "simulate_pair", lambda *x, sticky: (x[2], ~x[3], x[2][0]))
    pairs = rollouts.simulate(settings, "Atlantis", 0)
    assert pairs.alive.shape == (3, 3, 2, 9)  # the first query and 8 more steps
    assert pairs.alive.all()  # no action is repeated
    for start, actions in zip(
        rollouts.evaluation_starts(settings, "Atlantis", 0), pairs.rewards, strict=True
    ):
        assert_array_equal(actions[:, :, 0], [start.queried] * 3)


@pytest.mark.parametrize("same", [False, True])
def test_simulated_variances_of_coins(same):
    """Games that pay nothing but the shock; one branch of the last pairs ends after a step."""
    alive = np.ones((1, 4000, 2, 30), bool)
    alive[:, -1, 1, 1:] = False
    rewards = np.zeros(alive.shape, np.float32)
    coins = rollouts.Pairs(rewards, alive, np.full((1, 4000, 30), same))
    returns = rollouts.pair_returns(coins, 0.25, 0.9, np.random.default_rng(1))
    assert any(returns[0, -1, 1] == pytest.approx(value) for value in (0.0, 0.1 * 0.25))
    variances = rollouts.simulated_variances(returns)
    independent = 2.0 / 64.0 * 0.1**2 * np.sum(0.9 ** (2 * np.arange(30)))
    exact = 2.0 * independent if same else independent  # one is paid what the other is not
    assert variances["independent_variance"] == pytest.approx(independent, rel=0.1)
    assert (
        abs(variances["gap_variance"] - exact) < 4.0 * variances["gap_variance_error"] < 0.2 * exact
    )


def test_results_are_those_of_the_committed_figures():
    """Falls and floors of Figure 7, both columns of Table 1, and their recursion."""
    read = {path.stem: pd.read_csv(path) for path in ROOT.glob("figures/atari/*s.csv")}
    figures = {path.stem: pd.read_csv(path) for path in ROOT.glob("figures/**/*.csv")}
    curves = results.ratios(read["predictions"], read["pairs"], "launcher", 0.25)
    curves["recursion_ratio"] = results.recursion(curves, 0.99)
    td = read["td_errors"]
    floors = td.assign(**results.floors(td, read["predictions"]))
    falls = results.figure7(td, 50_000)
    falls = falls.assign(floor=results.figure7(floors, 50_000)["last"]).reset_index()
    committed = figures["fig_first_and_last"].query("settings in ['defaults', 'launcher']")
    for found, expected in {
        "table1": (results.table1(curves), figures["table1"]),
        "ratios": (curves, figures["fig_release_ratios"]),
        "falls": (falls, committed.reset_index(drop=True)),
    }.values():
        pd.testing.assert_frame_equal(found[expected.columns], expected, check_dtype=False)


# ---- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--settings", "default"], "settings must be one of 'defaults', 'launcher'"),
        (["--steps", "60500"], "steps must be a multiple of window = 1000, and at least 6000"),
        (["--steps", "5000"], "steps must be a multiple of window = 1000, and at least 6000"),
        (["--miniature"], "has files of other settings: miniature"),
        ([], "Pong-0.pt is damaged: "),
    ],
)
def test_bad_input_is_refused_before_work(words, message, tmp_path, capsys):
    claim(tmp_path / "settings.json", {"miniature": None})
    state = tmp_path / "states" / "launcher-Pong-0.pt"
    state.parent.mkdir()
    state.write_bytes(b"no state")
    with pytest.raises(SystemExit):
        runs.main(["--work", str(tmp_path), "--games", "Pong", "--seeds", "0", *words])
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert {path.name for path in tmp_path.iterdir()} == {"settings.json", "states"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"step": 12}, "state.pt is damaged: 'torch'"),
        ({"torch": "0.1", "device": "cpu"}, "state.pt is of torch 0.1, and this is torch 2"),
        ({"torch": str(torch.__version__), "device": "cuda"}, "of device cuda, and this is device"),
    ],
)
def test_a_state_of_another_training_is_refused(content, message, tmp_path):
    torch.save(content, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=message):
        training.load_state(tmp_path / "state.pt", "cpu")


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """The command sets them."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@pytest.fixture
def command(monkeypatch, tmp_path):
    """A function that runs two small trainings in two folders; its exit status and tables."""
    small = {"learn_from": 8, "steps": 24, "window": 4, "batch": 2, "states": 2, "horizon": 4}
    monkeypatch.setitem(PROTOCOL, "miniature", PROTOCOL["miniature"] | small)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)

    def command(work, out, *more):
        words = ["--work", tmp_path / work, "--out", tmp_path / out, "--games", "pong"]
        words += ["--seeds", "0", "--processes", "1", "--miniature", *more]
        status = 0
        try:
            runs.main([*map(str, words)])
        except SystemExit as end:
            status = end.code
        return status, {path.stem: path.read_bytes() for path in (tmp_path / out).iterdir()}

    return command


@pytest.mark.slow
def test_training_in_pieces_is_that_in_one_piece(command, tmp_path, capsys, monkeypatch):
    """A training is stopped before its rollout, after fewer steps, and after a single block."""
    status, tables = command("work", "whole")
    assert status == 0
    td = pd.read_csv(tmp_path / "whole" / "td_errors.csv")
    assert td.settings.tolist() == ["defaults"] * 4 + ["launcher"] * 4
    assert td.step.tolist() == [11, 16, 20, 24] * 2
    assert (tmp_path / "whole" / "td_errors_extra.csv").read_text().count("\n") == 1
    pairs = pd.read_csv(tmp_path / "whole" / "pairs.csv")
    shocks = [("both", 0.25), ("reward", 0.25), ("reward", 1.0)]
    assert list(zip(pairs.coupling, pairs.b, strict=True)) == shocks

    work = tmp_path / "work"
    kept = {path: path.stat().st_mtime_ns for path in work.glob("*/*-*.*")}
    for name in ("runs/launcher-Pong-0.csv", "states/launcher-Pong-0.pt"):
        assert kept.pop(work / name)
        (work / name).unlink()  # what is lost is made again, and is the same
    assert command("work", "whole") == (0, tables)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept

    assert command("other", "pieces", "--minutes", "1e-9") == (1, {})
    assert "over before all games are simulated\n2 runs are left" in capsys.readouterr().out
    assert command("other", "pieces", "--steps", "16")[0] == 0
    monkeypatch.setattr(runs, "train", lambda learners, note, deadline: train(learners, note, 0.0))
    assert command("other", "pieces")[0] == 1
    assert "2 runs are left: to go on, give the same command again" in capsys.readouterr().out
    assert set(pd.read_csv(tmp_path / "pieces" / "runs.csv").steps) == {20}
    assert command("other", "pieces") == (0, tables)


def test_a_job_under_way_ends_at_the_deadline(tmp_path):
    """It leaves nothing, even in a process of its own."""
    with pytest.raises(TimeoutError):
        in_processes(
            stop_at_once, [(tmp_path / "a",), (tmp_path / "b",)], 2, "x", time.monotonic() + 1.0
        )
    assert not list(tmp_path.iterdir())
