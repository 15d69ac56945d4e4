"""Figure 7 and Table 1 of the paper from the two settings of the authors' public release.

`settings` (settings.toml) has what is run and the rules by which it is judged. `rollouts` simulates
the games, `network` has the networks and their losses, `training` the updates, and `runs` is the
command. `results` writes tables, and the chapters read them with it, without torch. `limits` has
what no network escapes. facts.md lists each fact of the release with the function that does it.

    python -m experiments.release --work DIR --device cuda
"""
