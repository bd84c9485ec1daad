"""Evaluation of runs: metrics, verdicts, comparisons and reports."""
