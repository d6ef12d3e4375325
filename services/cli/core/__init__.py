"""What the command line decides: restarts and drains, a batch's progress, the check of an input."""
