"""What is watched of a deployment that serves: its engine's numbers, its log, and whether it still answers."""
