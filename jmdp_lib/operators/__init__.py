"""Joint Bellman operators: $T_2$ literal, on arrays and collapsed, $T_n$, and sampled backups."""
