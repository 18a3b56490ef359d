"""The chaos matrix: a whole Berth, faults at chosen moments, and what must be true afterwards. See docs/reliability.md."""
