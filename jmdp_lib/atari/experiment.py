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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from jmdp_lib import checks
from jmdp_lib.atari.env import Game, Snapshot
from jmdp_lib.atari.networks import Config
from jmdp_lib.atari.predictions import Gaps, backed_up_gaps, by_state, predict_gaps, tail
from jmdp_lib.atari.recursive_pairs import PairRecords, gap_estimates, record_pairs
from jmdp_lib.atari.replay import Replay
from jmdp_lib.atari.tables import Tables, collect, evaluation_states
from jmdp_lib.atari.training import Trained, refuse_other, require_device, train
from jmdp_lib.checks import Seed
from jmdp_lib.machine import extra, replacing

with extra("figures", "torch"):
    import pandas as pd

NOISES = ("reward", "sticky")
# What is known of a gap: of the simulation, in the order of `RecordedGaps`, and predicted.
_COLUMNS = (
    *("mc_mean", "mc_mean_error", "mc", "mc_error", "mc_independent", "mc_independent_error"),
    *("mc_covariance", *Gaps._fields),
)


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
    processes: int | None = None, trial: str = "", states: int | None = None, fresh: int = 0,
) -> pd.DataFrame:  # fmt: skip
    """Collect, train and evaluate with one seed: the gaps of `evaluate`, also in gaps-SEED.csv.

    trial, states: see `learn`. fresh: see `monte_carlo`.
    """
    home = Path(folder)
    trained = learn(experiment, seed, home, device, processes, trial, states)
    frame = evaluate(experiment, seed, trained, *monte_carlo(experiment, home, processes, fresh))
    with replacing(home / f"gaps-{_suffixed(seed, trial)}.csv") as part:
        frame.to_csv(part, index=False, float_format="%.8g")
    return frame


def evaluate(
    experiment: Experiment, seed: int, trained: Trained, evaluation: Tables, records: PairRecords,
    *deep: PairRecords,
) -> pd.DataFrame:  # fmt: skip
    """Predictions beside Monte Carlo, by state: KIND, KIND+table and, if recorded, KIND+DEPTH."""
    config, network, params = experiment.config, trained.network, trained.params
    gammas = [gamma for gamma, _ in config.members]
    found = gap_estimates(records, gammas, config.sigma)
    state, (a, b) = found.state_rows, found.actions.T
    data = Replay.of(evaluation, network.scale.device)
    ids = evaluation.state_ids[:: len(evaluation) // experiment.num_evaluation]  # of each state
    entry = np.unique(ids, return_inverse=True)[1][state]
    seen, previous = (data.columns[name][data.rows[:, 0]] for name in ("observations", "previous"))
    predicted: dict[str, Sequence[Any]] = {}
    for how, gaps in (
        ("", predict_gaps(network, params, seen, previous)),
        ("+table", backed_up_gaps(network, params, data)),
    ):
        predicted[how] = [part.double().cpu().numpy()[:, entry, a, b] for part in gaps]
    for begun in deep:
        for place, depth in enumerate(begun.depths.tolist()):
            later = tail(network, params, begun, place)
            played = gap_estimates(begun.until(depth), gammas, config.sigma, later)
            predicted[f"+{depth}"] = played.mean, played.variance, played.independent
    simulated = (
        found.mean, found.mean_error, found.variance, found.variance_error,
        found.independent, found.independent_error, found.covariance,
    )  # fmt: skip
    frames = []
    for how, values in predicted.items():
        columns = [*zip(_COLUMNS, (*simulated, *values), strict=True)]
        for member, (gamma, kind) in enumerate(config.members):
            told = {name: array[member] for name, array in columns}
            frames.append(pd.DataFrame({"gamma": gamma, "kind": kind + how, "state": state} | told))
    whose = {"game": config.name, "coupling": experiment.noise, "seed": seed}
    return by_state(pd.concat(frames).assign(**whose))


def learn(
    experiment: Experiment, seed: int, home: Path, device: str = "cpu",
    processes: int | None = None, trial: str = "", states: int | None = None,
) -> Trained:  # fmt: skip
    """The trained ensemble of one seed; read from its checkpoint if that is finished.

    trial: a name for this training, if an experiment has several. states: how many of the queried
    rows it learns from; None: all.
    """
    require_device(device)
    _claim(experiment, home)

    def collected(name: str, num_states: int, stream: Seed, **how: Any) -> Tables:
        how |= {"follow_share": experiment.follow_share, "processes": processes}
        play = partial(collect, experiment.game, num_states, stream, **how)
        return Tables.kept(home / f"{name}.npz", play)

    how = {"actions": experiment.actions, "spacing": experiment.spacing}
    tables = collected(f"tables-{seed}", experiment.num_states, experiment.stream(0, seed), **how)
    held = collected("held_out", experiment.num_held_out, experiment.stream(1), enumerated=True)
    config = replace(experiment.config, seed=seed)
    tables = tables if states is None else tables.first(states)
    return train(tables, config, home / f"run-{_suffixed(seed, trial)}", held, device)


def monte_carlo(
    experiment: Experiment, home: Path, processes: int | None = None, fresh: int = 0
) -> tuple[Tables, PairRecords, *tuple[PairRecords, ...]]:
    """Tables of the evaluation states, recursive pairs from them, and deep records if asked for.

    fresh: another number gives other states and other pairs.
    """
    _claim(experiment, home)
    game, number = experiment.game, _suffixed("", fresh or "")

    @cache
    def states() -> tuple[list[Snapshot], Tables]:
        stream = experiment.stream(2, fresh)
        return evaluation_states(game, experiment.num_evaluation, stream, processes=processes)

    def played(name: str, horizon: int, repeats: int, **how: Any) -> PairRecords:
        def play() -> PairRecords:
            return record_pairs(
                game, states()[0], horizon, experiment.stream(3, fresh), repeats=repeats,
                pairs_per_state=experiment.pairs_per_state, processes=processes, **how,
            )  # fmt: skip

        return PairRecords.kept(home / f"{name}{number}.npz", play)

    tables = Tables.kept(home / f"evaluation{number}.npz", lambda: states()[1])
    records = played("records", experiment.horizon, experiment.repeats)
    if not experiment.depths:
        return tables, records
    last, how = max(experiment.depths) + 1, {"depths": experiment.depths, "again": 1}
    return tables, records, played("deep", last, experiment.deep_repeats, **how)


def _suffixed(name: object, suffix: object) -> str:
    """NAME-SUFFIX, or NAME where there is no suffix."""
    return f"{name}-{suffix}" if suffix else f"{name}"


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
