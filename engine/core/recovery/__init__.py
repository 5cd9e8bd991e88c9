"""Going on after a fault: whose it is, what a table of blocks must look like, and a device that failed."""
