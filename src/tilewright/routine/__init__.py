"""Routines: sequential code for what no tensor expression states, such as selection, sorting and scattering."""
