"""The agent's small host and the panel at the wire, for tests of one agent under faults."""

from tests.agent.conftest import fake_panel, host

__all__ = ["fake_panel", "host"]
