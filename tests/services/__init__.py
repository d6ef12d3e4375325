"""What every service owes those who run it: from start to end, and when the machine fails."""
