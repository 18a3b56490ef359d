"""The version of the agent, which is that of the panel it came from; a test compares it with pyproject.toml."""

VERSION = "0.1.0"
