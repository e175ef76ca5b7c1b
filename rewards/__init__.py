"""Rule-based rewards: pure functions of text and plain data that never raise on model output."""
