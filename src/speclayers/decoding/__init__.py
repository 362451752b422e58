"""Decoding: plain, and speculative with any drafter; verification, counters and the exactness gate."""
