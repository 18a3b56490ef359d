"""What the door may open: the snapshot it works with, how the panel keeps it fresh, and the panel's own questions."""
