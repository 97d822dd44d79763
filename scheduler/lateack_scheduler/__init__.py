"""The scheduler: what has to be done once for all, by whichever replica leads."""
