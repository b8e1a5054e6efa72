"""Files: those of others are read within bounds and believed only after they were checked; ours appear whole."""
