"""Speed of single operators next to the peers and to the machine's limit."""
