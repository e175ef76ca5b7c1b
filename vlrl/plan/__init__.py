"""`vlrl plan`: what a run needs and takes, before anything is loaded."""
