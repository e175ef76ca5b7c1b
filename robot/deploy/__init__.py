"""The deployment loop: observe, ask, execute at the robot's rate, record."""
