"""Analytical models of how long tile programs take; nothing here runs or times anything."""
