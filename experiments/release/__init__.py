"""Figure 7 and Table 1 of the paper from the two settings of the authors' public release.

`settings` (settings.toml) says what is run and by which rules it is judged, `play` plays the games,
`network` has the networks and their losses, `training` the updates, `results` what the chapters
read; `limits` has what no network escapes, `plots` draws. facts.md lists every fact of
the release with the line that does it.

    python -m experiments.release --work DIR --device cuda
"""
