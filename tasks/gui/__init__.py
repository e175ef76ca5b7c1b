"""What the GUI tasks share: prompts, answers, actions."""
