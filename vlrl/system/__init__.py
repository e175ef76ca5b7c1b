"""What the operating system does for processes: scheduling, and ends. The hub's reach. The standard library alone."""
