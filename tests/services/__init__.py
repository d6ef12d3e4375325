"""What every service owes those who run it: from its start to its end, and when the machine fails."""
