"""Figure 7 and Table 1 of the paper from the two settings of the authors' public release.

`settings` (settings.toml) says what is run and by which rules it is judged, `play` plays the games,
`network` has the networks and their losses, `training` the updates, `runs` is the command, and
`results` writes tables. The chapters read them by `results`, too, without torch; `limits` has what
no network escapes. facts.md lists each fact of the release with the function that does it.

    python -m experiments.release --work DIR --device cuda
"""
