"""Tuning of a model: plan of tasks, task scheduler, session, end comparison."""
