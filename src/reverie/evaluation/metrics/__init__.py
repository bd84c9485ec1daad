"""Metrics: functions of two sets of samples."""
