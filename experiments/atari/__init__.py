"""Moments of Atari games, learned by networks of our own: chapter 12.

`tables` collects queried tables along random play, and `recursive_pairs` plays what gaps really
are; queries of the emulator are the library's, `jmdp_lib.atari`. `networks` says what is learned,
`replay` makes batches of tables, `td_errors` compares a network with its backup, and `training`
descends these errors. `predictions` reads gaps from a network, beside the played ones.
`protocol` has the settings (protocol.toml) and writes the results, `device` trains the runs, and
`plots` draws them. `small_models` has tables of JMDPs whose moments `jipe2` knows.
"""
