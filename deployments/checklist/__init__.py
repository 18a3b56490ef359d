"""The check before a start: one list, shown as it runs. See docs/check.md."""
