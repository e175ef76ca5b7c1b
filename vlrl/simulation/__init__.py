"""Any policy on any simulated robot's task, beside control arms that play the same scenes: `vlrl simulate`."""
