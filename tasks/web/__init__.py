"""Screens to act on: MiniWoB++ and web pages in real browsers, a desktop."""
