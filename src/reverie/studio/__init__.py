"""The studio: a web page to train, compare, sample, steer and explain the runs of a folder."""
