"""Loop primitives: pure functions from loop IR to loop IR with named legality checks, and the `Schedule` that records them."""
