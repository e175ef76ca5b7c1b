"""Samplers: which samples a step asks. `draw(n)` gives their positions; state makes a run resume exactly."""
