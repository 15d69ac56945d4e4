"""Moments of Atari games, learned by networks of our own: chapter 12.

(The networks of chapters 5 and 6 are the authors', with their own games and training: `release`.)

`runs.toml` lists every run, `settings` reads it, and `runs` is the command that makes a part:

    python -m experiments.atari PART --work WORK --device cuda

`tables` collects queried tables along random play, and `recursive_pairs` plays what gaps really
are; queries of the emulator are the library's, `jmdp_lib.atari`. `networks` says what is learned,
`replay` makes batches of tables, `td_errors` compares a network with its backup, and `training`
descends these errors. `predictions` reads gaps from a network, and `results` writes them beside the
played ones. The chapter reads these files by `results`, too, without torch.
`small_models` has tables of JMDPs whose moments `jipe2` knows.
"""
