"""How a machine becomes a host: codes, what the machine fetches, and how it knows this panel."""
