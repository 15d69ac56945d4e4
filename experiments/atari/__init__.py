"""Moments of Atari games, learned by networks of our own: chapter 12.

(The networks of chapters 5 and 6 are the authors', with their own games and training: `release`.)

`runs.toml` lists every run, `settings` reads it, and `runs` is the command that makes a part:

    python -m experiments.atari PART --work WORK --device cuda

`tables` collects queried tables along random rollouts, and `recursive_pairs` simulates the true
gaps; the emulator is queried by the library, `jmdp_lib.atari`. `networks` has what is learned,
`replay` makes batches of tables, `td_errors` compares a network with its backup, and `training`
descends these errors. `predictions` reads gaps from a network, and `results` writes them beside the
simulated ones. The chapter reads these files with `results`, too, without torch.
`small_models` has tables of JMDPs whose moments `jipe2` computes.
"""
