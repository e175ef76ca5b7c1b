"""Learning from recorded data sets: imitation, corrections by a person, rewards from pictures."""
