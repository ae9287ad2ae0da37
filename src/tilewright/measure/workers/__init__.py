"""Workers of a tuning: what measures candidates, on this machine or on many."""
