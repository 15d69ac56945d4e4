"""The paper's Atari experiments: from the emulator to curves (Figure 7) and gap ratios (Table 1).

One `Experiment` is a game whose actions share a reward shock. Each of its parts is a file that is
written atomically and only once, so a run that was killed continues where it stopped:

    settings.json                   whose files these are: another experiment is refused
    tables-SEED.npz, held_out.npz   queried states, to learn from and to test the backup on
    evaluation.npz, records.npz     states for the gap diagnostic, recursive pairs from them;
                                    -FRESH is appended if fresh states were asked for
    run-SEED/                       training: metrics, checkpoint; `device` appends -TRIAL
    gaps-SEED.csv                   predicted and Monte Carlo gap moments, a row per state and pair;
                                    KIND is the network's prediction, KIND+table one exact backup of
                                    it from the state's own table
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.atari.checkpoints import refuse_other
from experiments.atari.networks import Config
from experiments.atari.predictions import (
    backed_up_gaps,
    by_state,
    predict_gaps,
)
from experiments.atari.recursive_pairs import PairGaps, PairRecords, pair_gaps, record_pairs
from experiments.atari.replay import Replay
from experiments.atari.tables import Game, QueryTables, collect, evaluation_states
from experiments.atari.training import Trained, train
from experiments.files import write_whole
from experiments.processes import require_device
from jmdp_lib import checks
from jmdp_lib.atari import Snapshot
from jmdp_lib.atari.emulator import rom_id
from jmdp_lib.checks import Floats, Seed
from jmdp_lib.machine import extra

with extra("figures", "torch"):
    import pandas as pd

# Columns of what was simulated, and the fields of `PairGaps` that they are.
_SIMULATED = {
    "mc_mean": "mean",
    "mc_mean_error": "mean_error",
    "mc": "variance",
    "mc_error": "variance_error",
    "mc_independent": "independent",
    "mc_independent_error": "independent_error",
    "mc_covariance": "covariance",
}


@dataclass(frozen=True)
class Experiment:
    """A game whose actions share a reward shock, and the sizes of all parts.

    config: of training; its name is the game, its sigma the reward shock.
    obs: what the networks see (see `CoupledAtari`).
    num_states, num_held_out, num_evaluation: queried states for each purpose.
    actions: queried at each of the num_states; None: all (see `collect`).
    follow_share: share of them whose branches are followed (see `collect`).
    pairs_per_state, repeats, horizon: of the recursive pairs: action pairs of each state, how
        often each is played, and for how many steps.
    """

    config: Config
    obs: str = "ram"
    num_states: int = 30_000
    num_held_out: int = 1_000
    num_evaluation: int = 64
    actions: int | None = None
    follow_share: float = 0.05
    pairs_per_state: int = 4
    repeats: int = 12
    horizon: int = 300

    def __post_init__(self) -> None:
        rom_id(self.config.name)  # refuses an unknown game
        checks.one_of("obs", self.obs, ("ram", "ram+paddles", "pixels"))
        sizes = ("num_states", "num_held_out", "num_evaluation", "pairs_per_state", "horizon")
        for name in sizes:
            checks.at_least(name, getattr(self, name), 1)
        checks.at_least("repeats", self.repeats, 3)  # for a variance with its error

    @property
    def game(self) -> Game:
        """How all its states are played: without sticky actions, so the shock is all the noise."""
        return Game(self.config.name, self.obs)

    def stream(self, purpose: int, seed: int = 0) -> np.random.SeedSequence:
        """The random stream of a part: independent of other parts and seeds."""
        return np.random.SeedSequence([purpose, seed, 0])


def evaluate(
    experiment: Experiment,
    seed: int,
    trained: Trained,
    evaluation: QueryTables,
    records: PairRecords,
) -> pd.DataFrame:
    """Predictions beside Monte Carlo, by state: KIND and KIND+table."""
    members = experiment.config.members
    gammas = [gamma for gamma, _ in members]
    simulated = pair_gaps(records, gammas, experiment.config.sigma)
    predicted = _predicted(experiment, trained, evaluation, simulated)
    frames = []
    for suffix, prediction in predicted.items():
        for member, (gamma, kind) in enumerate(members):
            keys = {"gamma": gamma, "kind": kind + suffix, "state": simulated.state_rows}
            estimates = {name: getattr(simulated, of)[member] for name, of in _SIMULATED.items()}
            told = {name: array[member] for name, array in prediction.items()}
            frames.append(pd.DataFrame(keys | estimates | told))
    names = {"game": experiment.config.name, "seed": seed}
    return by_state(pd.concat(frames).assign(**names))


def _predicted(
    experiment: Experiment, trained: Trained, evaluation: QueryTables, simulated: PairGaps
) -> dict[str, dict[str, Floats]]:
    """The gaps (E, K) of the simulated groups, by suffix of the kind and name of the column.

    They are told by the network alone (""), and by one backup from the state's tables ("+table").
    """
    network = trained.network
    data = Replay.of(evaluation, network.scale.device)
    told = {
        "": predict_gaps(network, trained.params, data.columns["observations"][data.rows[:, 0]]),
        "+table": backed_up_gaps(network, trained.params, data),
    }
    entry = np.unique(evaluation.state_ids, return_inverse=True)[1][simulated.state_rows]
    a, b = simulated.actions.T
    return {
        suffix: {
            name: part.double().cpu().numpy()[:, entry, a, b]
            for name, part in gaps._asdict().items()
        }
        for suffix, gaps in told.items()
    }


def learn(
    experiment: Experiment,
    seed: int,
    home: Path,
    device: str = "cpu",
    processes: int | None = None,
) -> Trained:
    """The trained ensemble of one seed; read from its checkpoint if that is finished."""
    require_device(device)
    tables, held_out = collected_tables(experiment, seed, home, processes)
    config = replace(experiment.config, seed=seed)
    return train(tables, config, home / f"run-{seed}", held_out, device)


def collected_tables(
    experiment: Experiment, seed: int, home: Path, processes: int | None = None
) -> tuple[QueryTables, QueryTables]:
    """What one seed learns from, and what is held out; collected if it is not there yet."""
    _claim(experiment, home)

    def collected(name: str, num_states: int, stream: Seed, **options: Any) -> QueryTables:
        options |= {"follow_share": experiment.follow_share, "processes": processes}
        make = partial(collect, experiment.game, num_states, stream, **options)
        return QueryTables.load_or_make(home / f"{name}.npz", make)

    tables = collected(
        f"tables-{seed}",
        experiment.num_states,
        experiment.stream(0, seed),
        actions=experiment.actions,
    )
    held_out = collected("held_out", experiment.num_held_out, experiment.stream(1))
    return tables, held_out


def monte_carlo(
    experiment: Experiment, home: Path, processes: int | None = None, fresh: int = 0
) -> tuple[QueryTables, PairRecords]:
    """Tables of the evaluation states, and recursive pairs from them.

    fresh: another number gives other states and other pairs.
    """
    _claim(experiment, home)
    game = experiment.game

    @cache
    def states() -> tuple[list[Snapshot], QueryTables]:
        stream = experiment.stream(2, fresh)
        return evaluation_states(game, experiment.num_evaluation, stream, processes=processes)

    def record() -> PairRecords:
        sizes = {"pairs_per_state": experiment.pairs_per_state, "repeats": experiment.repeats}
        stream = experiment.stream(3, fresh)
        return record_pairs(
            game, states()[0], experiment.horizon, stream, **sizes, processes=processes
        )

    suffix = f"-{fresh}" if fresh else ""
    tables = QueryTables.load_or_make(home / f"evaluation{suffix}.npz", lambda: states()[1])
    return tables, PairRecords.load_or_make(home / f"records{suffix}.npz", record)


def _claim(experiment: Experiment, home: Path) -> None:
    """Make the folder this experiment's, or refuse it: its files are reused without a check.

    Settings that concern training alone are compared with the checkpoint's.
    """
    settings = asdict(experiment) | {"config": None, "game": experiment.game._asdict()}
    text = json.dumps(settings, indent=1) + "\n"
    path = home / "settings.json"
    if path.exists():
        refuse_other(home, json.loads(path.read_text()), json.loads(text))
        return
    write_whole(path, text)
