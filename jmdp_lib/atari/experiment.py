"""The paper's Atari experiments: from the emulator to curves (Figure 7) and gap ratios (Table 1).

One `Experiment` is a game with one kind of noise that its actions share. Each of its parts is a
file that is written atomically and only once, so a run that was killed continues where it stopped:

    settings.json                   whose files these are: another experiment is refused
    tables-SEED.npz, held_out.npz   queried states, to learn from and to test the backup on
    evaluation.npz, records.npz     states for the gap diagnostic, recursive pairs from them;
                                    -FRESH is appended if fresh states were asked for
    deep.npz                        other plays of the same pairs, with observations on the way
    run-SEED/                       training: metrics, checkpoint; -TRIAL is appended if an
                                    experiment has several trials
    gaps-SEED.csv                   predicted and Monte Carlo gap moments, a row per state and pair;
                                    KIND is the network's prediction, KIND+table one exact backup of
                                    it from the state's own tables, KIND+DEPTH plays DEPTH steps and
                                    predicts only what follows
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from jmdp_lib import checks
from jmdp_lib.atari.collect import collect, evaluation_states
from jmdp_lib.atari.env import Game
from jmdp_lib.atari.networks import TD_BLOCKS, Config, Gaps, predict_gaps
from jmdp_lib.atari.predictions import backed_up_gaps, tail
from jmdp_lib.atari.recursive_pairs import (
    GapEstimates,
    PairRecords,
    gap_estimates,
    record_pairs,
)
from jmdp_lib.atari.replay import Replay
from jmdp_lib.atari.tables import Tables
from jmdp_lib.atari.training import Trained, refuse_other, require_device, train
from jmdp_lib.machine import extra, replacing

with extra("figures", "torch"):
    import pandas as pd
    import torch

NOISES = ("reward", "sticky")
_PREDICTED = ["gap_mean", "coupled", "independent"]
_SIMULATED = ["mc_mean", "mc", "mc_independent"]
_PARTS = ["mean", "variance", "independent"]  # of `GapEstimates`


@dataclass(frozen=True)
class Experiment:
    """A game with one kind of noise that its actions share, and the sizes of all parts.

    config: of training; its name is the game, its sigma the reward shock.
    obs: what the networks see (see `Game`).
    num_states, num_held_out, num_evaluation: queried states for each purpose.
    actions: queried at each of the num_states; None: all (see `collect`).
    spacing, follow_share: steps from one of them to the next, and the share whose branches are
        followed (see `collect`).
    pairs_per_state, repeats, horizon: of the recursive pairs: action pairs of each state, how
        often each is played, and for how many steps.
    depths, deep_repeats: after how many played steps a network predicts the rest, and how often
        each pair is played for this.
    """

    config: Config
    obs: str = "ram"
    num_states: int = 30_000
    num_held_out: int = 1_000
    num_evaluation: int = 64
    actions: int | None = None
    spacing: int = 4
    follow_share: float = 0.05
    pairs_per_state: int = 4
    repeats: int = 12
    horizon: int = 300
    depths: tuple[int, ...] = ()
    deep_repeats: int = 12

    def __post_init__(self) -> None:
        _ = self.game  # refuses an unknown one
        sizes = ("num_states", "num_held_out", "num_evaluation", "spacing", "pairs_per_state")
        for name in (*sizes, "horizon"):
            checks.at_least(name, getattr(self, name), 1)
        for name in ("repeats", "deep_repeats"):
            checks.at_least(name, getattr(self, name), 3)  # for a variance with its error
        if self.config.complete != (self.noise == "reward"):
            raise ValueError(
                f"config.complete must be {not self.config.complete} where sigma is "
                f"{self.config.sigma}: a drawn sticky table is not the whole law of a state"
            )

    @property
    def noise(self) -> str:
        """What the actions of a state share.

        "reward", a common reward shock on a deterministic emulator (Table 1); "sticky", where sigma
        is 0: the lottery of sticky actions and no shock.
        """
        return "reward" if self.config.sigma > 0 else "sticky"

    @property
    def game(self) -> Game:
        """How all its states are played: sticky where the lottery is the noise."""
        return Game(self.config.name, 0.25 if self.noise == "sticky" else 0.0, obs=self.obs)

    def stream(self, purpose: int, seed: int = 0) -> np.random.SeedSequence:
        """The random stream of a part: independent of other parts and seeds."""
        return np.random.SeedSequence([purpose, seed, NOISES.index(self.noise)])


def run(
    experiment: Experiment, seed: int, folder: str | Path, device: str = "cpu",
    processes: int | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Collect, train and evaluate with one seed. The gaps are also written to gaps-SEED.csv."""
    home = Path(folder)
    trained = learn(experiment, seed, home, device, processes)
    frame = evaluate(experiment, seed, trained, *monte_carlo(experiment, home, processes))
    with replacing(home / f"gaps-{seed}.csv") as part:
        frame.to_csv(part, index=False, float_format="%.8g")
    return frame


