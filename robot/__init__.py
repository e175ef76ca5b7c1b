"""Robots, simulated and real, behind one interface."""
