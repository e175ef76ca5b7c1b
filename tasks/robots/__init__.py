"""What the task `manipulation` needs beside a robot: words for actions, buckets of scenes."""
