"""Layouts over a program: choices, assignment, propagation, conversions."""
