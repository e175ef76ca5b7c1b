"""The motion plane: a process of its own that owns the robot's port, governs every target and watches over all."""
