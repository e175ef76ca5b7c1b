"""What the operating system does for processes: scheduling, and ends. The standard library alone."""
