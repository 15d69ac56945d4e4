"""Examples of the README and of the pages do what the text says."""

import importlib
import importlib.metadata
import re
from itertools import product

import numpy as np
import pytest
from programs import ROOT

import jmdp_lib as jl

README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "book" / "own_simulator.md").read_text()
RECORDS = (ROOT / "book" / "which_coupling.md").read_text()
PAGES = (README, GUIDE, (ROOT / "book" / "large_models.md").read_text())
CODE, OUTPUT = (re.compile(rf"^```{x}\n(.*?)^```$", re.M | re.S) for x in ("python", "text"))
RECORDS_PROGRAM = "".join(CODE.findall(RECORDS))  # its second block goes on with the first
BLOCKS = [*CODE.findall("\n".join(PAGES)), RECORDS_PROGRAM]

# The reader's part of an example: a small model, as arrays and as a step function.
READERS_OWN = """
num_states, num_actions, gamma = 2, 2, 0.9
noise_probs = np.full(2, 0.5)
table_probs = np.full((2, 2), 0.5)
rewards = np.arange(8.0).reshape(2, 2, 2)
next_states = np.arange(8).reshape(2, 2, 2) % 2
transition_probs = np.full((2, 2, 2), 0.5)


def step(state: int, action: int, noise: int) -> tuple[float, int]:
    return float(action * noise), state


"""


def write_examples(folder, blocks):
    """Paths of files with a block each, below the imports of the blocks above it."""
    paths = []
    for number, block in enumerate(blocks):
        own = READERS_OWN if "table_probs" in block else ""
        paths.append(folder / f"readme_{number}.py")
        paths[-1].write_text(f"import numpy as np\n\nimport jmdp_lib as jl\n{own}\n{block}")
    return paths


def test_the_record_of_demand_passes_and_that_of_sales_fails(capsys):
    exec(RECORDS_PROGRAM, {})
    assert capsys.readouterr().out == "".join(OUTPUT.findall(RECORDS))


@pytest.mark.slow
def test_the_depot_comes_as_close_as_the_guide_says():
    [block] = [block for block in BLOCKS if "class Depot" in block]
    scope = {"jl": jl}
    exec(block, scope)
    poisson = np.exp(-3.0) * np.cumprod(np.append(1.0, 3.0 / np.arange(1, 60)))

    model = jl.JMDP.from_step(12, 5, 0.9, poisson / poisson.sum(), scope["day"])
    truth, gaps = jl.jipe2(model, scope["policy"]).moments, scope["gaps"]
    pairs = ~np.eye(5, dtype=bool)
    off = np.abs(gaps.gap_variance / np.where(pairs, truth.gap_variance, 1.0) - 1.0)[:, pairs]
    means = np.abs(gaps.gap_mean - truth.gap_mean)
    pattern = (
        r"([\d.]+)% from the exact ones.*?([\d.]+)% at worst; .* within (\d.\d+), .* to (\d.\d)\."
    )
    printed = re.search(pattern, " ".join(re.sub(" <!--.*?-->", "", GUIDE).split()))
    measured = (100 * off.mean(), 100 * off.max(), means.max(), truth.gap_mean.max())
    assert np.allclose([float(x) for x in printed.groups()], measured, atol=0.05, rtol=0.0)


def test_the_power_of_the_test_for_records_is_as_the_page_says():
    """Demand that repeats yesterday's, in 100 records; shares to 4.5 standard errors."""
    scope = {}
    exec(RECORDS_PROGRAM, scope)
    rejected = {0.05: 0, 0.1: 0}
    for prob, seed in product(rejected, range(100)):
        rng = np.random.default_rng(seed)
        fresh, new = rng.poisson(3, 2000), rng.random(2000) >= prob
        new[0] = True
        demand = np.minimum(fresh[np.maximum.accumulate(np.where(new, np.arange(2000), 0))], 6)
        rejected[prob] += scope["p_value"](demand[1:], demand[:-1]) < 0.05 / 3
    assert abs(rejected[0.05] - 75) <= 4.5 * np.sqrt(100 * 0.75 * 0.25)
    assert rejected[0.1] >= 95


def test_the_gymnasium_example_runs():
    [block] = [block for block in BLOCKS if "CoupledEnv" in block]
    scope = {"jl": jl, "np": np}
    exec(block.replace("num_runs=50", "num_runs=4"), scope)
    assert block.count("num_runs=50") == 1
    assert scope["slips"].mean[1, 0] == -scope["slips"].mean[0, 1]
    assert len(scope["outcomes"]) == 6


def test_an_antithetic_action_meets_the_opposite_noise():
    """Its marginal distribution stays, and the variance is that of opposite demands alone."""
    [block] = [block for block in BLOCKS if "def antithetic" in block]
    scope = {"jl": jl}
    exec(block, scope)
    usual, opposed = (
        jl.JMDP.from_step(12, 5, 0.9, scope["demands"], scope[name])
        for name in ("day", "antithetic")
    )
    for one, other in zip(usual.marginal_mdp(), opposed.marginal_mdp(), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-12)
    solved = [jl.jipe2(jm, np.full((12, 5), 0.2)).moments for jm in (opposed, usual)]
    exact = [moments.gap_variance[5, 2, 1] for moments in solved]
    off = np.abs(scope["estimate"].variance[0, 1] - exact) / scope["estimate"].variance_error[0, 1]
    assert off[0] <= 4.5 < off[1]


def test_lasting_demand_has_the_variances_of_the_guide(capsys):
    [block] = [block for block in BLOCKS if "innovations = " in block]
    exec(block, {"jl": jl})
    joint, common = (float(line.split()[1]) for line in capsys.readouterr().out.splitlines())
    assert f"has variance {joint:.0f} and {common:.3f}" in GUIDE


@pytest.mark.filterwarnings("ignore:LunarLander cannot be copied")
@pytest.mark.parametrize("name", ["Taxi-v4", "InvertedPendulum-v5", "LunarLander-v3"])
def test_the_table_says_how_environments_are_copied(name):
    rows = dict(re.findall(r"^\| (\w+-v\d) \| (\w+) \| \d+ \|", GUIDE, re.MULTILINE))
    assert len(rows) == 11
    needs = {"InvertedPendulum-v5": "mujoco", "LunarLander-v3": "Box2D"}
    importlib.import_module(needs.get(name, "gymnasium"))
    gymnasium = importlib.import_module("gymnasium")
    assert jl.simulators.CoupledEnv(gymnasium.make(name)).copying == rows[name]
