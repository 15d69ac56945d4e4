"""Moments of Atari games, learned by networks: Figure 7 and Table 1 of the paper.

`networks` says what is learned, `replay` makes batches of queried tables, `td_errors` compares a
network with its backup, and `training` descends these errors (`checkpoints`: where it stands).
`predictions` reads gaps from a network, and `experiment` does all of it for one game, from the
emulator to a row of Table 1. `protocol` runs what chapters 5 and 12 report (settings:
protocol.toml), and `plots` draws it. `small_models` has tables of JMDPs whose moments `jipe2`
knows. Queries of the emulator are the library's, `jmdp_lib.atari`; `tables` collects them along
random play, and `recursive_pairs` plays what gaps really are.

`release` and the files named after it run Table 1 under the settings of the authors' release, and
`copies` has the recursion that explains the result. `device` trains many runs of the protocol side
by side on one GPU.
"""
