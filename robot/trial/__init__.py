"""Fair comparisons of policies on a real robot: random order, blind verdicts, a test that says when to stop."""
