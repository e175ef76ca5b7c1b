"""Videos for tasks: decoded with PyAV, sampled, kept; see docs/video.md."""
