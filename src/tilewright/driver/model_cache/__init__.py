"""Whole compilations of earlier calls, by the bytes of the model and everything else that decides the artifact."""
