"""Task modules: one file a task, found by its name (`task: {name: jigsaw}` is `tasks/jigsaw.py`)."""
