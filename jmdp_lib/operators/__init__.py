"""Joint Bellman operators: the literal $T_2$, the fast $T_2$, $T_n$, and the sampled backups."""
