"""The stages of the safety governor: small functions that look at one tick. `table.STAGES` lists them in order."""