def evaluate(
    experiment: Experiment, seed: int, trained: Trained, evaluation: Tables, records: PairRecords,
    deep: PairRecords | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Predictions beside Monte Carlo: KIND, KIND+table and, with deep records, KIND+DEPTH."""
    predicted = _predictions(trained, evaluation, experiment.num_evaluation)
    frames = [compare(experiment, seed, records, gaps, how) for how, gaps in predicted.items()]
    config = experiment.config
    gammas, shock = [gamma for gamma, _ in config.members], (config.sigma, config.reward_clip)
    if deep is not None:
        for place, depth in enumerate(deep.depths.tolist()):
            later = tail(trained.network, trained.params, deep, place)
            played = gap_estimates(deep.until(depth), gammas, *shock, later)
            frames.append(compare(experiment, seed, records, played, f"+{depth}"))
    return pd.concat(frames, ignore_index=True)


def learn(
    experiment: Experiment, seed: int, home: Path, device: str = "cpu",
    processes: int | None = None, trial: str = "", states: int | None = None,
) -> Trained:  # fmt: skip
    """The trained ensemble of one seed; read from its checkpoint if that is finished.

    states: how many of the queried rows it learns from; None: all.
    """
    require_device(device)
    tables, held_out = queried(experiment, seed, home, processes)
    config = replace(experiment.config, seed=seed)
    tables = tables if states is None else tables.first(states)
    return train(tables, config, home / f"run-{seed}{trial and '-'}{trial}", held_out, device)


def queried(
    experiment: Experiment, seed: int, home: Path, processes: int | None = None
) -> tuple[Tables, Tables]:
    """The states that one seed learns from, and the held-out ones."""
    _claim(experiment, home)

    def collected(name: str, num_states: int, purpose: tuple[int, ...], **how: Any) -> Tables:
        path = home / f"{name}.npz"
        if not path.exists():
            how |= {"follow_share": experiment.follow_share, "processes": processes}
            collect(experiment.game, num_states, experiment.stream(*purpose), **how).save(path)
        return Tables.load(path)

    how = {"actions": experiment.actions, "spacing": experiment.spacing}
    tables = collected(f"tables-{seed}", experiment.num_states, (0, seed), **how)
    return tables, collected("held_out", experiment.num_held_out, (1,), enumerated=True)


def monte_carlo(
    experiment: Experiment, home: Path, processes: int | None = None, fresh: int = 0
) -> tuple[Tables, PairRecords, PairRecords | None]:
    """Tables of the evaluation states, recursive pairs from them, and deep records if asked for.

    fresh: another number gives other states and other pairs.
    """
    _claim(experiment, home)
    names, suffix = ("evaluation", "records", "deep"), f"-{fresh}" if fresh else ""
    states, pairs, deep = (home / f"{name}{suffix}.npz" for name in names)
    needed = [states, pairs, deep] if experiment.depths else [states, pairs]
    if not all(path.exists() for path in needed):
        starts, tables = evaluation_states(
            experiment.game, experiment.num_evaluation, experiment.stream(2, fresh),
            processes=processes,
        )  # fmt: skip
        play = partial(
            record_pairs, experiment.game, starts, seed=experiment.stream(3, fresh),
            pairs_per_state=experiment.pairs_per_state, processes=processes,
        )  # fmt: skip
        tables.save(states)
        if not pairs.exists():
            play(horizon=experiment.horizon, repeats=experiment.repeats).save(pairs)
        if experiment.depths:
            how = {"horizon": max(experiment.depths) + 1, "repeats": experiment.deep_repeats}
            play(**how, depths=experiment.depths, again=1).save(deep)
    kept = PairRecords.load(deep) if experiment.depths else None
    return Tables.load(states), PairRecords.load(pairs), kept


def _claim(experiment: Experiment, home: Path) -> None:
    """Make the folder this experiment's, or refuse it: its files are reused without a check.

    Settings that concern training alone are compared with the checkpoint's.
    """
    own = asdict(experiment) | {"config": None, "game": asdict(experiment.game)}
    path, here = home / "settings.json", json.dumps(own, indent=1) + "\n"
    if path.exists():
        refuse_other(home, json.loads(path.read_text()), json.loads(here))
        return
    home.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_text(here)


def _predictions(trained: Trained, evaluation: Tables, num_states: int) -> dict[str, Gaps]:
    """Predictions at the evaluation states, in their order: the network's, and with "+table"."""
    network, params = trained.network, trained.params
    first = slice(None, None, len(evaluation) // num_states)  # a row of each state
    seen, previous = evaluation.observations[first], evaluation.previous[first]
    told = predict_gaps(network, params, torch.tensor(seen), torch.tensor(previous))
    data = Replay.of(evaluation, network.config, network.scale.device)
    looked = backed_up_gaps(network, params, data)
    entry = torch.tensor(np.unique(evaluation.state_ids[first], return_inverse=True)[1])
    in_order = (part.cpu()[:, entry] for part in (looked.mean, looked.covariance))
    return {"": told, "+table": Gaps(*in_order)}


def compare(
    experiment: Experiment, seed: int, records: PairRecords, gaps: Gaps | GapEstimates,
    how: str = "",
) -> pd.DataFrame:  # fmt: skip
    """Predictions of S states beside Monte Carlo: a row per member, state and action pair.

    gaps: for all actions of the states, or for each member and the pairs of the records.
    """
    config = experiment.config
    found = gap_estimates(records, config.gammas, config.sigma, config.reward_clip)
    state, (a, b) = found.state_rows, found.actions.T
    frames = []
    for member, (gamma, kind) in enumerate(config.members):
        at = config.gammas.index(gamma)
        columns: dict[str, object] = {
            "game": config.name, "coupling": experiment.noise, "seed": seed,
            "gamma": gamma, "kind": kind + how, "state": state, "a": a, "b": b,
        }  # fmt: skip
        for name, part in zip(_SIMULATED, _PARTS, strict=True):
            columns[name] = getattr(found, part)[at]
            columns[f"{name}_error"] = getattr(found, f"{part}_error")[at]
        columns["mc_covariance"] = found.covariance[at]
        for name, part in zip(_PREDICTED, _PARTS, strict=True):
            if isinstance(gaps, Gaps):
                columns[name] = getattr(gaps, name)[member].double().cpu().numpy()[state, a, b]
            else:
                columns[name] = getattr(gaps, part)[member]
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _average(gaps: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Equal-weight averages of the rows with the same keys; their simulations are independent."""
    groups = gaps.groupby(keys, sort=False)
    size, means = groups.size(), groups[[*_SIMULATED, *_PREDICTED]].mean()
    for name in _SIMULATED:
        squares = gaps[f"{name}_error"] ** 2
        means[f"{name}_error"] = np.sqrt(squares.groupby([gaps[k] for k in keys]).sum()) / size
    means["mc_covariance"] = groups["mc_covariance"].sum() / size**2
    return means.reset_index()


def by_state(gaps: pd.DataFrame) -> pd.DataFrame:
    """The rows of `compare` averaged over the action pairs of a state: all that a table needs."""
    return _average(gaps, ["game", "coupling", "seed", "gamma", "kind", "state"])


@np.errstate(divide="ignore", invalid="ignore")  # where no simulated gap varied, a ratio is not one
def gap_table(gaps: pd.DataFrame, sigma: float = 1.0) -> pd.DataFrame:
    """Table 1: a row per game, coupling, gamma and kind, from the gaps of all seeds.

    gaps: the rows of `compare`, or of `by_state`: every state has the same weight. Its column
    coupling says which noise the actions share.

    coupled, independent: average prediction / average Monte Carlo gap variance, the mean over
    seeds; *_interval: half a 95% interval for the given states (other states would have another
    average), from the simulation (normal) and the seeds (Student's t; zero if there is only one
    seed). mc_ratio: Monte Carlo's own independent / coupled, with an interval by
    the delta method.
    rank: Spearman correlation over states of predicted and simulated gap variance, the mean over
    seeds. reliability: share of the variance between the simulated gap variances of states that is
    not simulation noise; a perfect prediction's correlation would be about its square root.
    constant: a prediction that needs no learning, over the average Monte Carlo gap variance. Under
    a shock of size `sigma` with loadings one it is 2 sigma^2 gamma^2 / (1 - gamma^2), the gap
    variance if branches never meet and rewards do not vary; otherwise the average itself. skill:
    1 - MSE / (MSE of the constant), mean squared errors over states with the simulation's noise
    subtracted from both, the mean over seeds.
    error: root mean squared error over states / the average, noise included.
    """
    rows = []
    gaps = by_state(gaps) if "a" in gaps else gaps
    keys = ["game", "coupling", "gamma", "kind"]
    for key, part in gaps.groupby(keys, sort=False):
        one = part[part.seed == part.seed.iloc[0]]  # all seeds have the same simulation
        mc = _average(one, keys).iloc[0]
        ratio = mc.mc_independent / mc.mc
        spread = mc.mc_independent_error**2 + (ratio * mc.mc_error) ** 2
        spread -= 2.0 * ratio * mc.mc_covariance
        row = dict(zip(keys, key, strict=True))
        by_seed = part.groupby("seed")
        for name in ("coupled", "independent"):
            each = by_seed[name].mean() / mc.mc
            of_seeds = np.nan_to_num(special.stdtrit(len(each) - 1, 0.975) * each.sem())
            row[name] = each.mean()
            row[f"{name}_interval"] = np.hypot(of_seeds, 1.96 * each.mean() * mc.mc_error / mc.mc)
        row |= {"mc_ratio": ratio, "mc_ratio_interval": 1.96 * np.sqrt(max(spread, 0.0)) / mc.mc}
        ranks = [s[["coupled", "mc"]].rank().corr().iloc[0, 1] for _, s in by_seed]
        noise, gamma = (one.mc_error**2).mean(), row["gamma"]
        shocks = 2 * sigma**2 * gamma**2 / (1 - gamma**2)
        constant = shocks if row["coupling"] == "reward" else mc.mc
        left = ((constant - one.mc) ** 2).mean() - noise
        squares = ((part.coupled - part.mc) ** 2).mean()
        row |= {
            "rank": np.mean(ranks),
            "reliability": max(0.0, 1.0 - noise / max(one.mc.var(), 1e-300)),
            "constant": constant / mc.mc,
            "skill": 1.0 - (squares - noise) / left if left > 0 else np.nan,
            "error": np.sqrt(squares) / mc.mc,
        }
        rows.append({**row, "mc": mc.mc, "mc_error": mc.mc_error})
    return pd.DataFrame(rows)


def falls(curves: pd.DataFrame, curve: str) -> pd.Series:
    """First / last error of every block, the mean over seeds of each: index game, gamma, block.

    curves: rows of `Trained.metrics` with a column game, of one kind of network; all games and
    seeds of the same steps.
    """
    part = curves[curves["curve"] == curve]
    means = part.groupby(["game", "gamma", "step"], sort=False)[list(TD_BLOCKS)].mean()
    steps = (part["step"].min(), part["step"].max())
    first, last = (means.xs(step, level="step") for step in steps)
    return (first / last).rename_axis(columns="block").stack()
