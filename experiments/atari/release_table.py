"""The release's ratios as rows, and as files."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from experiments.atari import release_play
from experiments.atari.copies import copies_recursion
from experiments.atari.files import write_whole
from experiments.atari.release_settings import Settings
from experiments.atari.release_verdict import verdict
from jmdp_lib import checks

Run = tuple[str, int]  # a game and a seed


def rows_of(run: Run, settings: Settings, work: Path) -> list[dict[str, Any]]:
    """One row for each recorded step, b and kind of states of one game and seed."""
    game, seed = run
    folder = work / f"{game}_{seed}"
    saved = torch.load(folder / "learner.pt", map_location="cpu", weights_only=True)
    rows = []
    for b, where in product(settings.eval_b, release_play.WHERE):
        pairs = release_play.Pairs.load(folder / f"pairs_{where}.npz")
        rng = checks.generator(seed, f"release, shocks, {game}, {where}")
        found = release_play.simulated(release_play.pair_returns(pairs, b, settings.gamma, rng))
        key = {"game": game, "seed": seed, "b": b, "where": where}
        rows += [key | recorded(record, where, found, settings) for record in saved["records"]]
    return rows


def recorded(
    record: dict[str, Any], where: str, found: release_play.Simulated, settings: Settings
) -> dict[str, Any]:
    """The columns of one record beside its key.

    `recursion_` is what copies alone would give, at the stage that is being learned: one more than
    the copies made.
    """
    copies = record["copies"]
    told = record[where]
    mean, variance = copies_recursion(copies + 1, settings.gamma)
    return {
        "step": record["step"],
        "copies": copies,
        "coupled_ratio": told["coupled"] / found.gap_variance,
        "independent_ratio": told["independent"] / found.gap_variance,
        "recursion_ratio": 2.0 * variance[copies + 1] / found.gap_variance,
        "coupled": told["coupled"],
        "independent": told["independent"],
        "states_apart": told["states_apart"],
        "mean": told["mean"],
        "recursion_mean": mean[copies + 1],
        "simulated_gap_variance": found.gap_variance,
        "simulated_independent": found.independent_variance,
    }


def write_table(
    runs: list[Run], settings: Settings, protocol: dict[str, Any], work: Path, out: Path
) -> None:
    """Write what has been recorded so far, and print the paper's cells."""
    rows = pd.DataFrame([row for run in runs for row in rows_of(run, settings, work)])
    cells = verdict(rows, protocol)
    calls = [json.loads(note.read_text()) for note in sorted(work.glob("call_*.json"))]
    last = rows.groupby(["game", "seed"], sort=False).step.max()
    told = {
        "settings": asdict(settings),
        "tolerance": protocol["tolerance"],
        "paper": protocol["paper"],
        "verdict": json.loads(cells.to_json(orient="records")),
        "recorded": [
            {"game": game, "seed": int(seed), "last_step": int(step)}
            for (game, seed), step in last.items()
        ],
        "calls": calls,
    }
    text = rows.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    write_whole(out / "release.csv", text)
    write_whole(out / "release.json", json.dumps(told, indent=1) + "\n")
    print(cells.to_string(index=False) if len(cells) else "no records at the paper's step yet")
