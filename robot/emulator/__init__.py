"""A robot without a robot: servos at the wire, backed by a simulated arm, with faults on command."""
