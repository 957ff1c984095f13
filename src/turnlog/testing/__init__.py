"""For tests of one's own: the contract that every store has to keep."""
