"""Real browsers: MiniWoB++ and screenshots of web pages."""
