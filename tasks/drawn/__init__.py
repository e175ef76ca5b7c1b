"""Pictures that are drawn: screens, scenes, digits, robot scenes, puzzles."""
