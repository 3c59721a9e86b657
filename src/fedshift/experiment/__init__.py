"""One run: its configuration, its folder, its records and checkpoints."""
