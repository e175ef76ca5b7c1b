"""What evaluations report beside accuracy."""
