"""Loop primitives: loop IR to loop IR with named legality checks; traces; the `Schedule` that records them."""
