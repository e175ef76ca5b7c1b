"""Several stages of training in one file: supervised starts, RL, chosen samples, own right answers, in rounds."""
