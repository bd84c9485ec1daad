"""The command line.  torch is imported only when work starts."""
