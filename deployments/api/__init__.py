"""The API of deployments, starts, fixes and failures: one module a group of operations, with their shapes."""
