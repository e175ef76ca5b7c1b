"""`vlrl compare`: several recipes over one task at equal cost, several seeds, a test that says when to stop."""
