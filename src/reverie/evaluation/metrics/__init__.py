"""Measures: functions of two sets of samples."""
