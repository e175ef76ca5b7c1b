"""Policies as a server sees them (`robot.serving.spec.Servable`)."""
