"""Days and times as pages write them: 24 hours everywhere, the month as a word in English. Django looks here first."""
