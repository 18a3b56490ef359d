"""Pages and what is pressed on them: load, call, render."""
