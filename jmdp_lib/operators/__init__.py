"""Joint Bellman operator $T_2$ in literal, array and collapsed forms, and its sampled backups."""
