"""Following log files: bytes of whole lines out, each exactly once, whatever is done to the files meanwhile."""
