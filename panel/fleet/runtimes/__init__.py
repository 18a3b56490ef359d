"""Engines on hosts: what is there, installs, removals, and who uses them."""
